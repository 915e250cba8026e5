//! Addresses of streams and listeners.

use core::{cell::Cell, fmt};
use std::{
    ffi::OsStr,
    io,
    net::{IpAddr, SocketAddr},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::net::{SocketAddrAny, SocketAddrUnix};

use crate::{stream::socket::StreamSocket, vsock::VsockAddr};

/// The address of one end of a stream, or of a listener.
///
/// ```
/// use windlass::stream::{Address, Listener};
///
/// # fn main() -> std::io::Result<()> {
/// let listener = Listener::tcp("127.0.0.1:0".parse().unwrap())?;
/// match listener.local_addr()? {
///     Address::Ip(address) => println!("port {}", address.port()),
///     Address::Unix(path) => println!("{path:?}"),
///     other => println!("{other}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// An IP address with a port.
    Ip(SocketAddr),
    /// A Unix socket, with its path if it has one. A client usually has none.
    Unix(Option<PathBuf>),
    /// A socket between a virtual machine and its host.
    Vsock(VsockAddr),
}

impl Address {
    /// The IP address and port, or `None` for another socket.
    #[must_use]
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(*address),
            Self::Unix(_) | Self::Vsock(_) => None,
        }
    }

    /// The IP address without the port, or `None` for another socket.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.socket_addr().map(|address| address.ip())
    }

    /// The path of a Unix socket, if it has one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Unix(path) => path.as_deref(),
            Self::Ip(_) | Self::Vsock(_) => None,
        }
    }

    /// The context and port of a vsock socket.
    #[must_use]
    pub fn vsock_addr(&self) -> Option<VsockAddr> {
        match self {
            Self::Vsock(address) => Some(*address),
            Self::Ip(_) | Self::Unix(_) => None,
        }
    }

    /// Converts the kernel's address. `None` means a Unix socket without a name.
    pub(in crate::stream) fn of(any: Option<SocketAddrAny>) -> Result<Self, rustix::io::Errno> {
        let Some(any) = any else { return Ok(Self::Unix(None)) };
        if let Ok(ip) = SocketAddr::try_from(any.clone()) {
            return Ok(Self::Ip(ip));
        }
        if let Ok(vsock) = VsockAddr::try_from(any.clone()) {
            return Ok(Self::Vsock(vsock));
        }
        let unix = SocketAddrUnix::try_from(any)?;
        Ok(Self::Unix(unix.path_bytes().map(|bytes| OsStr::from_bytes(bytes).into())))
    }

    pub(in crate::stream) fn local_of(socket: impl AsFd) -> io::Result<Self> {
        Ok(Self::of(Some(rustix::net::getsockname(socket)?))?)
    }

    pub(in crate::stream) fn peer_of(socket: impl AsFd) -> io::Result<Self> {
        Ok(Self::of(rustix::net::getpeername(socket)?)?)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix(Some(path)) => write!(f, "unix:{}", path.display()),
            Self::Unix(None) => f.write_str("unix:"),
            Self::Vsock(address) => write!(f, "vsock:{address}"),
        }
    }
}

/// A connection that was just accepted and is not a stream yet.
///
/// ```
/// use windlass::{Reactor, stream::{Listener, Peer}};
/// # use windlass::stream::{Input, Stream, StreamHandler};
/// # struct Echo;
/// # impl StreamHandler for Echo {
/// #     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
/// #         let _ = stream.reply(input, ..);
/// #     }
/// # }
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let listener = Listener::tcp("127.0.0.1:0".parse().unwrap())?;
/// // Rejects connections that do not come from this machine.
/// let is_local = |peer: &Peer<'_>| peer.ip().is_some_and(|ip| ip.is_loopback());
/// listener.with_handler(move |peer| is_local(peer).then_some(Echo)).register_into(&mut reactor)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Peer<'a> {
    pub(in crate::stream) socket: &'a StreamSocket,
    pub(in crate::stream) address: Address,
    /// How long the listener is to accept no further connection.
    pub(in crate::stream) rest: Cell<Duration>,
}

impl Peer<'_> {
    /// The address of the peer.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The IP address of the peer, or `None` for another socket.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.address.ip()
    }

    /// Lets the listener accept no further connection for this time, whatever becomes of this one.
    /// They wait in the kernel's backlog. For a limit of the rate of connections.
    pub fn rest_listener(&self, time: Duration) {
        self.rest.set(time);
    }
}

impl AsFd for Peer<'_> {
    /// The socket, for further queries (`SO_PEERCRED`, for example).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
