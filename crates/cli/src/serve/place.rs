//! `--listen`: where the server listens, and whether with TLS.

use std::{
    fmt, io,
    net::{SocketAddr, ToSocketAddrs as _},
    str::FromStr,
};

/// Why a place cannot be parsed.
const EXPECTED: &str = "it is no ADDRESS:PORT or NAME:PORT, with http:// or tcp:// before it for \
                        plain text, or https:// or tls:// for TLS";

/// A value of `--listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenPlace {
    /// Whether it has TLS. `None`: if there is a certificate.
    pub(crate) tls: Option<bool>,
    pub(crate) host: ListenHost,
}

/// An address, or a name that has some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenHost {
    Address(SocketAddr),
    Name(String, u16),
}

impl ListenPlace {
    /// Returns its addresses. A name is looked up.
    pub(crate) fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        match &self.host {
            ListenHost::Address(address) => Ok(vec![*address]),
            ListenHost::Name(name, port) => {
                let mut addresses: Vec<_> = (name.as_str(), *port).to_socket_addrs()?.collect();
                addresses.sort_unstable();
                addresses.dedup();
                Ok(addresses)
            }
        }
    }
}

impl FromStr for ListenPlace {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let schemes = [("http://", false), ("tcp://", false), ("https://", true), ("tls://", true)];
        let scheme = schemes.into_iter().find_map(|(scheme, tls)| {
            let rest = text.strip_prefix(scheme)?;
            Some((Some(tls), rest.strip_suffix('/').unwrap_or(rest)))
        });
        let (tls, place) = scheme.unwrap_or((None, text));
        if let Ok(address) = place.parse() {
            return Ok(Self { tls, host: ListenHost::Address(address) });
        }
        let (name, port) = place.rsplit_once(':').ok_or(EXPECTED)?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        match port.parse() {
            Ok(port) if !name.is_empty() && name.bytes().all(is_name) => {
                Ok(Self { tls, host: ListenHost::Name(name.to_owned(), port) })
            }
            _ => Err(EXPECTED),
        }
    }
}

impl fmt::Display for ListenPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.tls {
            None => "",
            Some(false) => "http://",
            Some(true) => "https://",
        })?;
        match &self.host {
            ListenHost::Address(address) => address.fmt(f),
            ListenHost::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_address_or_a_name_with_a_port_and_perhaps_a_scheme() {
        let address = "[::1]:9".parse().expect("an address");
        for (text, tls, host) in [
            ("[::1]:9", None, ListenHost::Address(address)),
            ("https://[::1]:9", Some(true), ListenHost::Address(address)),
            ("tcp://[::1]:9/", Some(false), ListenHost::Address(address)),
            ("tls://a-b.example:80", Some(true), ListenHost::Name("a-b.example".to_owned(), 80)),
            ("localhost:0", None, ListenHost::Name("localhost".to_owned(), 0)),
        ] {
            assert_eq!(text.parse(), Ok(ListenPlace { tls, host }), "{text}");
        }
        for nonsense in [
            "",
            "9001",
            ":9001",
            "localhost",
            "a:70000",
            "ws://a:1",
            "http://a:1/b",
            "a b:1",
            "::1:x",
        ] {
            assert_eq!(nonsense.parse::<ListenPlace>(), Err(EXPECTED), "{nonsense}");
        }
    }

    #[test]
    fn a_name_has_each_of_its_addresses_once() {
        let place: ListenPlace = "localhost:7".parse().expect("a place");
        let addresses = place.resolve().expect("it is in each system's files");
        assert!(addresses.iter().all(|address| address.ip().is_loopback() && address.port() == 7));
        assert!(!addresses.is_empty() && addresses.is_sorted_by(|a, b| a < b), "{addresses:?}");
    }
}
