//! Checks which pages may connect (RFC 6454, RFC 6455 section 10.2).

use core::{fmt, str::FromStr};
use std::net::Ipv6Addr;

use windlass_ws::handshake::Request;

use super::Reject;

/// The pages that may connect. A browser sends a server's cookies with every connection to it,
/// regardless of which page opens it. Only this check keeps other people's pages away.
///
/// A request without an Origin is always allowed. No browser sends one, and other programs can send
/// any Origin they like.
///
/// ```
/// use windlass_server::http::{Origins, OriginsError};
///
/// let own = Some("example.com");
/// assert!(Origins::Same.allow(Some(b"https://example.com"), own));
/// assert!(!Origins::Same.allow(Some(b"https://evil.example"), own));
/// let origins = Origins::parse(&["same", "https://partner.example"])?;
/// assert!(origins.allow(Some(b"https://partner.example"), own));
/// # Ok::<(), OriginsError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origins {
    /// Pages of this server: the origin's host and port must equal those that the request is for.
    /// On a connection with TLS the origin's scheme must be `https`. Without TLS the schemes are
    /// not compared, because a proxy may have terminated TLS. A missing port means the default port
    /// of the origin's scheme.
    ///
    /// This check cannot detect a domain whose name was made to resolve to this server (DNS
    /// rebinding); [`Hosts`](super::Hosts) can.
    #[default]
    Same,
    /// All pages.
    Any,
    /// Pages of these origins.
    List(Vec<Origin>),
    /// Pages of this server, as in [`Same`](Self::Same), and pages of these origins.
    SameOr(Vec<Origin>),
}

/// A scheme, a host and a port, for instance `https://example.com` or `http://localhost:8080`. It
/// can also be `null`, the origin of sandboxed documents and some local ones.
///
/// Scheme and host are case-insensitive. A missing port means the scheme's default.
///
/// ```
/// use windlass_server::http::{Origin, OriginError};
///
/// let origin: Origin = "HTTPS://Example.com:443".parse()?;
/// assert_eq!(origin.to_string(), "https://example.com");
/// # Ok::<(), OriginError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// As browsers write it: lower case, IPv6 in short form, no default port.
    text: Box<str>,
}

/// Why a text is not an origin.
///
/// ```
/// use windlass_server::http::{Origin, OriginError};
///
/// assert_eq!("example.com".parse::<Origin>(), Err(OriginError::Scheme));
/// assert_eq!("https://example.com/".parse::<Origin>(), Err(OriginError::Path));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OriginError {
    /// There is no scheme followed by `://`.
    Scheme,
    /// The scheme is `ws` or `wss`, that of a connection; an origin has the scheme of a page.
    WebSocketScheme,
    /// The text continues after the host and port.
    Path,
    /// There is user information before the host.
    User,
    /// The host is missing, or has invalid characters.
    Host,
    /// The text contains a `*`.
    Wildcard,
    /// The port is not a number from 0 to 65535.
    Port,
    /// `any` is in a list with other elements.
    Word,
}

/// Describes an invalid element in a list of origins.
///
/// ```
/// use windlass_server::http::{OriginError, Origins};
///
/// let error = Origins::parse(&["https://example.com", "wss://example.com"]).unwrap_err();
/// assert_eq!((error.index, error.reason), (1, OriginError::WebSocketScheme));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OriginsError {
    /// Index of the element, from 0.
    pub index: usize,
    /// The reason why the element is invalid.
    pub reason: OriginError,
}

impl Origins {
    /// Parses `any`, or a list of origins, in which `same` stands for the server's own origin. An
    /// empty list means `same`.
    ///
    /// # Errors
    /// - [`OriginsError`], with the first invalid element and the reason.
    pub fn parse<T: AsRef<str>>(words: &[T]) -> Result<Self, OriginsError> {
        match words {
            [] => return Ok(Self::Same),
            [word] if word.as_ref() == "same" => return Ok(Self::Same),
            [word] if word.as_ref() == "any" => return Ok(Self::Any),
            _ => {}
        }
        let (mut list, mut has_same) = (Vec::new(), false);
        for (index, word) in words.iter().enumerate() {
            match word.as_ref() {
                "same" => has_same = true,
                "any" => return Err(OriginsError { index, reason: OriginError::Word }),
                text => list.push(text.parse().map_err(|reason| OriginsError { index, reason })?),
            }
        }
        Ok(match (has_same, list.is_empty()) {
            (true, true) => Self::Same,
            (true, false) => Self::SameOr(list),
            (false, _) => Self::List(list),
        })
    }

