//! Proxies on the way to the server.

mod http_connect;
mod socks5;

use std::{fmt, io};

use windlass_ws::handshake::HandshakeError;

use super::{
    exchange::Dialogue,
    url::{Credentials, Parts, UrlError},
};
use http_connect::HttpConnect;
use socks5::Socks5;

/// A proxy. It resolves the host's name.
///
/// ```
/// use windlass_websocket::client::Proxy;
///
/// let proxy = Proxy::new("http://user:secret@proxy.example:3128")?;
/// assert!(!format!("{proxy:?}").contains("secret"));
/// # Ok::<(), windlass_websocket::client::UrlError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    kind: Kind,
    pub(super) host: String,
    pub(super) port: u16,
    credentials: Option<Credentials>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Http,
    Https,
    Socks5,
}

impl Proxy {
    /// A proxy from its URL: `http://host:port` for HTTP CONNECT (RFC 9110 section 9.3.6),
    /// `https://host:port` for the same over TLS to the proxy, `socks5://host:port` or
    /// `socks5h://host:port` for SOCKS5 (RFC 1928). All may have a user and a password, with percent
    /// encoding. The default ports are 80, 443 and 1080.
    ///
    /// # Errors
    /// See [`UrlError`]. SOCKS5 takes at most 255 bytes of user and of password.
    pub fn new(url: &str) -> Result<Self, UrlError> {
        let Parts { uri, host, port, credentials } = Parts::parse(url)?;
        let (kind, default) = match uri.scheme_str() {
            Some("http") => (Kind::Http, 80),
            Some("https") => (Kind::Https, 443),
            Some("socks5" | "socks5h") => (Kind::Socks5, 1080),
            _ => return Err(UrlError::Scheme),
        };
        if let (Kind::Socks5, Some(Credentials { user, password })) = (kind, &credentials) {
            if [user, password].into_iter().any(|it| it.is_empty() || it.len() > 255) {
                return Err(UrlError::UserInfo);
            }
        }
        Ok(Self { kind, host, port: port.unwrap_or(default), credentials })
    }

    /// Whether the connection to the proxy itself has TLS.
    pub(super) fn is_secure(&self) -> bool {
        self.kind == Kind::Https
    }

    /// The dialogue that makes the proxy connect to a host, and its first bytes.
    pub(super) fn dialogue(
        &self,
        host: &str,
        port: u16,
    ) -> Result<(ProxyDialogue, Vec<u8>), UrlError> {
        let credentials = self.credentials.as_ref();
        Ok(match self.kind {
            Kind::Http | Kind::Https => {
                let (dialogue, out) = HttpConnect::new(host, port, credentials);
                (ProxyDialogue::Http(dialogue), out)
            }
            Kind::Socks5 => {
                let (dialogue, out) = Socks5::new(host, port, credentials)?;
                (ProxyDialogue::Socks5(dialogue), out)
            }
        })
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("kind", &self.kind)
            .field("host", &self.host)
            .field("port", &self.port)
            .field("credentials", &self.credentials)
            .finish()
    }
}

