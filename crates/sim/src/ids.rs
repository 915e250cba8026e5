//! Names of descriptors, hosts and actors, addresses, and the bits of readiness.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::slab;

/// A simulated descriptor. No descriptor of the process stands behind it.
///
/// The low 32 bits are a slot, which is used again at once, as numbers of descriptors are. The
/// whole is never used again, so a call with a closed descriptor is `EBADF` and reaches no other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fd(u64);

impl Fd {
    /// The descriptor that [`as_raw`](Self::as_raw) was made of.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The slot in the low 32 bits, the generation in the high ones.
    #[must_use]
    pub const fn as_raw(self) -> u64 {
        self.0
    }

    /// The slot, which descriptors use one after the other.
    #[must_use]
    pub fn slot(self) -> u32 {
        slab::slot_of(self.0)
    }
}

impl fmt::Display for Fd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot(), self.0 >> 32)
    }
}

impl fmt::Debug for Fd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fd({self})")
    }
}

/// A simulated machine with one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub(crate) u32);

/// Something that the scheduler runs: a loop, or a simulated thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActorId(pub(crate) u32);

impl ActorId {
    /// The number of actors that were made before it.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The address of a simulated socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SimAddr {
    /// Of TCP or UDP. A loopback address is the socket's own host.
    Inet(SocketAddr),
    /// The path of a Unix socket on its host, if it has one.
    Unix(Option<Box<str>>),
}

impl SimAddr {
    /// The path of a Unix socket.
    #[must_use]
    pub fn unix(path: &str) -> Self {
        Self::Unix(Some(path.into()))
    }

    /// The address and port of a TCP or UDP socket.
    #[must_use]
    pub fn inet(&self) -> Option<SocketAddr> {
        match self {
            Self::Inet(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for SimAddr {
    fn from(address: SocketAddr) -> Self {
        Self::Inet(address)
    }
}

impl From<(IpAddr, u16)> for SimAddr {
    fn from(parts: (IpAddr, u16)) -> Self {
        Self::Inet(parts.into())
    }
}

impl fmt::Display for SimAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(address) => address.fmt(f),
            Self::Unix(Some(path)) => write!(f, "unix:{path}"),
            Self::Unix(None) => f.write_str("unix"),
        }
    }
}

/// The kinds of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// A stream between hosts.
    Tcp,
    /// A stream inside a host.
    Unix,
    /// Datagrams between hosts.
    Udp,
}

/// The bits of readiness and of interest, with the values of epoll(7).
pub mod mask {
    /// There is input, or the end of it, or a connection to accept.
    pub const IN: u32 = 0x1;
    /// Urgent data.
    pub const PRI: u32 = 0x2;
    /// Output has room.
    pub const OUT: u32 = 0x4;
    /// An error. It is always reported.
    pub const ERR: u32 = 0x8;
    /// Both directions have ended. It is always reported.
    pub const HUP: u32 = 0x10;
    /// The peer sends no more.
    pub const RDHUP: u32 = 0x2000;
    /// One or more of several sets are told.
    pub const EXCLUSIVE: u32 = 1 << 28;
    /// Disabled by the first event, until it is modified.
    pub const ONESHOT: u32 = 1 << 30;
    /// Edge-triggered.
    pub const ET: u32 = 1 << 31;
    /// Bits that change how events are reported.
    pub(crate) const MODES: u32 = EXCLUSIVE | ONESHOT | ET;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_and_addresses_can_be_read() {
        assert_eq!(Fd::from_raw(3 << 32 | 7).to_string(), "7.3");
        assert_eq!(SimAddr::unix("/a").to_string(), "unix:/a");
        let address: SocketAddr = "10.0.0.1:80".parse().expect("an address");
        assert_eq!(SimAddr::from(address).inet(), Some(address));
    }
}
