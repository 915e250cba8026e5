//! [`UnixStream`].

use std::{
    io,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::SocketAddr,
    },
    path::Path,
};

use rustix::net::{AddressFamily, SocketType, sockopt};
use windlass::fd_passing;
#[cfg(feature = "sim")]
use windlass::sim::SocketKind;

#[cfg(feature = "sim")]
use crate::net::simulated;
use crate::{
    fd::{AsyncFd, Direction, source::ShortRead},
    io::{Socket, either, impl_reading, impl_writing},
    net::{
        common::{self, impl_raw_stream, impl_socket},
        unix_address,
    },
};

/// A connection of Unix sockets.
///
/// It also carries descriptors: [`send_with_fds`](Self::send_with_fds). For other control data
/// (unix(7)), use recvmsg(2) and sendmsg(2) in [`async_io`](Self::async_io). Control data ends a
/// read early, so a short read does not clear readiness. [`read`](Self::read) closes descriptors.
///
/// ```
/// use windlass_task::{block_on, net::UnixStream};
///
/// # fn main() -> std::io::Result<()> {
/// block_on(async {
///     let (mut here, mut there) = UnixStream::pair()?;
///     here.write_all(b"hello").await?;
///     let mut buffer = [0; 5];
///     there.read_exact(&mut buffer).await?;
///     assert_eq!(there.peer_credentials()?.pid, std::process::id());
///     Ok(())
/// })
/// # }
/// ```
pub struct UnixStream {
    io: AsyncFd<Socket<std::os::unix::net::UnixStream>>,
}

/// The process at the other end, when it connected or made the pair (`SO_PEERCRED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// The process.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

impl_socket!(UnixStream, std::os::unix::net::UnixStream, ShortRead::SaysNothing);

impl UnixStream {
    /// Connects to a path.
    ///
    /// # Errors
    /// That of socket(2) or connect(2), or if no executor runs on this thread. `WouldBlock` means
    /// that the listener's backlog is full. The kernel does not report when there is room, so try
    /// again later.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::connect_addr(&SocketAddr::from_pathname(path)?).await
    }

    /// Connects to a path or to an abstract name.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_addr(address: &SocketAddr) -> io::Result<Self> {
        #[cfg(feature = "sim")]
        if let Some((socket, begun)) =
            simulated::connect(SocketKind::Unix, unix_address::to_simulation(address)?)?
        {
            let io = common::connecting(socket, ShortRead::SaysNothing, begun).await?;
            return Ok(Self { io });
        }
        let address = unix_address::to_kernel(address)?;
        let socket = common::socket(AddressFamily::UNIX, SocketType::STREAM)?;
        let connected = rustix::net::connect(&socket, &address);
        let socket = Socket::Kernel(socket.into());
        let io = common::connecting(socket, ShortRead::SaysNothing, connected).await?;
        Ok(Self { io })
    }

    /// Two connected streams.
    ///
    /// # Errors
    /// That of socketpair(2), or if no executor runs on this thread.
    pub fn pair() -> io::Result<(Self, Self)> {
        #[cfg(feature = "sim")]
        if let Some((first, second)) = simulated::socketpair()? {
            return Ok((Self::from_connected(first)?, Self::from_connected(second)?));
        }
        let (first, second) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, common::FLAGS, None)?;
        let (first, second) = (Socket::Kernel(first.into()), Socket::Kernel(second.into()));
        Ok((Self::from_connected(first)?, Self::from_connected(second)?))
    }

    pub(super) fn from_connected(
        stream: Socket<std::os::unix::net::UnixStream>,
    ) -> io::Result<Self> {
        Ok(Self { io: common::fresh(stream, ShortRead::SaysNothing)? })
    }

    /// Sends bytes with descriptors, at most [`FDS_MAX`](fd_passing::FDS_MAX) and with at least one
    /// byte. Returns how many bytes the socket has accepted. The descriptors have gone with the
    /// first of them, and stay open here. Dropping the future sends nothing. Any number of futures
    /// may wait.
    ///
    /// ```
    /// use std::{fs::File, os::fd::AsFd};
    /// use windlass_task::{block_on, net::UnixStream};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// block_on(async {
    ///     let (here, there) = UnixStream::pair()?;
    ///     let file = File::open("/dev/null")?;
    ///     here.send_all_with_fds(b"a file", &[file.as_fd()]).await?;
    ///     let mut buffer = [0; 64];
    ///     let (count, fds) = there.recv_with_fds(&mut buffer, 1).await?;
    ///     assert_eq!((&buffer[..count], fds.len()), (&b"a file"[..], 1));
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// That of [`fd_passing::send_with_fds`], or if the executor was dropped. Nothing was sent.
    #[doc(alias("sendmsg", "SCM_RIGHTS"))]
    pub async fn send_with_fds(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let socket = self.io.get_ref().kernel()?;
        let send = || Ok(fd_passing::send_with_fds(socket, bytes, fds)?);
        self.io.source().io(Direction::Write, send).await
    }

    /// Sends all bytes, and the descriptors with the first of them, once. Dropping the future may
    /// have sent a part, as with `write_all`. No other task may write meanwhile.
    ///
    /// # Errors
    /// As [`send_with_fds`](Self::send_with_fds). After an error of a later call, a part was sent.
    pub async fn send_all_with_fds(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut sent = self.send_with_fds(bytes, fds).await?;
        while sent < bytes.len() {
            sent += self.send_with_fds(&bytes[sent..], &[]).await?;
        }
        Ok(())
    }

    /// Receives bytes, and the descriptors of at most one message: see
    /// [`fd_passing`]. `fds_max` is the number that is expected at most. `Ok((0, _))` is the end of
    /// the stream, or an empty buffer. Dropping the future loses nothing. Any number of futures may
    /// wait.
    ///
    /// # Errors
    /// That of [`fd_passing::recv_with_fds`], or if the executor was dropped. The peer's misuse is
    /// a [`RecvFdsError`](fd_passing::RecvFdsError) in an error of the kind `InvalidData`; the
    /// descriptors are closed.
    #[doc(alias("recvmsg", "SCM_RIGHTS"))]
    pub async fn recv_with_fds(
        &self,
        buffer: &mut [u8],
        fds_max: usize,
    ) -> io::Result<(usize, Vec<OwnedFd>)> {
        if buffer.is_empty() {
            return Ok((0, Vec::new()));
        }
        let socket = self.io.get_ref().kernel()?;
        let receive = || Ok(fd_passing::recv_with_fds(socket, buffer, fds_max)?);
        self.io.source().io(Direction::Read, receive).await
    }

    /// The process at the other end.
    ///
    /// # Errors
    /// That of getsockopt(2).
    #[doc(alias = "SO_PEERCRED")]
    pub fn peer_credentials(&self) -> io::Result<PeerCredentials> {
        let credentials = sockopt::socket_peercred(self.io.get_ref().kernel()?)?;
        Ok(PeerCredentials {
            pid: credentials.pid.as_raw_nonzero().get().unsigned_abs(),
            uid: credentials.uid.as_raw(),
            gid: credentials.gid.as_raw(),
        })
    }

    /// The peer's address.
    ///
    /// # Errors
    /// That of getpeername(2).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        unix_address::peer_of(self.io.get_ref())
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

impl_reading!([] UnixStream);
impl_writing!([] UnixStream);

impl_raw_stream!(UnixStream);
