//! Checks which hosts clients may ask for, as protection against DNS rebinding.

use core::{fmt, str::FromStr};
use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use windlass::stream::Address;
use windlass_ws::handshake::Request;

use super::{
    Reject,
    origin::{self, authority},
};

/// The hosts that clients may ask for: the name in the Host header, without the port.
///
/// The owner of a domain can make its name resolve to `127.0.0.1`. A browser then treats this
/// server as part of that domain, and [`Origins::Same`](super::Origins::Same) lets the domain's
/// pages connect (DNS rebinding). The Host header reveals the attack, because it contains the
/// domain's name.
///
/// Names are compared case-insensitively and without a trailing dot, addresses by value. Ports are
/// not compared. A request without a Host, which only HTTP/1.0 can send, is allowed.
///
/// A server that listens on all addresses of its machine is exposed in the same way. It does not
/// know its own names, so list them.
///
/// ```
/// use windlass::stream::Address;
/// use windlass_server::http::{Hosts, HostsError};
///
/// let loopback = Address::Ip("127.0.0.1:80".parse().expect("an address"));
/// assert!(Hosts::Local.allow(Some("localhost:80"), &loopback));
/// assert!(!Hosts::Local.allow(Some("example.com"), &loopback));
/// let hosts = Hosts::parse(&["example.com", "192.0.2.1"])?;
/// assert!(hosts.allow(Some("EXAMPLE.com:8080"), &loopback));
/// # Ok::<(), HostsError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Hosts {
    /// If the server listens on a loopback address: `localhost` and loopback addresses. Otherwise,
    /// and on a Unix socket: every host.
    #[default]
    Local,
    /// Every host.
    Any,
    /// These hosts. On a loopback address and on a Unix socket, also `localhost` and loopback
    /// addresses.
    List(Vec<HostName>),
}

/// A host as a client asks for it: a name like `example.com`, or an IP address.
///
/// ```
/// use windlass_server::http::{HostError, HostName};
///
/// let host: HostName = "Example.com".parse()?;
/// assert_eq!(host.to_string(), "example.com");
/// assert_eq!("2001:db8::1".parse::<HostName>()?.to_string(), "[2001:db8::1]");
/// # Ok::<(), HostError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HostName(HostKind);

#[derive(Clone, PartialEq, Eq, Hash)]
enum HostKind {
    /// In lower case, without a trailing dot.
    Name(Box<str>),
    Ip(IpAddr),
}

/// Why a text is not a host.
///
/// ```
/// use windlass_server::http::{HostError, HostName};
///
/// assert_eq!("https://example.com".parse::<HostName>(), Err(HostError::Url));
/// assert_eq!("example.com:80".parse::<HostName>(), Err(HostError::Port));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostError {
    /// The text is a URL, or has a path.
    Url,
    /// The text contains a port.
    Port,
    /// The text contains a `*`.
    Wildcard,
    /// The text is empty, or has invalid characters.
    Name,
    /// `any` is in a list with other elements.
    Word,
}

/// Describes an invalid element in a list of hosts.
///
/// ```
/// use windlass_server::http::{HostError, Hosts};
///
/// let error = Hosts::parse(&["example.com", "*.example.com"]).unwrap_err();
/// assert_eq!((error.index, error.reason), (1, HostError::Wildcard));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostsError {
    /// Index of the element, from 0.
    pub index: usize,
    /// The reason why the element is invalid.
    pub reason: HostError,
}

/// The kind of address on which a connection was accepted, as far as the Host check depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerKind {
    Loopback,
    Unix,
    Network,
}

impl ListenerKind {
    /// Returns the kind of a server that listens at this address.
    pub(crate) fn of(listening: &Address) -> Self {
        match listening.ip() {
            Some(ip) if ip.to_canonical().is_loopback() => Self::Loopback,
            Some(_) => Self::Network,
            None => Self::Unix,
        }
    }
}

impl Hosts {
    /// Parses `any`, or a list of hosts. An empty list means [`Local`](Self::Local).
    ///
    /// # Errors
    /// - [`HostsError`], with the first invalid element and the reason.
    pub fn parse<T: AsRef<str>>(words: &[T]) -> Result<Self, HostsError> {
        match words {
            [] => return Ok(Self::Local),
            [word] if word.as_ref() == "any" => return Ok(Self::Any),
            _ => {}
        }
        let host = |(index, word): (usize, &T)| {
            let host =
                if word.as_ref() == "any" { Err(HostError::Word) } else { word.as_ref().parse() };
            host.map_err(|reason| HostsError { index, reason })
        };
        words.iter().enumerate().map(host).collect::<Result<_, _>>().map(Self::List)
    }

    /// Checks whether a server that listens at this address may answer this request.
    ///
    /// # Errors
    /// - A [`Reject`] with status 421, whose text says how to allow the host.
    pub fn check(&self, request: &Request<'_>, listening: &Address) -> Result<(), Reject> {
        self.check_at(request, ListenerKind::of(listening))
    }

