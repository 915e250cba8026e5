//! URLs of servers and proxies.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::Uri;

/// Why a URL was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UrlError {
    /// It is no URL with a scheme and a host. A host with other than ASCII letters must be given in
    /// its form for DNS (`xn--…`).
    Malformed,
    /// The scheme is not `ws` or `wss`; for a proxy, `http`, `https`, `socks5` or `socks5h`.
    Scheme,
    /// It has a fragment, which a WebSocket's URL must not have (RFC 6455 section 3).
    Fragment,
    /// The name of the user or the password has bad percent encoding, or is too long for the proxy.
    UserInfo,
    /// The port is 0 or no number.
    Port,
    /// The host cannot be the name in a certificate.
    TlsName,
    /// The host has more than 255 bytes, which SOCKS5 cannot carry.
    HostTooLong,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "malformed URL",
            Self::Scheme => "the scheme of the URL is not supported here",
            Self::Fragment => "the URL has a fragment",
            Self::UserInfo => "malformed user or password in the URL",
            Self::Port => "the port in the URL is not a number from 1 to 65535",
            Self::TlsName => "the host in the URL cannot be the name in a certificate",
            Self::HostTooLong => "the host in the URL has more than 255 bytes",
        })
    }
}

impl std::error::Error for UrlError {}

/// A user and a password, percent-decoded. They are in no text that is shown.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) user: Vec<u8>,
    pub(super) password: Vec<u8>,
}

impl Credentials {
    /// The value of a header Authorization (RFC 7617).
    pub(super) fn basic(&self) -> String {
        let pair = [&self.user[..], b":", &self.password].concat();
        format!("Basic {}", STANDARD.encode(pair))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// The parts of a URL.
pub(super) struct Parts {
    pub(super) uri: Uri,
    /// Without the brackets of an IPv6 address.
    pub(super) host: String,
    pub(super) port: Option<u16>,
    pub(super) credentials: Option<Credentials>,
}

impl Parts {
    pub(super) fn parse(url: &str) -> Result<Self, UrlError> {
        // `Uri` drops it.
        if url.contains('#') {
            return Err(UrlError::Fragment);
        }
        let uri: Uri = url.parse().map_err(|_| UrlError::Malformed)?;
        let authority = uri.authority().ok_or(UrlError::Malformed)?;
        if uri.scheme().is_none() || authority.host().is_empty() {
            return Err(UrlError::Malformed);
        }
        let text = authority.as_str();
        let (user_info, host_port) = match text.rsplit_once('@') {
            Some((user_info, host_port)) => (Some(user_info), host_port),
            None => (None, text),
        };
        let bare = authority.host();
        let port = match host_port.get(bare.len()..) {
            Some("") => None,
            Some(rest) => {
                let digits = rest.strip_prefix(':').ok_or(UrlError::Malformed)?;
                let port = digits.bytes().all(|byte| byte.is_ascii_digit());
                let port = port.then(|| digits.parse().ok()).flatten();
                Some(port.filter(|port| *port > 0).ok_or(UrlError::Port)?)
            }
            None => return Err(UrlError::Malformed),
        };
        let host = bare.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = host.unwrap_or(bare).to_owned();
        let credentials = user_info.map(credentials).transpose()?;
        Ok(Self { host, port, credentials, uri })
    }
}

fn credentials(user_info: &str) -> Result<Credentials, UrlError> {
    let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
    let user = percent_decoded(user)?;
    // RFC 7617 section 2: the first colon ends the name.
    if user.contains(&b':') {
        return Err(UrlError::UserInfo);
    }
    Ok(Credentials { user, password: percent_decoded(password)? })
}

fn percent_decoded(text: &str) -> Result<Vec<u8>, UrlError> {
    let mut parts = text.split('%');
    let mut out = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|two| two.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(byte.ok_or(UrlError::UserInfo)?);
        out.extend_from_slice(&part.as_bytes()[2..]);
    }
    Ok(out)
}

/// A server's URL.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) is_secure: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// The value of Host: without the port if it is the scheme's.
    pub(super) authority: String,
    /// The path and the query.
    pub(super) resource: String,
    pub(super) credentials: Option<Credentials>,
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Self, UrlError> {
        let parts = Parts::parse(url)?;
        let scheme = parts.uri.scheme_str().unwrap_or_default();
        let (is_secure, default) = match &*scheme.to_ascii_lowercase() {
            "ws" => (false, 80),
            "wss" => (true, 443),
            _ => return Err(UrlError::Scheme),
        };
        let port = parts.port.unwrap_or(default);
        let bare = parts.uri.host().unwrap_or_default();
        let authority = if port == default { bare.to_owned() } else { format!("{bare}:{port}") };
        let resource = match parts.uri.path_and_query().map_or("", |resource| resource.as_str()) {
            resource if resource.starts_with('/') => resource.to_owned(),
            resource => format!("/{resource}"),
        };
        let Parts { host, credentials, .. } = parts;
        Ok(Self { is_secure, host, port, authority, resource, credentials })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Target {
        Target::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn a_url_has_a_host_a_port_and_a_resource() {
        let cases = [
            ("ws://a.example", "a.example", 80, "a.example", "/"),
            ("ws://a.example:80/x", "a.example", 80, "a.example", "/x"),
            ("wss://a.example/x?y=%20z", "a.example", 443, "a.example", "/x?y=%20z"),
            ("wss://a.example?y", "a.example", 443, "a.example", "/?y"),
            ("WS://127.0.0.1:8080/", "127.0.0.1", 8080, "127.0.0.1:8080", "/"),
            ("ws://[::1]:9/", "::1", 9, "[::1]:9", "/"),
            ("wss://[2001:db8::1]", "2001:db8::1", 443, "[2001:db8::1]", "/"),
        ];
        for (url, host, port, authority, resource) in cases {
            let it = target(url);
            assert_eq!(
                (&*it.host, it.port, &*it.authority, &*it.resource, it.is_secure),
                (host, port, authority, resource, url.starts_with("wss")),
                "{url}"
            );
        }
    }

    #[test]
    fn bad_urls_say_what_is_bad() {
        let cases = [
            ("", UrlError::Malformed),
            ("/chat", UrlError::Malformed),
            ("a.example", UrlError::Malformed),
            ("ws://", UrlError::Malformed),
            ("ws:///x", UrlError::Malformed),
            ("ws://a b/", UrlError::Malformed),
            ("ws://bücher.example/", UrlError::Malformed),
            ("http://a.example/", UrlError::Scheme),
            ("ws://a.example/#top", UrlError::Fragment),
            ("ws://a.example#", UrlError::Fragment),
            ("ws://a.example:0/", UrlError::Port),
            ("ws://a.example:65536/", UrlError::Port),
            ("ws://a.example:/", UrlError::Port),
            ("ws://%zz@a.example/", UrlError::UserInfo),
            ("ws://a%3Ab:c@a.example/", UrlError::UserInfo),
        ];
        for (url, error) in cases {
            assert_eq!(Target::parse(url).err(), Some(error), "{url}");
        }
    }

    #[test]
    fn a_user_becomes_a_value_of_authorization_and_is_not_shown() {
        let it = target("ws://Aladdin:open%20sesame@a.example:81/");
        assert_eq!(it.authority, "a.example:81");
        let credentials = it.credentials.expect("it has a user");
        // RFC 7617 section 2.
        assert_eq!(credentials.basic(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(format!("{credentials:?}"), "(hidden)");
    }
}
