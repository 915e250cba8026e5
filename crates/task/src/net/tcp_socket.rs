//! [`TcpSocket`]: a connected TCP socket, by readiness or with a read buffer.

use core::task::{Context, Poll};
use std::{
    io::{self, IoSlice},
    net::{Shutdown, TcpStream},
    os::fd::AsFd,
};

use rustix::net::RecvFlags;

use crate::{
    Direction,
    fd::{
        AsyncFd,
        source::{ShortRead, SourceOptions},
    },
    io::{
        RawStream, Socket, Unfilled, poll_receive, poll_send, poll_send_vectored, try_receive,
        try_send,
    },
    net::{
        buffered_tcp::{self, BufferedOwner},
        common,
    },
};

/// Of a socket that is not simulated.
fn std_socket(socket: Socket<TcpStream>) -> TcpStream {
    socket.into_kernel().unwrap_or_else(|_| unreachable!("its kind was tested"))
}

pub(super) enum TcpSocket {
    /// On epoll and poll.
    Ready(AsyncFd<Socket<TcpStream>>),
    /// On a ring, and with a read_buf.
    Buffered(BufferedOwner),
}

impl TcpSocket {
    /// Takes over a connected socket, which is in non-blocking mode.
    pub(super) fn new(socket: Socket<TcpStream>, read_buf: Vec<u8>) -> io::Result<Self> {
        let completes = buffered_tcp::completes();
        if completes || !read_buf.is_empty() {
            return BufferedOwner::new(socket, read_buf, None, completes).map(Self::Buffered);
        }
        common::fresh(socket, ShortRead::Drains).map(Self::Ready)
    }

    /// Takes over a socket whose connect may be under way.
    pub(super) async fn connecting(
        socket: Socket<TcpStream>,
        connected: rustix::io::Result<()>,
    ) -> io::Result<Self> {
        if !buffered_tcp::completes() {
            return common::connecting(socket, ShortRead::Drains, connected).await.map(Self::Ready);
        }
        match connected {
            Ok(()) => BufferedOwner::new(socket, Vec::new(), None, true).map(Self::Buffered),
            Err(rustix::io::Errno::INPROGRESS) => {
                // One poll, so that nothing is in flight when the registration ends.
                let options = SourceOptions {
                    short_read: ShortRead::Drains,
                    is_writable: false,
                    is_one_shot: true,
                };
                let place = socket.place();
                let io = AsyncFd::with_options(socket, place, options)?;
                common::connect_result(&io).await?;
                let (source, socket) = io.into_parts();
                BufferedOwner::new(socket, Vec::new(), Some(source), true).map(Self::Buffered)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    pub(super) fn get_ref(&self) -> &Socket<TcpStream> {
        match self {
            Self::Ready(io) => io.get_ref(),
            Self::Buffered(socket) => socket.socket(),
        }
    }

    /// The plain socket. Returns `self` if it has received bytes that the socket would lack, or
    /// with the error of duplicating the socket.
    pub(super) fn into_std(self) -> Result<TcpStream, (Self, Option<io::Error>)> {
        if let Err(cause) = self.get_ref().kernel() {
            return Err((self, Some(cause)));
        }
        match self {
            Self::Ready(io) => Ok(std_socket(io.into_inner())),
            Self::Buffered(socket) if socket.is_plain() => match socket.into_parts() {
                Ok((socket, _)) => Ok(std_socket(socket)),
                Err((error, owner)) => Err((Self::Buffered(owner), Some(error))),
            },
            buffered @ Self::Buffered(_) => Err((buffered, None)),
        }
    }

    pub(super) async fn detach(self) -> io::Result<(TcpStream, Vec<u8>)> {
        match self {
            Self::Ready(io) => Ok((io.into_inner().give_away()?, Vec::new())),
            // A simulated socket has sent its output then.
            Self::Buffered(socket) => {
                let (socket, read_buf) = socket.detach().await?;
                Ok((socket.give_away()?, read_buf))
            }
        }
    }

    pub(super) async fn ready(&self, direction: Direction) -> io::Result<()> {
        match self {
            Self::Ready(io) => io.direction_ready(direction).await,
            Self::Buffered(socket) => socket.ready(direction).await,
        }
    }

    pub(super) fn poll_ready(
        &self,
        direction: Direction,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        match self {
            Self::Ready(io) => io.poll_ready(direction, context),
            Self::Buffered(socket) => socket.poll_ready(direction, context),
        }
    }

    pub(super) fn try_io<R>(
        &self,
        direction: Direction,
        operation: impl FnOnce(&TcpStream) -> io::Result<R>,
    ) -> io::Result<R> {
        match self {
            Self::Ready(io) => io.try_io(direction, |socket| operation(socket.kernel()?)),
            Self::Buffered(socket) => socket.try_io(direction, operation),
        }
    }

    pub(super) async fn async_io<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut(&TcpStream) -> io::Result<R>,
    ) -> io::Result<R> {
        match self {
            Self::Ready(io) => io.async_io(direction, |socket| operation(socket.kernel()?)).await,
            Self::Buffered(socket) => socket.async_io(direction, operation).await,
        }
    }

    pub(super) async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Ready(io) => {
                // A short result says nothing about readiness, because nothing was removed.
                let peek = || Ok(io.get_ref().receive(&mut *buffer, RecvFlags::PEEK)?);
                io.source().io(Direction::Read, peek).await
            }
            Self::Buffered(socket) => socket.peek(buffer).await,
        }
    }

