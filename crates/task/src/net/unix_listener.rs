//! [`UnixListener`].

use core::task::{Context, Poll};
use std::{
    io,
    os::{fd::OwnedFd, unix::net::SocketAddr},
    path::Path,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketType},
};
use windlass::stream::{Address, ListenError};

use crate::{
    fd::{
        AsyncFd, Direction,
        source::{ShortRead, Waiting},
    },
    net::{
        UnixStream,
        common::{self, FLAGS, impl_socket},
        unix_address,
    },
};

/// Connections that wait to be accepted. The kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Accepts connections of Unix sockets.
///
/// Dropping it leaves the file of its path. Remove it before the next `bind`.
///
/// ```
/// use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr};
/// use windlass_task::{block_on, net::{UnixListener, UnixStream}};
///
/// # fn main() -> std::io::Result<()> {
/// let address = SocketAddr::from_abstract_name(format!("example {}", std::process::id()))?;
/// block_on(async {
///     let listener = UnixListener::bind_addr(&address)?;
///     let mut client = UnixStream::connect_addr(&address).await?;
///     let (mut server, _) = listener.accept().await?;
///     client.write_all(b"hello").await?;
///     let mut buffer = [0; 5];
///     server.read_exact(&mut buffer).await
/// })
/// # }
/// ```
pub struct UnixListener {
    io: AsyncFd<std::os::unix::net::UnixListener>,
}

impl_socket!(UnixListener, std::os::unix::net::UnixListener, ShortRead::SaysNothing);

impl UnixListener {
    /// Listens on a path, which must not exist.
    ///
    /// # Errors
    /// A [`ListenError`] with that of socket(2), bind(2) or listen(2), or if no executor runs on
    /// this thread.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let named = |errno| ListenError { address: Address::Unix(Some(path.into())), errno };
        let address = match path.as_os_str().is_empty() {
            true => Err(Errno::INVAL),
            false => SocketAddrUnix::new(path),
        };
        Self::from_fd(address.and_then(open).map_err(named)?)
    }

    /// Listens on a path or on an abstract name.
    ///
    /// # Errors
    /// As [`bind`](Self::bind). With an abstract name, that of the kernel.
    pub fn bind_addr(address: &SocketAddr) -> io::Result<Self> {
        match address.as_pathname() {
            Some(path) => Self::bind(path),
            None => Self::from_fd(open(unix_address::to_kernel(address)?)?),
        }
    }

    fn from_fd(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { io: common::fresh(socket.into(), ShortRead::SaysNothing)? })
    }

    /// Accepts a connection. Any number of futures may wait. A future that is dropped has accepted
    /// none.
    ///
    /// # Errors
    /// That of accept(2). `EMFILE` and `ENFILE` mean that there are no descriptors: wait before the
    /// next call.
    pub async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        let accept = || Ok(rustix::net::accept_with(&self.io, FLAGS)?);
        Self::open(self.io.source().io(Direction::Read, accept).await?)
    }

    /// Polls for a connection. One waiter, which [`poll_ready`](Self::poll_ready) shares.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(UnixStream, SocketAddr)>> {
        let accepted = self.io.source().poll_io(Direction::Read, context, Waiting::One, || {
            Ok(rustix::net::accept_with(&self.io, FLAGS)?)
        });
        accepted.map(|accepted| Self::open(accepted?))
    }

    fn open(socket: OwnedFd) -> io::Result<(UnixStream, SocketAddr)> {
        let stream = std::os::unix::net::UnixStream::from(socket);
        // Not that of accept4(2): rustix panics for a path of 108 bytes, which a peer may have.
        let address = stream.peer_addr()?;
        Ok((UnixStream::from_connected(stream)?, address))
    }

    /// The local address.
    ///
    /// # Errors
    /// That of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.get_ref().local_addr()
    }
}

fn open(address: SocketAddrUnix) -> rustix::io::Result<OwnedFd> {
    let socket = common::socket(AddressFamily::UNIX, SocketType::STREAM)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}
