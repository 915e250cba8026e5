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
#[cfg(feature = "sim")]
use windlass::sim::SocketKind;
use windlass::stream::{Address, ListenError};

#[cfg(feature = "sim")]
use crate::net::simulated;
use crate::{
    fd::{
        AsyncFd, Direction,
        source::{ShortRead, Waiting},
    },
    io::{Socket, either},
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
    io: AsyncFd<Socket<std::os::unix::net::UnixListener>>,
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
        #[cfg(feature = "sim")]
        if let Some(listener) = Self::simulated(&SocketAddr::from_pathname(path)?).map_err(named)? {
            return listener;
        }
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
            None => {
                #[cfg(feature = "sim")]
                if let Some(listener) = Self::simulated(address)? {
                    return listener;
                }
                Self::from_fd(open(unix_address::to_kernel(address)?)?)
            }
        }
    }

    /// The listener of a simulated executor.
    #[cfg(feature = "sim")]
    fn simulated(address: &SocketAddr) -> Result<Option<io::Result<Self>>, Errno> {
        let socket = simulated::listen(SocketKind::Unix, unix_address::to_simulation(address)?)?;
        let register = |socket| Ok(Self { io: common::fresh(socket, ShortRead::SaysNothing)? });
        Ok(socket.map(register))
    }

    fn from_fd(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { io: common::fresh(Socket::Kernel(socket.into()), ShortRead::SaysNothing)? })
    }

    /// Accepts a connection. Any number of futures may wait. A future that is dropped has accepted
    /// none.
    ///
    /// # Errors
    /// That of accept(2). `EMFILE` and `ENFILE` mean that there are no descriptors: wait before the
    /// next call.
    pub async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        let accept = || self.accept_now();
        Self::open(self.io.source().io(Direction::Read, accept).await?)
    }

    fn accept_now(&self) -> io::Result<Socket<std::os::unix::net::UnixStream>> {
        either!(
            self.io.get_ref(),
            |socket| Ok(Socket::Kernel(rustix::net::accept_with(socket, FLAGS)?.into())),
            |kernel, fd| simulated::adopt(kernel, kernel.accept(fd)?.0)
        )
    }

    /// Polls for a connection. One waiter, which [`poll_ready`](Self::poll_ready) shares.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(UnixStream, SocketAddr)>> {
        let accept = || self.accept_now();
        let accepted = self.io.source().poll_io(Direction::Read, context, Waiting::One, accept);
        accepted.map(|accepted| Self::open(accepted?))
    }

    fn open(
        stream: Socket<std::os::unix::net::UnixStream>,
    ) -> io::Result<(UnixStream, SocketAddr)> {
        // Not that of accept4(2): rustix panics for a path of 108 bytes, which a peer may have.
        let address = unix_address::peer_of(&stream)?;
        Ok((UnixStream::from_connected(stream)?, address))
    }

    /// The local address.
    ///
    /// # Errors
    /// That of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        either!(self.io.get_ref(), |socket| socket.local_addr(), |kernel, fd| {
            unix_address::from_simulation(&kernel.local_addr(fd)?)
        })
    }
}

fn open(address: SocketAddrUnix) -> rustix::io::Result<OwnedFd> {
    let socket = common::socket(AddressFamily::UNIX, SocketType::STREAM)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}
