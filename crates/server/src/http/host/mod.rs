//! Which hosts clients may ask for: what keeps DNS rebinding out.

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

/// Which hosts clients may ask for: the name in the Host header, without the port.
///
/// Whoever owns a domain can let its name resolve to `127.0.0.1`. A browser then takes this server
/// for that domain's own, and [`Origins::Same`](super::Origins::Same) lets its pages connect (DNS
/// rebinding). What gives them away is the Host header, which has the domain's name.
///
/// Names are compared ignoring the letters' case and a dot at the end, addresses by value. Ports
/// are not compared. A request without a Host, which only HTTP/1.0 can send, is allowed.
///
/// A server that listens on all addresses of its machine can be reached in the same way, and does
/// not know its names: list them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Hosts {
    /// Where the server listens on a loopback address: `localhost` and loopback addresses.
    /// Elsewhere, and on a Unix socket: every host.
    #[default]
    Local,
    /// Every host.
    Any,
    /// These hosts. On a loopback address and on a Unix socket `localhost` and loopback addresses
    /// too.
    List(Vec<HostName>),
}

/// A host as it is asked for: a name like `example.com`, or an IP address.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HostName(Kind);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Kind {
    /// In small letters, without a dot at the end.
    Name(Box<str>),
    Ip(IpAddr),
}

/// Why a text is no host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostError {
    /// It is a URL, or has a path.
    Url,
    /// There is a port.
    Port,
    /// There is a `*` in it.
    Wildcard,
    /// It is empty, or has characters that hosts have not.
    Name,
    /// `any` beside others in a list.
    Word,
}

/// What is wrong in a list of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostsError {
    /// Which element it is, from 0.
    pub index: usize,
    /// What is wrong with it.
    pub reason: HostError,
}

/// Through what a connection comes in, as far as its Host header matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    Loopback,
    Unix,
    Network,
}

impl Door {
    /// That of a server which listens here.
    pub(crate) fn of(listening: &Address) -> Self {
        match listening.ip() {
            Some(ip) if ip.to_canonical().is_loopback() => Self::Loopback,
            Some(_) => Self::Network,
            None => Self::Unix,
        }
    }
}

impl Hosts {
    /// Reads `any`, or a list of hosts. An empty list is [`Local`](Self::Local).
    ///
    /// # Errors
    /// [`HostsError`] says which element is wrong.
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

    /// Whether this request may be answered by a server that listens at this address.
    ///
    /// # Errors
    /// A [`Reject`] with status 421, whose text says how to allow the host.
    pub fn check(&self, request: &Request<'_>, listening: &Address) -> Result<(), Reject> {
        self.check_at(request, Door::of(listening))
    }

    #[inline]
    pub(crate) fn check_at(&self, request: &Request<'_>, door: Door) -> Result<(), Reject> {
        if matches!((self, door), (Self::Any, _) | (Self::Local, Door::Unix | Door::Network)) {
            return Ok(());
        }
        let Some(host) = request.host() else { return Ok(()) };
        if self.lists(host, door) { Ok(()) } else { Err(refusal(host)) }
    }

    /// The same for servers that have read the request themselves: the host and port that it is
    /// for, if it says so.
    #[must_use]
    pub fn allow(&self, host: Option<&str>, listening: &Address) -> bool {
        let door = Door::of(listening);
        let is_unchecked =
            matches!((self, door), (Self::Any, _) | (Self::Local, Door::Unix | Door::Network));
        is_unchecked || host.is_none_or(|host| self.lists(host, door))
    }

    fn lists(&self, host: &str, door: Door) -> bool {
        let Some(host) = asked_for(host) else { return false };
        let is_local = match host {
            Asked::Name(name) => name.eq_ignore_ascii_case("localhost"),
            Asked::Ip(ip) => ip.is_loopback(),
        };
        if is_local && door != Door::Network {
            return true;
        }
        let Self::List(list) = self else { return false };
        list.iter().any(|HostName(allowed)| match (allowed, host) {
            (Kind::Name(allowed), Asked::Name(name)) => name.eq_ignore_ascii_case(allowed),
            (Kind::Ip(allowed), Asked::Ip(ip)) => *allowed == ip,
            _ => false,
        })
    }
}

/// What a request asks for.
#[derive(Clone, Copy)]
enum Asked<'a> {
    /// Without a dot at the end.
    Name(&'a str),
    Ip(IpAddr),
}

/// The host of a host with an optional port. `None` where it is neither a name nor an address.
fn asked_for(host: &str) -> Option<Asked<'_>> {
    match authority(host).ok()?.0 {
        origin::Host::Ipv6(ip) => Some(Asked::Ip(IpAddr::V6(ip).to_canonical())),
        origin::Host::Name(name) => match name.parse::<Ipv4Addr>() {
            Ok(ip) => Some(Asked::Ip(ip.into())),
            Err(_) => Some(Asked::Name(name.strip_suffix('.').unwrap_or(name))),
        },
    }
}

#[cold]
fn refusal(host: &str) -> Reject {
    let text = match asked_for(host) {
        // What has been read as a host has no character that could do harm in a text.
        Some(host) => {
            let host = match host {
                Asked::Name(name) => HostName(Kind::Name(name.to_ascii_lowercase().into())),
                Asked::Ip(ip) => HostName(Kind::Ip(ip)),
            };
            Cow::Owned(format!(
                "this server does not answer requests for the host {host}; if that is its name, allow it with \
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
        // An address of IPv6 has brackets in a URL, and elsewhere none.
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Ok(ip) = bare.unwrap_or(text).parse::<Ipv6Addr>() {
            return Ok(Self(Kind::Ip(IpAddr::V6(ip).to_canonical())));
        }
        if text.contains(':') {
            return Err(HostError::Port);
        }
        match asked_for(text) {
            Some(Asked::Ip(ip)) => Ok(Self(Kind::Ip(ip))),
            Some(Asked::Name(name)) if !name.is_empty() => {
                Ok(Self(Kind::Name(name.to_ascii_lowercase().into())))
            }
            _ => Err(HostError::Name),
        }
    }
}

impl fmt::Display for HostName {
    /// As it stands in a URL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Name(name) => f.write_str(name),
            Kind::Ip(IpAddr::V4(ip)) => ip.fmt(f),
            Kind::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
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
                "a host is a name of ASCII characters (others in punycode, xn--…) or an IP address"
            }
            Self::Word => "`any` stands alone, not in a list",
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