    pub(super) fn take_error(&self) -> io::Result<Option<io::Error>> {
        match self {
            Self::Ready(io) => io.get_ref().take_error(),
            Self::Buffered(socket) => socket.take_error(),
        }
    }

    pub(super) fn shutdown_now(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Ready(io) => io.get_ref().shutdown(how),
            Self::Buffered(socket) => socket.shutdown_now(how),
        }
    }

    pub(super) fn would_block_count(&self) -> u32 {
        match self {
            Self::Ready(io) => io.source().would_block_count(),
            Self::Buffered(socket) => socket.would_block_count(),
        }
    }
}

impl AsFd for TcpSocket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.get_ref().as_fd()
    }
}

impl RawStream for TcpSocket {
    #[inline]
    fn poll_read<B: Unfilled + ?Sized>(
        &self,
        context: &mut Context<'_>,
        buffer: &mut B,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Ready(io) => poll_receive(io, context, buffer),
            Self::Buffered(socket) => socket.poll_read(context, buffer),
        }
    }

    #[inline]
    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Ready(io) => poll_send(io, context, bytes),
            Self::Buffered(socket) => socket.poll_write(context, bytes),
        }
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Ready(io) => try_receive(io.source(), io.get_ref(), buffer),
            Self::Buffered(socket) => socket.try_read(buffer),
        }
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Ready(io) => try_send(io.source(), io.get_ref(), bytes),
            Self::Buffered(socket) => socket.try_write(bytes),
        }
    }

    fn poll_write_vectored(
        &self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Ready(io) => poll_send_vectored(io, context, parts),
            Self::Buffered(socket) => socket.poll_write_vectored(context, parts),
        }
    }

    fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Ready(_) => Poll::Ready(Ok(())),
            Self::Buffered(socket) => socket.poll_flush(context),
        }
    }

    fn poll_shutdown(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Ready(io) => Poll::Ready(common::ended(io.get_ref().shutdown(Shutdown::Write))),
            Self::Buffered(socket) => socket.poll_shutdown(context),
        }
    }

    fn shutdown_now(&self) {
        let is_in_child = match self {
            Self::Ready(io) => io.source().is_in_child(),
            Self::Buffered(socket) => socket.is_in_child(),
        };
        if !is_in_child {
            let _ = Self::shutdown_now(self, Shutdown::Write);
        }
    }
}
