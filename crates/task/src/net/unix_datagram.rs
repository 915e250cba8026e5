//! [`UnixDatagram`].

use std::{io, net::Shutdown, os::unix::net::SocketAddr, path::Path};

use rustix::{buffer::spare_capacity, net::RecvFlags};

use crate::{
    fd::{AsyncFd, Direction, source::ShortRead},
    io::Socket,
    net::common::impl_socket,
};

/// Datagrams between Unix sockets. They are neither lost nor reordered.
///
/// All methods take `&self`, so any number of tasks can share it in an `Rc`. Dropping a future
/// loses no datagram. A datagram that is longer than the buffer is cut.
///
/// ```
/// use windlass_task::{block_on, net::UnixDatagram};
///
/// # fn main() -> std::io::Result<()> {
/// block_on(async {
///     let (here, there) = UnixDatagram::pair()?;
///     here.send(b"hello").await?;
///     let mut buffer = [0; 16];
///     assert_eq!(there.recv(&mut buffer).await?, 5);
///     Ok(())
/// })
/// # }
/// ```
pub struct UnixDatagram {
    io: AsyncFd<Socket<std::os::unix::net::UnixDatagram>>,
}

impl_socket!(UnixDatagram, std::os::unix::net::UnixDatagram, ShortRead::SaysNothing);

impl UnixDatagram {
    /// A socket bound to a path, which must not exist. The file stays when the socket is dropped.
    ///
    /// # Errors
    /// That of socket(2) or bind(2), or if no executor runs on this thread.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::from_std(std::os::unix::net::UnixDatagram::bind(path)?)
    }

    /// A socket bound to a path or to an abstract name.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_addr(address: &SocketAddr) -> io::Result<Self> {
        Self::from_std(std::os::unix::net::UnixDatagram::bind_addr(address)?)
    }

    /// A socket without an address.
    ///
    /// # Errors
    /// That of socket(2), or if no executor runs on this thread.
    pub fn unbound() -> io::Result<Self> {
        Self::from_std(std::os::unix::net::UnixDatagram::unbound()?)
    }

    /// Two connected sockets.
    ///
    /// # Errors
    /// That of socketpair(2), or if no executor runs on this thread.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (first, second) = std::os::unix::net::UnixDatagram::pair()?;
        Ok((Self::from_std(first)?, Self::from_std(second)?))
    }

    /// Sets the peer.
    ///
    /// # Errors
    /// That of connect(2).
    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.io.get_ref().kernel()?.connect(path)
    }

    /// Sets the peer, by a path or an abstract name.
    ///
    /// # Errors
    /// That of connect(2).
    pub fn connect_addr(&self, address: &SocketAddr) -> io::Result<()> {
        self.io.get_ref().kernel()?.connect_addr(address)
    }

    /// Sends a datagram to the peer. Waits while the peer's queue is full.
    ///
    /// # Errors
    /// That of send(2).
    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.write(|socket| socket.send(bytes)).await
    }

    /// Sends a datagram to a path.
    ///
    /// If the socket is not connected to that peer and the peer's queue is full, the kernel does
    /// not report when there is room. The future then waits for the socket's next event, which may
    /// never come. Connect first, if the receiver may be slow.
    ///
    /// # Errors
    /// That of sendto(2).
    pub async fn send_to(&self, bytes: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        self.write(|socket| socket.send_to(bytes, path.as_ref())).await
    }

    /// Receives a datagram.
    ///
    /// # Errors
    /// That of recv(2).
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read(|socket| socket.recv(buffer)).await
    }

    /// Receives a datagram, and the address of its sender.
    ///
    /// # Errors
    /// That of recvfrom(2).
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.read(|socket| socket.recv_from(buffer)).await
    }

    /// Receives a datagram that is there, without waiting. Use it after
    /// [`readable`](Self::readable).
    ///
    /// # Errors
    /// `WouldBlock` if there is none. Otherwise as [`recv`](Self::recv).
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.try_read(|socket| socket.recv(buffer))
    }

    /// Receives a datagram that is there, and the address of its sender, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is none. Otherwise as [`recv_from`](Self::recv_from).
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.try_read(|socket| socket.recv_from(buffer))
    }

    /// Sends a datagram to the peer, without waiting. Use it after [`writable`](Self::writable).
    ///
    /// # Errors
    /// `WouldBlock` if there is no room. Otherwise as [`send`](Self::send).
    pub fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write(|socket| socket.send(bytes))
    }

    /// Sends a datagram to a path, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room. Otherwise as [`send_to`](Self::send_to).
    pub fn try_send_to(&self, bytes: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        self.try_write(|socket| socket.send_to(bytes, path.as_ref()))
    }

    /// Receives a datagram into the unused capacity of a buffer, and makes it longer by the
    /// datagram. A datagram that is longer than that capacity is cut.
    ///
    /// ```
    /// use windlass_task::{block_on, net::UnixDatagram};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// block_on(async {
    ///     let (here, there) = UnixDatagram::pair()?;
    ///     here.send(b"hello").await?;
    ///     let mut buffer = Vec::with_capacity(16);
    ///     assert_eq!(there.recv_buf(&mut buffer).await?, 5);
    ///     assert_eq!(buffer, b"hello");
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`recv`](Self::recv). `InvalidInput` if the buffer has no unused capacity: reserve some.
    pub async fn recv_buf(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        if buffer.len() == buffer.capacity() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.read(|socket| {
            Ok(rustix::net::recv(socket, spare_capacity(buffer), RecvFlags::empty())?.1)
        })
        .await
    }

    fn try_read<T>(
        &self,
        call: impl FnOnce(&std::os::unix::net::UnixDatagram) -> io::Result<T>,
    ) -> io::Result<T> {
        self.io.source().try_io(Direction::Read, || call(self.io.get_ref().kernel()?))
    }

    fn try_write<T>(
        &self,
        call: impl FnOnce(&std::os::unix::net::UnixDatagram) -> io::Result<T>,
    ) -> io::Result<T> {
        self.io.source().try_io(Direction::Write, || call(self.io.get_ref().kernel()?))
    }

    async fn read<T>(
        &self,
        mut call: impl FnMut(&std::os::unix::net::UnixDatagram) -> io::Result<T>,
    ) -> io::Result<T> {
        self.io.source().io(Direction::Read, || call(self.io.get_ref().kernel()?)).await
    }

    async fn write<T>(
        &self,
        mut call: impl FnMut(&std::os::unix::net::UnixDatagram) -> io::Result<T>,
    ) -> io::Result<T> {
        self.io.source().io(Direction::Write, || call(self.io.get_ref().kernel()?)).await
    }

    /// Ends one direction or both.
    ///
    /// # Errors
    /// That of shutdown(2).
    pub fn shutdown_now(&self, how: Shutdown) -> io::Result<()> {
        self.io.get_ref().shutdown(how)
    }

    /// The local address.
    ///
    /// # Errors
    /// That of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.get_ref().kernel()?.local_addr()
    }

    /// The peer's address.
    ///
    /// # Errors
    /// That of getpeername(2).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.io.get_ref().kernel()?.peer_addr()
    }
}
