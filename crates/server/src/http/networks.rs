//! Networks whose members are trusted as proxies.

use core::{fmt, str::FromStr};
use std::net::IpAddr;

use ipnet::IpNet;
use windlass::stream::Address;

use super::forwarded::ForwardedHeader;

/// A set of networks. The default is the empty set.
///
/// ```
/// use windlass_server::http::Networks;
///
/// let networks = Networks::parse(&["10.0.0.0/8", "2001:db8::/32", "192.0.2.1", "unix"])?;
/// let address = |text: &str| windlass_server::Address::Ip(text.parse().expect("an address"));
/// assert!(networks.contains(&address("10.1.2.3:80")));
/// // The same address as a socket for both families sees it.
/// assert!(networks.contains(&address("[::ffff:10.1.2.3]:80")));
/// assert!(!networks.contains(&address("192.0.2.2:80")));
/// # Ok::<(), windlass_server::http::NetworksError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    networks: Vec<IpNet>,
    has_unix: bool,
}

/// Describes an invalid element in a list of networks.
///
/// ```
/// use windlass_server::http::Networks;
///
/// let error = Networks::parse(&["::1", "10.0.0.0/33"]).unwrap_err();
/// assert_eq!(error.index, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetworksError {
    /// Index of the element, from 0.
    pub index: usize,
}

impl fmt::Display for NetworksError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "element {} is no network: write an address, ADDRESS/BITS, or `unix` for Unix sockets",
            self.index + 1
        )
    }
}

impl core::error::Error for NetworksError {}

impl Networks {
    /// Parses addresses, networks as `ADDRESS/BITS`, and `unix`, which means all clients of Unix
    /// sockets.
    ///
    /// # Errors
    /// - [`NetworksError`], with the first invalid element.
    pub fn parse<T: AsRef<str>>(words: &[T]) -> Result<Self, NetworksError> {
        let mut all = Self::default();
        for (index, word) in words.iter().enumerate() {
            let word = word.as_ref();
            if word == "unix" {
                all.has_unix = true;
                continue;
            }
            let address = IpAddr::from_str(word).map(|ip| IpNet::from(ip.to_canonical()));
            let network = address.ok().or_else(|| canonical(word.parse().ok()?));
            all.networks.push(network.ok_or(NetworksError { index })?);
        }
        Ok(all)
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && !self.has_unix
    }

    /// Returns whether an address is in one of the networks. An IPv4-mapped IPv6 address counts as
    /// the IPv4 address.
    #[must_use]
    pub fn contains(&self, address: &Address) -> bool {
        let Some(ip) = address.ip() else { return self.has_unix };
        let ip = ip.to_canonical();
        self.networks.iter().any(|network| network.contains(&ip))
    }
}

/// Converts a network of IPv4-mapped addresses, as those are compared as IPv4 addresses. One that
/// reaches beyond them would contain none of them.
fn canonical(network: IpNet) -> Option<IpNet> {
    let address = network.addr();
    match address.to_canonical() {
        same if same == address => Some(network),
        mapped => IpNet::new(mapped, network.prefix_len().checked_sub(96)?).ok(),
    }
}

/// Proxies in front of a server, whose statements about clients are believed.
///
/// Limits by address, [`UpgradeRequest::peer`](super::UpgradeRequest::peer),
/// [`Connection::peer`](crate::Connection::peer) and [`Rejected::peer`](crate::Rejected::peer) then
/// mean the client. The default trusts nobody.
///
/// ```
/// use windlass_server::{Options, http::Networks};
///
/// let mut options = Options::new();
/// // haproxy with `send-proxy-v2`.
/// options.proxies.proxy_protocol = Networks::parse(&["10.0.0.0/24"])?;
/// // nginx with `proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for`.
/// options.proxies.forwarded = Networks::parse(&["127.0.0.1", "unix"])?;
/// # Ok::<(), windlass_server::http::NetworksError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Proxies {
    /// Peers whose connections begin with a header of the PROXY protocol, version 1 or 2, before
    /// TLS. A connection of such a peer without one is closed. From other peers such a header is a
    /// malformed request.
    pub proxy_protocol: Networks,
    /// Peers whose [`forwarded_header`](Self::forwarded_header) is believed. The client is the
    /// rightmost address in it that is not in these networks. They may also be peers that the
    /// PROXY protocol states.
    ///
    /// Clients are counted at their requests here. A WebSocket beyond a limit of its address gets
    /// status 429.
    pub forwarded: Networks,
    /// The header in which the client's address is. Default: `X-Forwarded-For`.
    pub forwarded_header: ForwardedHeader,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_mapped_addresses_are_those_of_ipv4() {
        let parse = |word: &str| Networks::parse(&[word]);
        assert_eq!(parse("::ffff:10.0.0.0/104"), parse("10.0.0.0/8"));
        assert_eq!(parse("::ffff:192.0.2.1/128"), parse("192.0.2.1"));
        assert_eq!(parse("::ffff:0.0.0.0/96"), parse("0.0.0.0/0"));
        let networks = parse("::ffff:10.0.0.0/104").expect("it is a network");
        let address = |text: &str| Address::Ip(text.parse().expect("an address"));
        assert!(networks.contains(&address("10.1.2.3:80")));
        assert!(!networks.contains(&address("11.1.2.3:80")));
        for word in ["::ffff:10.0.0.0/95", "::ffff:10.0.0.0/129", "10.0.0.0/33", "", "x"] {
            assert_eq!(parse(word), Err(NetworksError { index: 0 }), "{word}");
        }
    }
}
