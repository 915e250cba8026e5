//! [`TcpStream`].

use core::{
    fmt,
    task::{Context, Poll},
};
use std::{
    io::{self, IoSlice},
    net::{Shutdown, SocketAddr},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    time::Duration,
};

use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::{
    Direction,
    fd::ready_methods,
    io::{RawStream, Socket, Unfilled, either, impl_reading, impl_writing},
    net::{
        OwnedReadHalf, OwnedWriteHalf, ReadHalf, ToAddresses, WriteHalf, common, split,
        tcp_socket::TcpSocket,
    },
};

#[cfg(feature = "sim")]
use crate::net::simulated;
#[cfg(feature = "sim")]
use windlass::sim::SocketKind;

/// A TCP connection.
///
/// # The end of a stream
///
/// Dropping it closes the connection. If there are unread bytes, the kernel resets it. What it
/// guarantees is the same on every backend:
///
/// - All bytes that a write has accepted are sent, as long as the peer goes on reading. No time
///   limit ends that. A peer that stops to read gets a reset after a while, and never an end that
///   looks complete. On a ring, this time is
///   [`drop_timeout`](crate::ExecutorBuilder::drop_timeout) while the stream holds output. The
///   kernel limits it otherwise.
/// - The executor may end meanwhile, also by the return of [`block_on`](crate::block_on()). Its end
///   waits for that output, for at most
///   [`drain_timeout`](crate::ExecutorBuilder::drain_timeout), and resets the connection if some is
///   left.
/// - A stream that outlives its executor keeps the output that the end of the executor could not
///   send. [`detach`](Self::detach) sends it. Until then reads, writes and flushes are errors, and
///   a drop resets the connection.
/// - After [`set_linger`](Self::set_linger) with zero, a drop resets the connection at once.
///
/// To know that the peer has read everything, call [`shutdown`](Self::shutdown) and read to the end
/// of its answer.
///
/// # On a ring
///
/// The first read or write starts a receive that goes on, and puts what comes into a read buffer.
/// Writes are copied, and are sent together with those of other streams when the turn ends. So:
///
/// - The error of a write is that of the next write, flush or shutdown.
/// - [`flush`](Self::flush) waits until the socket has accepted the output, except for a short
///   write of this turn, which is submitted at its end.
/// - The read buffer receives until it has 64 KiB, and again when half of it was read. It also
///   keeps what the kernel had received by then. 64 KiB of output may wait for a slow peer, also
///   after a drop. An idle stream has no buffer.
/// - A stream that is dropped ends before the executor waits, together with others: one system call
///   ends their receives.
/// - From then on [`try_io`](Self::try_io), [`async_io`](Self::async_io) and
///   [`into_std`](Self::into_std) are errors, because the read buffer may have bytes that come
///   first. Use [`peek`](Self::peek) and [`detach`](Self::detach). Do not use its descriptor to
///   read or write.
/// - An urgent byte (`MSG_OOB`) is skipped, unless the socket has the option `SO_OOBINLINE`. To
///   receive it, use [`async_io`](Self::async_io) alone.
/// - A stream that the reactor rejects, because it holds `subscribers_max`, reports it by the first
///   read or write.
///
/// ```
/// use windlass_task::{block_on, net::{TcpListener, TcpStream}};
///
/// # fn main() -> std::io::Result<()> {
/// block_on(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let mut client = TcpStream::connect(listener.local_addr()?).await?;
///     client.set_nodelay(true)?;
///     let (mut server, _) = listener.accept().await?;
///     client.write_all(b"request").await?;
///     client.shutdown().await?;
///     let mut buffer = [0; 16];
///     assert_eq!(server.read(&mut buffer).await?, 7);
///     assert_eq!(server.read(&mut buffer).await?, 0, "the client has ended its direction");
///     server.write_all(b"response").await?;
///     assert_eq!(client.read(&mut buffer).await?, 8);
///     Ok(())
/// })
/// # }
/// ```
pub struct TcpStream {
    io: TcpSocket,
}

/// The socket alone would lack bytes that were received or written already, or could not be taken.
/// The stream is returned: see [`TcpStream::detach`].
pub struct IntoStdError {
    /// The stream, unchanged.
    pub stream: TcpStream,
    /// Why the socket was not duplicated, if that has failed.
    cause: Option<io::Error>,
}

impl fmt::Debug for IntoStdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntoStdError").field("cause", &self.cause).finish_non_exhaustive()
    }
}