/// Why a proxy did not connect to the host.
#[derive(Debug)]
#[non_exhaustive]
pub enum ProxyError {
    /// The HTTP proxy answered with this status. 407 means that it wants a user and a password, or
    /// others.
    Status(u16),
    /// The HTTP proxy's answer is no HTTP response, or its head is too long.
    Response(HandshakeError),
    /// The SOCKS proxy did not answer with version 5.
    SocksVersion(u8),
    /// The SOCKS proxy wants a user and a password, or another method of authentication than these.
    SocksMethod,
    /// The SOCKS proxy rejected the user or the password.
    SocksCredentials,
    /// The SOCKS proxy answered with this code (RFC 1928 section 6).
    SocksReply(u8),
    /// The SOCKS proxy's answer has an address of no known type.
    SocksAddress(u8),
    /// The proxy sent bytes behind its answer, before the server can have sent any.
    EarlyBytes,
    /// The proxy ended the connection before its answer was complete.
    Ended,
    /// The TLS handshake with the proxy failed. The source of the error is that of rustls.
    Tls(io::Error),
    /// Reading or writing failed.
    Io(io::Error),
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(407) => f.write_str(
                "the proxy answered with status 407: it wants a user and a password, or others",
            ),
            Self::Status(status) => write!(f, "the proxy answered with status {status}"),
            Self::Response(error) => write!(f, "the proxy's answer is no HTTP response: {error}"),
            Self::SocksVersion(version) => {
                write!(f, "the proxy answered with version {version} instead of SOCKS 5")
            }
            Self::SocksMethod => f.write_str(
                "the proxy accepts no authentication that this side offers: does it want a user \
                 and a password?",
            ),
            Self::SocksCredentials => f.write_str("the proxy rejected the user or the password"),
            Self::SocksReply(code) => {
                let meaning = match code {
                    1 => "general failure",
                    2 => "not allowed by its rules",
                    3 => "network unreachable",
                    4 => "host unreachable",
                    5 => "connection refused",
                    6 => "TTL expired",
                    7 => "command not supported",
                    8 => "address type not supported",
                    _ => "unknown",
                };
                write!(f, "the proxy could not connect: {meaning} (code {code})")
            }
            Self::SocksAddress(kind) => {
                write!(f, "the proxy's answer has an address of the unknown type {kind}")
            }
            Self::EarlyBytes => f.write_str("the proxy sent bytes that cannot be the server's"),
            Self::Ended => f.write_str("the proxy ended the connection before its answer"),
            Self::Tls(error) => write!(f, "the TLS handshake with the proxy failed: {error}"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ProxyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Response(error) => Some(error),
            Self::Tls(error) | Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// A dialogue with a proxy of either kind.
pub(super) enum ProxyDialogue {
    Http(HttpConnect),
    Socks5(Socks5),
}

impl Dialogue for ProxyDialogue {
    type Output = ();
    type Error = ProxyError;

    fn input(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Option<()>, ProxyError> {
        match self {
            Self::Http(dialogue) => dialogue.input(bytes),
            Self::Socks5(dialogue) => dialogue.input(bytes, out),
        }
    }

    fn end(&mut self) -> ProxyError {
        ProxyError::Ended
    }

    fn failed(&mut self, error: io::Error) -> ProxyError {
        ProxyError::Io(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_has_a_kind_and_a_default_port() {
        let cases = [
            ("http://p.example", Kind::Http, 80),
            ("http://p.example:3128/", Kind::Http, 3128),
            ("https://u:p@p.example", Kind::Https, 443),
            ("socks5://p.example", Kind::Socks5, 1080),
            ("socks5h://u:p@p.example:9", Kind::Socks5, 9),
        ];
        for (url, kind, port) in cases {
            let proxy = Proxy::new(url).expect(url);
            assert_eq!((proxy.kind, &*proxy.host, proxy.port), (kind, "p.example", port), "{url}");
        }
    }

    #[test]
    fn bad_urls_of_proxies_say_what_is_bad() {
        let long = format!("socks5://{}:p@p.example", "u".repeat(256));
        let cases = [
            ("ftp://p.example", UrlError::Scheme),
            ("socks4://p.example", UrlError::Scheme),
            ("socks5://u@p.example", UrlError::UserInfo),
            (&long, UrlError::UserInfo),
            ("p.example:3128", UrlError::Malformed),
        ];
        for (url, error) in cases {
            assert_eq!(Proxy::new(url), Err(error), "{url}");
        }
    }

    #[test]
    fn credentials_are_not_shown() {
        let proxy = Proxy::new("http://alice:sesame@p.example:1").expect("a proxy");
        let shown = format!("{proxy:?}");
        assert!(!shown.contains("alice") && !shown.contains("sesame"), "{shown}");
    }
}