    #[inline]
    pub(crate) fn check_at(
        &self,
        request: &Request<'_>,
        listener_kind: ListenerKind,
    ) -> Result<(), Reject> {
        if matches!(
            (self, listener_kind),
            (Self::Any, _) | (Self::Local, ListenerKind::Unix | ListenerKind::Network)
        ) {
            return Ok(());
        }
        let Some(host) = request.host() else { return Ok(()) };
        if self.allows_host(host, listener_kind) { Ok(()) } else { Err(rejection(host)) }
    }

    /// The same check for servers that have parsed the request themselves. The argument is the host
    /// and port that the request is for, if present.
    #[must_use]
    pub fn allow(&self, host: Option<&str>, listening: &Address) -> bool {
        let listener_kind = ListenerKind::of(listening);
        let is_unchecked = matches!(
            (self, listener_kind),
            (Self::Any, _) | (Self::Local, ListenerKind::Unix | ListenerKind::Network)
        );
        is_unchecked || host.is_none_or(|host| self.allows_host(host, listener_kind))
    }

    fn allows_host(&self, host: &str, listener_kind: ListenerKind) -> bool {
        let Some(host) = requested_host(host) else { return false };
        let is_local = match host {
            RequestedHost::Name(name) => name.eq_ignore_ascii_case("localhost"),
            RequestedHost::Ip(ip) => ip.is_loopback(),
        };
        if is_local && listener_kind != ListenerKind::Network {
            return true;
        }
        let Self::List(list) = self else { return false };
        list.iter().any(|HostName(allowed)| match (allowed, host) {
            (HostKind::Name(allowed), RequestedHost::Name(name)) => {
                name.eq_ignore_ascii_case(allowed)
            }
            (HostKind::Ip(allowed), RequestedHost::Ip(ip)) => *allowed == ip,
            _ => false,
        })
    }
}

/// The host that a request asks for.
#[derive(Clone, Copy)]
enum RequestedHost<'a> {
    /// Without a trailing dot.
    Name(&'a str),
    Ip(IpAddr),
}

/// Splits the host off an optional port. Returns `None` if it is neither a name nor an address.
fn requested_host(host: &str) -> Option<RequestedHost<'_>> {
    match authority(host).ok()?.0 {
        origin::Host::Ipv6(ip) => Some(RequestedHost::Ip(IpAddr::V6(ip).to_canonical())),
        origin::Host::Name(name) => match name.parse::<Ipv4Addr>() {
            Ok(ip) => Some(RequestedHost::Ip(ip.into())),
            Err(_) => Some(RequestedHost::Name(name.strip_suffix('.').unwrap_or(name))),
        },
    }
}

#[cold]
fn rejection(host: &str) -> Reject {
    let text = match requested_host(host) {
        // A text that parses as a host has no characters that could do harm in a message.
        Some(host) => {
            let host = match host {
                RequestedHost::Name(name) => {
                    HostName(HostKind::Name(name.to_ascii_lowercase().into()))
                }
                RequestedHost::Ip(ip) => HostName(HostKind::Ip(ip)),
            };
            Cow::Owned(format!(
                "this server does not answer requests for the host {host}; if that is its name, \
                 allow it with \
                 `--host {host}` (in the library: Options::hosts)"
            ))
        }
        None => Cow::Borrowed("the Host header is neither a name nor an address"),
    };
    Reject::status(421).text(text)
}

impl FromStr for HostName {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        if text.contains('/') {
            return Err(HostError::Url);
        }
        if text.contains('*') {
            return Err(HostError::Wildcard);
        }
        // An IPv6 address has brackets in a URL, and none elsewhere.
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Ok(ip) = bare.unwrap_or(text).parse::<Ipv6Addr>() {
            return Ok(Self(HostKind::Ip(IpAddr::V6(ip).to_canonical())));
        }
        if text.contains(':') {
            return Err(HostError::Port);
        }
        match requested_host(text) {
            Some(RequestedHost::Ip(ip)) => Ok(Self(HostKind::Ip(ip))),
            Some(RequestedHost::Name(name)) if !name.is_empty() => {
                Ok(Self(HostKind::Name(name.to_ascii_lowercase().into())))
            }
            _ => Err(HostError::Name),
        }
    }
}

impl fmt::Display for HostName {
    /// Formats the host as in a URL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            HostKind::Name(name) => f.write_str(name),
            HostKind::Ip(IpAddr::V4(ip)) => ip.fmt(f),
            HostKind::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
        }
    }
}

impl fmt::Debug for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostName({self})")
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url => "a host is a name or an address: no scheme, no slash, no path",
            Self::Port => "a host has no port here: it is allowed with every port",
            Self::Wildcard => "a host has no `*`: list each one, or allow `any`",
            Self::Name => {
                "a host is a name of ASCII characters (others in punycode, xn--…) or an IP \
                 address"
            }
            Self::Word => "`any` cannot be combined with other hosts",
        })
    }
}

impl core::error::Error for HostError {}

impl fmt::Display for HostsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {}: {}", self.index + 1, self.reason)
    }
}

impl core::error::Error for HostsError {}

#[cfg(test)]
mod tests;