    /// Checks whether the page that sent this request may connect.
    ///
    /// # Errors
    /// - A [`Reject`] with status 403, whose text says how to allow the page.
    pub fn check(&self, request: &Request<'_>) -> Result<(), Reject> {
        self.check_on(request, false)
    }

    /// [`check`](Self::check), with or without TLS.
    pub(crate) fn check_on(&self, request: &Request<'_>, has_tls: bool) -> Result<(), Reject> {
        // The check uses bytes, because a value that is not UTF-8 would look like a missing header.
        let Some(origin) = request.header_bytes("Origin") else { return Ok(()) };
        if self.allow_on(Some(origin), request.host(), has_tls) {
            return Ok(());
        }
        // A text that parses as an origin has no characters that could do harm in a message.
        let known = core::str::from_utf8(origin).ok().and_then(|origin| origin.parse().ok());
        Err(Reject::status(403).text(match known {
            Some(Origin { text }) => format!(
                "pages of {text} may not connect; to allow them, add {text} to the server's \
                     list of origins"
            )
            .into(),
            None => std::borrow::Cow::Borrowed("the Origin header is no origin"),
        }))
    }

    /// The same check for hosts that have parsed the request themselves. The arguments are the
    /// value of the Origin header, if present, and the host and port that the request is for.
    #[must_use]
    pub fn allow(&self, origin: Option<&[u8]>, host: Option<&str>) -> bool {
        self.allow_on(origin, host, false)
    }

    /// [`allow`](Self::allow) for a request on a connection with TLS: an own page has the scheme
    /// `https`.
    #[must_use]
    pub fn allow_with_tls(&self, origin: Option<&[u8]>, host: Option<&str>) -> bool {
        self.allow_on(origin, host, true)
    }

    fn allow_on(&self, origin: Option<&[u8]>, host: Option<&str>, has_tls: bool) -> bool {
        let Some(origin) = origin else { return true };
        if matches!(self, Self::Any) {
            return true;
        }
        let Some(origin) =
            core::str::from_utf8(origin).ok().and_then(|origin| OriginParts::read(origin).ok())
        else {
            return false;
        };
        if let Self::List(list) | Self::SameOr(list) = self {
            if list.iter().any(|allowed| OriginParts::read(&allowed.text) == Ok(origin)) {
                return true;
            }
        }
        match (self, origin) {
            (Self::List(_), _) => false,
            (_, OriginParts::Null) => false,
            (_, OriginParts::Page { scheme, .. })
                if has_tls && !scheme.eq_ignore_ascii_case("https") =>
            {
                false
            }
            (_, OriginParts::Page { scheme, host: page, port }) => {
                let own = host.and_then(|host| authority(host).ok());
                own.is_some_and(|(host, own)| host == page && own.or(default_port(scheme)) == port)
            }
        }
    }
}

impl FromStr for Origin {
    type Err = OriginError;

    fn from_str(text: &str) -> Result<Self, OriginError> {
        let text = match OriginParts::read(text)? {
            OriginParts::Null => "null".to_owned(),
            OriginParts::Page { scheme, host, port } => {
                let scheme = scheme.to_ascii_lowercase();
                let port = port.filter(|&port| default_port(&scheme) != Some(port));
                match port {
                    Some(port) => format!("{scheme}://{host}:{port}"),
                    None => format!("{scheme}://{host}"),
                }
            }
        };
        Ok(Self { text: text.into() })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Origin({})", self.text)
    }
}

/// The parts of an origin.
#[derive(Clone, Copy, Debug)]
enum OriginParts<'a> {
    Null,
    Page {
        scheme: &'a str,
        host: Host<'a>,
        /// The default port if none was written; `None` if the scheme has no default either.
        port: Option<u16>,
    },
}