impl fmt::Display for IntoStdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            None => f.write_str(
                "the stream may have received bytes that the socket alone would lack, or have \
                 output that is not sent: use `detach`, which returns the ones and sends the other",
            ),
            Some(cause) => write!(
                f,
                "the socket of a stream that has just ended cannot be duplicated: {cause}; try \
                 again in the next turn, or use `detach`, which waits for that"
            ),
        }
    }
}

impl core::error::Error for IntoStdError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}

impl From<IntoStdError> for io::Error {
    fn from(error: IntoStdError) -> Self {
        let kind = error.cause.as_ref().map_or(io::ErrorKind::Unsupported, Self::kind);
        Self::new(kind, error.to_string())
    }
}

impl TcpStream {
    /// Takes over a socket of the standard library, which is made non-blocking.
    ///
    /// # Errors
    /// If no executor runs on this thread, or if the reactor rejects the registration
    /// ([`windlass::AddReason`]). The socket is closed.
    pub fn from_std(socket: std::net::TcpStream) -> io::Result<Self> {
        Self::from_std_with_read_buf(socket, Vec::new())
    }

    /// As [`from_std`](Self::from_std), for a socket from which `read_buf` was read already. It is
    /// read first. It is the other end of [`detach`](Self::detach).
    ///
    /// ```
    /// use std::io::Write;
    /// use windlass_task::{block_on, net::TcpStream};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let mut client = std::net::TcpStream::connect(listener.local_addr()?)?;
    /// let (server, _) = listener.accept()?;
    /// client.write_all(b" world")?;
    /// block_on(async {
    ///     let mut server = TcpStream::from_std_with_read_buf(server, b"hello".to_vec())?;
    ///     let mut buffer = [0; 11];
    ///     server.read_exact(&mut buffer).await?;
    ///     assert_eq!(&buffer, b"hello world");
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`from_std`](Self::from_std).
    pub fn from_std_with_read_buf(
        socket: std::net::TcpStream,
        read_buf: Vec<u8>,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { io: TcpSocket::new(Socket::Kernel(socket), read_buf)? })
    }

    /// The socket of the standard library. It stays non-blocking.
    ///
    /// # Errors
    /// The error returns the stream if the socket alone might lack bytes: on a ring after the first
    /// read or write, while bytes of `read_buf` are left, and with output that outlives the
    /// executor. Use [`detach`](Self::detach) then. In a waker that is called because the stream
    /// has ended, the socket is duplicated. If the process has no descriptor for that, the error
    /// has a [`source`](core::error::Error::source).
    pub fn into_std(self) -> Result<std::net::TcpStream, IntoStdError> {
        let error = |(io, cause)| IntoStdError { stream: Self { io }, cause };
        self.io.into_std().map_err(error)
    }

    /// The socket of the standard library, and `read_buf`: the bytes that were received and not
    /// read. It waits until the socket has accepted all output. The socket stays non-blocking.
    ///
    /// It may run in another executor of the thread, after the stream's own has ended. It then
    /// first sends the output that was left.
    ///
    /// To move a connection to another thread, pass both to
    /// [`from_std_with_read_buf`](Self::from_std_with_read_buf) there. If the future is dropped,
    /// the connection is closed.
    ///
    /// ```
    /// use windlass_task::{block_on, net::{TcpListener, TcpStream}};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let thread = block_on(async {
    ///     let listener = TcpListener::bind("127.0.0.1:0").await?;
    ///     let mut client = TcpStream::connect(listener.local_addr()?).await?;
    ///     let (mut server, _) = listener.accept().await?;
    ///     client.write_all(b"hello").await?;
    ///     server.read_exact(&mut [0; 1]).await?;
    ///     let (socket, read_buf) = server.detach().await?;
    ///     let thread = std::thread::spawn(move || {
    ///         block_on(async {
    ///             let mut server = TcpStream::from_std_with_read_buf(socket, read_buf)?;
    ///             let mut rest = [0; 4];
    ///             server.read_exact(&mut rest).await?;
    ///             std::io::Result::Ok(rest)
    ///         })
    ///     });
    ///     std::io::Result::Ok(thread)
    /// })?;
    /// assert_eq!(&thread.join().unwrap()?, b"ello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// That of the connection, which is closed then, or of the output. It says how much output that
    /// outlives its executor was not sent.
    pub async fn detach(self) -> io::Result<(std::net::TcpStream, Vec<u8>)> {
        self.io.detach().await
    }

    /// Waits until reading is worth a try. Any number of futures may wait.
    ///
    /// # Errors
    /// If the executor was dropped.
    pub async fn readable(&self) -> io::Result<()> {
        self.io.ready(Direction::Read).await
    }

    /// Waits until writing is worth a try. As [`readable`](Self::readable).
    ///
    /// # Errors
    /// If the executor was dropped.
    pub async fn writable(&self) -> io::Result<()> {
        self.io.ready(Direction::Write).await
    }

    /// Polls for readiness. One waiter for each direction, which the other `poll_*` methods and the
    /// methods with `&mut self` share.
    ///
    /// # Errors
    /// If the executor was dropped.
    pub fn poll_ready(
        &self,
        direction: Direction,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.io.poll_ready(direction, context)
    }

    ready_methods!();

    /// Tries an operation on the socket if the direction counts as ready; see
    /// [`AsyncFd::try_io`](crate::AsyncFd::try_io).
    ///
    /// # Errors
    /// `WouldBlock` without a call if the direction is not ready. `Unsupported` on a ring after the
    /// first read or write, and while bytes of `read_buf` are left. Otherwise the error of the
    /// operation.
    pub fn try_io<R>(
        &self,
        direction: Direction,
        operation: impl FnOnce(&std::net::TcpStream) -> io::Result<R>,
    ) -> io::Result<R> {
        self.io.try_io(direction, operation)
    }

    /// Does an operation on the socket as soon as it does not return `WouldBlock`; see
    /// [`AsyncFd::async_io`](crate::AsyncFd::async_io).
    ///
    /// # Errors
    /// That of the operation, or if the executor was dropped. `Unsupported` as for
    /// [`try_io`](Self::try_io).
    pub async fn async_io<R>(
        &self,
        direction: Direction,
        operation: impl FnMut(&std::net::TcpStream) -> io::Result<R>,
    ) -> io::Result<R> {
        self.io.async_io(direction, operation).await
    }

    /// Takes the pending error of the socket (`SO_ERROR`).
    ///
    /// # Errors
    /// That of getsockopt(2).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.io.take_error()
    }

    /// How many operations have returned `EAGAIN`. For tests and benchmarks.
    #[doc(hidden)]
    #[must_use]
    pub fn would_block_count(&self) -> u32 {
        self.io.would_block_count()
    }

    /// Connects to the first address that accepts, in their order. Dropping the future closes the
    /// socket.
    ///
    /// # Errors
    /// That of the last address: of socket(2) or connect(2). That of
    /// [`lookup_host`](crate::net::lookup_host), or if no executor runs on this thread.
    pub async fn connect(addresses: impl ToAddresses) -> io::Result<Self> {
        let mut last = None;
        for &address in &*addresses.to_addresses().resolve().await? {
            match Self::connect_one(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("there is an address"))
    }

    async fn connect_one(address: SocketAddr) -> io::Result<Self> {
        #[cfg(feature = "sim")]
        if let Some((socket, begun)) = simulated::connect(SocketKind::Tcp, address.into())? {
            return Ok(Self { io: TcpSocket::connecting(socket, begun).await? });
        }
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = common::socket(family, SocketType::STREAM)?;
        let connected = common::connect(&socket, address).await;
        let socket = Socket::Kernel(socket.into());
        Ok(Self { io: TcpSocket::connecting(socket, connected).await? })
    }

    pub(super) fn from_connected(stream: Socket<std::net::TcpStream>) -> io::Result<Self> {
        Ok(Self { io: TcpSocket::new(stream, Vec::new())? })
    }

    const fn stream(&self) -> &Self {
        self
    }

    /// Reads without removing the bytes. Any number of futures may wait.
    ///
    /// # Errors
    /// That of recv(2).
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.io.peek(buffer).await
    }

    /// Borrows the two halves, for two futures of one task.
    pub fn split(&mut self) -> (ReadHalf<'_, Self>, WriteHalf<'_, Self>) {
        split::split(self)
    }

    /// Makes two halves, for two tasks.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf<Self>, OwnedWriteHalf<Self>) {
        split::into_split(self)
    }

    /// Ends one direction or both, at once.
    ///
    /// # Errors
    /// That of shutdown(2).
    pub fn shutdown_now(&self, how: Shutdown) -> io::Result<()> {
        self.io.shutdown_now(how)
    }

    /// The peer's address.
    ///
    /// # Errors
    /// That of getpeername(2).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        either!(self.io.get_ref(), |socket| socket.peer_addr(), |kernel, fd| {
            simulated::inet(kernel.peer_addr(fd)?)
        })
    }

    /// The local address.
    ///
    /// # Errors
    /// That of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        either!(self.io.get_ref(), |socket| socket.local_addr(), |kernel, fd| {
            simulated::inet(kernel.local_addr(fd)?)
        })
    }

    /// Whether small writes are sent at once.
    ///
    /// # Errors
    /// That of getsockopt(2).
    #[doc(alias = "TCP_NODELAY")]
    pub fn nodelay(&self) -> io::Result<bool> {
        self.io.get_ref().kernel()?.nodelay()
    }

    /// Sends small writes at once, instead of waiting for an acknowledgement (Nagle's algorithm).
    ///
    /// # Errors
    /// That of setsockopt(2).
    #[doc(alias = "TCP_NODELAY")]
    pub fn set_nodelay(&self, is_on: bool) -> io::Result<()> {
        self.io.get_ref().set(|socket| socket.set_nodelay(is_on))
    }

    /// How long a close waits for unsent bytes.
    ///
    /// # Errors
    /// That of getsockopt(2).
    #[doc(alias = "SO_LINGER")]
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(sockopt::socket_linger(self.io.get_ref().kernel()?)?)
    }

    /// Sets how long a close waits for unsent bytes. Zero resets the connection when the stream is
    /// dropped. Any other duration lets the close block the thread.
    ///
    /// # Errors
    /// That of setsockopt(2).
    #[doc(alias = "SO_LINGER")]
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        common::set_linger(self.io.get_ref(), linger)
    }

    /// Lets the close reset the connection. It is [`set_linger`](Self::set_linger) of zero, which
    /// never blocks.
    ///
    /// # Errors
    /// That of setsockopt(2).
    #[doc(alias = "SO_LINGER")]
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }

    /// Whether the kernel probes an idle peer.
    ///
    /// # Errors
    /// That of getsockopt(2).
    #[doc(alias = "SO_KEEPALIVE")]
    pub fn keepalive(&self) -> io::Result<bool> {
        Ok(sockopt::socket_keepalive(self.io.get_ref().kernel()?)?)
    }

    /// Lets the kernel probe an idle peer after `idle`, and then every `interval`. `None` ends it.
    ///
    /// # Errors
    /// That of setsockopt(2).
    #[doc(alias("SO_KEEPALIVE", "TCP_KEEPIDLE", "TCP_KEEPINTVL"))]
    pub fn set_keepalive(&self, times: Option<(Duration, Duration)>) -> io::Result<()> {
        self.io.get_ref().set(|socket| {
            sockopt::set_socket_keepalive(socket, times.is_some())?;
            if let Some((idle, interval)) = times {
                sockopt::set_tcp_keepidle(socket, idle)?;
                sockopt::set_tcp_keepintvl(socket, interval)?;
            }
            Ok(())
        })
    }

    /// The time to live of its packets.
    ///
    /// # Errors
    /// That of getsockopt(2).
    pub fn ttl(&self) -> io::Result<u32> {
        self.io.get_ref().kernel()?.ttl()
    }

    /// Sets the time to live of its packets.
    ///
    /// # Errors
    /// That of setsockopt(2).
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.io.get_ref().set(|socket| socket.set_ttl(ttl))
    }
}

impl_reading!([] TcpStream);
impl_writing!([] TcpStream);

impl TryFrom<std::net::TcpStream> for TcpStream {
    type Error = io::Error;

    /// As [`from_std`](Self::from_std).
    fn try_from(socket: std::net::TcpStream) -> io::Result<Self> {
        Self::from_std(socket)
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.io.as_fd()
    }
}

impl AsRawFd for TcpStream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TcpStream").field(self.io.get_ref()).finish()
    }
}

impl RawStream for TcpStream {
    #[inline]
    fn poll_read<B: Unfilled + ?Sized>(
        &self,
        context: &mut Context<'_>,
        buffer: &mut B,
    ) -> Poll<io::Result<usize>> {
        self.io.poll_read(context, buffer)
    }

    #[inline]
    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.io.poll_write(context, bytes)
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.io.try_read(buffer)
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.io.try_write(bytes)
    }

    fn poll_write_vectored(
        &self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.io.poll_write_vectored(context, parts)
    }

    fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_flush(context)
    }

    fn poll_shutdown(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_shutdown(context)
    }

    fn shutdown_now(&self) {
        RawStream::shutdown_now(&self.io);
    }
}
