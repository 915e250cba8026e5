//! Addresses of streams and listeners.

use core::fmt;
use std::{
    ffi::OsStr,
    io,
    net::{IpAddr, SocketAddr},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::net::{SocketAddrAny, SocketAddrUnix};

/// Where one end of a stream is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// An IP address with a port.
    Ip(SocketAddr),
    /// A Unix socket, and its path if it has one: a client usually has none.
    Unix(Option<PathBuf>),
}

impl Address {
    /// The address and port, unless it is a Unix socket.
    #[must_use]
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// The address without its port, unless it is a Unix socket.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.socket_addr().map(|address| address.ip())
    }

    /// The path of a Unix socket that has one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Ip(_) => None,
            Self::Unix(path) => path.as_deref(),
        }
    }

    /// What the kernel has written; `None` from it is a Unix socket without a name.
    pub(super) fn of(any: Option<SocketAddrAny>) -> Result<Self, rustix::io::Errno> {
        let Some(any) = any else { return Ok(Self::Unix(None)) };
        if let Ok(ip) = SocketAddr::try_from(any.clone()) {
            return Ok(Self::Ip(ip));
        }
        let unix = SocketAddrUnix::try_from(any)?;
        Ok(Self::Unix(unix.path_bytes().map(|bytes| OsStr::from_bytes(bytes).into())))
    }

    pub(super) fn local_of(socket: impl AsFd) -> io::Result<Self> {
        Ok(Self::of(Some(rustix::net::getsockname(socket)?))?)
    }

    pub(super) fn peer_of(socket: impl AsFd) -> io::Result<Self> {
        Ok(Self::of(rustix::net::getpeername(socket)?)?)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix(Some(path)) => write!(f, "unix:{}", path.display()),
            Self::Unix(None) => f.write_str("unix:"),
        }
    }
}

/// A connection that has just been accepted, before it is a stream.
#[derive(Debug)]
pub struct Peer<'a> {
    pub(super) socket: BorrowedFd<'a>,
    pub(super) address: Address,
}

impl Peer<'_> {
    /// Where it comes from.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The IP address that it comes from, unless it is a Unix socket.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.address.ip()
    }
}

impl AsFd for Peer<'_> {
    /// The socket, to ask it more (`SO_PEERCRED`, say).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket
    }
}