impl<'a> OriginParts<'a> {
    fn read(text: &'a str) -> Result<Self, OriginError> {
        if text == "null" {
            return Ok(Self::Null);
        }
        if text.contains('*') {
            return Err(OriginError::Wildcard);
        }
        let (scheme, rest) = text.split_once("://").ok_or(OriginError::Scheme)?;
        // RFC 3986 section 3.1.
        let rest_is_good =
            scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        if !rest_is_good || !scheme.starts_with(|first: char| first.is_ascii_alphabetic()) {
            return Err(OriginError::Scheme);
        }
        if ["ws", "wss"].iter().any(|websocket| websocket.eq_ignore_ascii_case(scheme)) {
            return Err(OriginError::WebSocketScheme);
        }
        if rest.contains(['/', '?', '#']) {
            return Err(OriginError::Path);
        }
        // Some browsers send this for local files, which have no host.
        if rest.is_empty() && scheme.eq_ignore_ascii_case("file") {
            return Ok(Self::Page { scheme, host: Host::Name(""), port: None });
        }
        let (host, port) = authority(rest)?;
        Ok(Self::Page { scheme, host, port: port.or(default_port(scheme)) })
    }
}

impl PartialEq for OriginParts<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (
                Self::Page { scheme, host, port },
                Self::Page { scheme: scheme_2, host: host_2, port: port_2 },
            ) => scheme.eq_ignore_ascii_case(scheme_2) && host == host_2 && port == port_2,
            _ => false,
        }
    }
}

/// A host. Names are compared case-insensitively, addresses by value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Host<'a> {
    /// A name, or the four numbers of IPv4.
    Name(&'a str),
    Ipv6(Ipv6Addr),
}

impl PartialEq for Host<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(name), Self::Name(other)) => name.eq_ignore_ascii_case(other),
            (Self::Ipv6(address), Self::Ipv6(other)) => address == other,
            _ => false,
        }
    }
}

impl fmt::Display for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(&name.to_ascii_lowercase()),
            Self::Ipv6(address) => write!(f, "[{address}]"),
        }
    }
}

/// Splits a text into a host and an optional port.
pub(super) fn authority(text: &str) -> Result<(Host<'_>, Option<u16>), OriginError> {
    if text.contains('@') {
        return Err(OriginError::User);
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or(OriginError::Host)?;
            let address = address.parse().map_err(|_| OriginError::Host)?;
            (
                Host::Ipv6(address),
                if port.is_empty() {
                    None
                } else {
                    Some(port.strip_prefix(':').ok_or(OriginError::Host)?)
                },
            )
        }
        None => {
            let (host, port) =
                text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
            let is_good =
                |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()+,;=".contains(&byte);
            if host.is_empty() || !host.bytes().all(is_good) {
                return Err(OriginError::Host);
            }
            (Host::Name(host), port)
        }
    };
    // An empty port is the default one (RFC 3986 section 3.2.3).
    let port = port.filter(|port| !port.is_empty());
    let number = |port: &str| match port.bytes().all(|byte| byte.is_ascii_digit()) {
        true => port.parse().map_err(|_| OriginError::Port),
        false => Err(OriginError::Port),
    };
    Ok((host, port.map(number).transpose()?))
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        http if http.eq_ignore_ascii_case("http") => Some(80),
        https if https.eq_ignore_ascii_case("https") => Some(443),
        _ => None,
    }
}

impl fmt::Display for OriginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheme => "an origin starts with a scheme, as in https://example.com",
            Self::WebSocketScheme => {
                "an origin is that of a page: it starts with http:// or https://, not with ws:// \
                 or wss://"
            }
            Self::Path => "an origin ends with the host or port: no slash, path, query or fragment",
            Self::User => "an origin has no user",
            Self::Host => {
                "an origin needs a host of ASCII characters; other names are written in \
                 punycode (xn--…)"
            }
            Self::Wildcard => "an origin has no `*`: list each one, or allow `any`",
            Self::Port => "the port of an origin is a number from 0 to 65535",
            Self::Word => "`any` cannot be combined with other origins",
        })
    }
}

impl core::error::Error for OriginError {}

impl fmt::Display for OriginsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "origin {}: {}", self.index + 1, self.reason)
    }
}

impl core::error::Error for OriginsError {}

#[cfg(test)]
mod tests;
