//! [`ToAddresses`]: everything that a socket can be bound to or connected to.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
};

use crate::net::lookup;

/// Addresses, or a name with a port that is resolved first.
///
/// Implemented for socket addresses, pairs of an IP address and a port, slices and vectors of
/// addresses, strings (`"localhost:80"`, `"[::1]:80"`), and pairs of a name and a port. A name is
/// resolved as by [`lookup_host`](crate::net::lookup_host). An address in text form needs no
/// lookup.
///
/// The trait is sealed.
pub trait ToAddresses: sealed::Sealed {
    #[doc(hidden)]
    fn to_addresses(&self) -> Addresses;
}

mod sealed {
    pub trait Sealed {}
}

#[doc(hidden)]
#[derive(Debug)]
pub enum Addresses {
    /// One takes no allocation.
    One(SocketAddr),
    Known(Vec<SocketAddr>),
    /// `host:port`.
    Name(String),
}

/// Addresses that were looked up if necessary, at least one.
#[derive(Debug)]
pub(super) enum Resolved {
    One(SocketAddr),
    Many(Vec<SocketAddr>),
}

impl core::ops::Deref for Resolved {
    type Target = [SocketAddr];

    fn deref(&self) -> &Self::Target {
        match self {
            Self::One(address) => core::slice::from_ref(address),
            Self::Many(addresses) => addresses,
        }
    }
}

impl Addresses {
    pub(super) async fn resolve(self) -> io::Result<Resolved> {
        let addresses = match self {
            Self::One(address) => return Ok(Resolved::One(address)),
            Self::Known(addresses) => addresses,
            Self::Name(name) => lookup::resolve(name).await?,
        };
        if addresses.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the list of addresses is empty: give at least one",
            ));
        }
        Ok(Resolved::Many(addresses))
    }
}

/// Implements the trait by an expression.
macro_rules! to_addresses {
    ($([$($generics:tt)*] $type:ty, |$this:ident| $addresses:expr;)*) => {
        $(
            impl<$($generics)*> sealed::Sealed for $type {}

            impl<$($generics)*> ToAddresses for $type {
                fn to_addresses(&self) -> Addresses {
                    let $this = self;
                    $addresses
                }
            }
        )*
    };
}

fn known(address: impl Into<SocketAddr>) -> Addresses {
    Addresses::One(address.into())
}

fn named(name: &str) -> Addresses {
    name.parse::<SocketAddr>().map_or_else(|_| Addresses::Name(name.to_owned()), known)
}

fn named_with_port(host: &str, port: u16) -> Addresses {
    match host.parse::<IpAddr>() {
        Ok(ip) => known((ip, port)),
        Err(_) => Addresses::Name(format!("{host}:{port}")),
    }
}

to_addresses! {
    [] SocketAddr, |this| known(*this);
    [] SocketAddrV4, |this| known(*this);
    [] SocketAddrV6, |this| known(*this);
    [] (IpAddr, u16), |this| known(*this);
    [] (Ipv4Addr, u16), |this| known(*this);
    [] (Ipv6Addr, u16), |this| known(*this);
    [] [SocketAddr], |this| Addresses::Known(this.to_vec());
    [const N: usize] [SocketAddr; N], |this| Addresses::Known(this.to_vec());
    [] Vec<SocketAddr>, |this| Addresses::Known(this.clone());
    [] str, |this| named(this);
    [] String, |this| named(this);
    [] (&str, u16), |this| named_with_port(this.0, this.1);
    [] (String, u16), |this| named_with_port(&this.0, this.1);
    [A: ToAddresses + ?Sized] &A, |this| (**this).to_addresses();
}
