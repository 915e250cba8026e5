//! [`TcpStream`].

use core::task::{Context, Poll};
use std::{
    io::{self, IoSlice},
    net::{Shutdown, SocketAddr},
    time::Duration,
};

use rustix::net::{AddressFamily, RecvFlags, SocketType, sockopt};

use crate::{
    fd::{AsyncFd, Direction, source::ShortRead},
    io::{RawStream, impl_reading, impl_writing, poll_receive, poll_send, poll_send_vectored},
    net::{
        OwnedReadHalf, OwnedWriteHalf, ReadHalf, ToAddresses, WriteHalf,
        common::{self, impl_socket},
        split,
    },
};

/// A TCP connection.
///
/// Dropping it closes the connection. If there are unread bytes, the kernel resets it.
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
    io: AsyncFd<std::net::TcpStream>,
}

impl_socket!(TcpStream, std::net::TcpStream, ShortRead::Drains);

impl TcpStream {
    /// Connects to the first address that accepts, in their order. Dropping the future closes the
    /// socket.
    ///
    /// # Errors
    /// That of the last address: of socket(2) or connect(2). That of
    /// [`lookup_host`](crate::net::lookup_host), or if no executor runs on this thread.
    pub async fn connect(addresses: impl ToAddresses) -> io::Result<Self> {
        let mut last = None;
        for address in addresses.to_addresses().resolve().await? {
            match Self::connect_one(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("there is an address"))
    }

    async fn connect_one(address: SocketAddr) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = common::socket(family, SocketType::STREAM)?;
        let connected = rustix::net::connect(&socket, &address);
        Ok(Self { io: common::connecting(socket.into(), ShortRead::Drains, connected).await? })
    }

    pub(super) fn from_connected(stream: std::net::TcpStream) -> io::Result<Self> {
        Ok(Self { io: common::fresh(stream, ShortRead::Drains)? })
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
        // A short result says nothing about readiness, because nothing was removed.
        let peek = || Ok(rustix::net::recv(&self.io, &mut *buffer, RecvFlags::PEEK)?.1);
        self.io.source().io(Direction::Read, peek).await
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
        self.io.get_ref().shutdown(how)
    }

    /// The peer's address.
    ///
    /// # Errors
    /// That of getpeername(2).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.io.get_ref().peer_addr()
    }

    /// The local address.
    ///
    /// # Errors
    /// That of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.get_ref().local_addr()
    }

    /// Whether small writes are sent at once.
    ///
    /// # Errors
    /// That of getsockopt(2).
    #[doc(alias = "TCP_NODELAY")]
    pub fn nodelay(&self) -> io::Result<bool> {
        self.io.get_ref().nodelay()
    }

    /// Sends small writes at once, instead of waiting for an acknowledgement (Nagle's algorithm).
    ///
    /// # Errors
    /// That of setsockopt(2).
    #[doc(alias = "TCP_NODELAY")]
    pub fn set_nodelay(&self, is_on: bool) -> io::Result<()> {
        self.io.get_ref().set_nodelay(is_on)
    }

    /// How long a close waits for unsent bytes.
    ///
    /// # Errors
    /// That of getsockopt(2).
    #[doc(alias = "SO_LINGER")]
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(sockopt::socket_linger(&self.io)?)
    }

    /// Sets how long a close waits for unsent bytes. Zero resets the connection at the close. Any
    /// other duration lets the close block the thread.
    ///
    /// # Errors
    /// That of setsockopt(2).
    #[doc(alias = "SO_LINGER")]
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_linger(&self.io, linger)?)
    }

    /// Whether the kernel probes an idle peer.
    ///
    /// # Errors
    /// That of getsockopt(2).
    #[doc(alias = "SO_KEEPALIVE")]
    pub fn keepalive(&self) -> io::Result<bool> {
        Ok(sockopt::socket_keepalive(&self.io)?)
    }

    /// Lets the kernel probe an idle peer after `idle`, and then every `interval`. `None` ends it.
    ///
    /// # Errors
    /// That of setsockopt(2).
    #[doc(alias("SO_KEEPALIVE", "TCP_KEEPIDLE", "TCP_KEEPINTVL"))]
    pub fn set_keepalive(&self, times: Option<(Duration, Duration)>) -> io::Result<()> {
        sockopt::set_socket_keepalive(&self.io, times.is_some())?;
        if let Some((idle, interval)) = times {
            sockopt::set_tcp_keepidle(&self.io, idle)?;
            sockopt::set_tcp_keepintvl(&self.io, interval)?;
        }
        Ok(())
    }

    /// The time to live of its packets.
    ///
    /// # Errors
    /// That of getsockopt(2).
    pub fn ttl(&self) -> io::Result<u32> {
        self.io.get_ref().ttl()
    }

    /// Sets the time to live of its packets.
    ///
    /// # Errors
    /// That of setsockopt(2).
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.io.get_ref().set_ttl(ttl)
    }
}

impl_reading!([] TcpStream);
impl_writing!([] TcpStream);

impl RawStream for TcpStream {
    #[inline]
    fn poll_read(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        poll_receive(&self.io, context, buffer)
    }

    #[inline]
    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        poll_send(&self.io, context, bytes)
    }

    fn poll_write_vectored(
        &self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        poll_send_vectored(&self.io, context, parts)
    }

    fn poll_flush(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(common::ended(self.io.get_ref().shutdown(Shutdown::Write)))
    }

    fn shutdown_now(&self) {
        let _ = self.io.get_ref().shutdown(Shutdown::Write);
    }
}
