//! [`RawStream`]: the operations that streams are made of.

use core::task::{Context, Poll};
use std::{
    io::{self, IoSlice},
    os::fd::AsFd,
};

use rustix::net::{RecvFlags, SendFlags};

use crate::{
    fd::{
        AsyncFd, Direction,
        source::{Source, Waiting},
    },
    io::{Socket, Unfilled},
};

/// A stream of bytes of this crate: [`TcpStream`](crate::net::TcpStream),
/// [`UnixStream`](crate::net::UnixStream) and [`VsockStream`](crate::net::VsockStream). Their
/// halves name it.
pub trait ByteStream: RawStream {}

impl<S: RawStream> ByteStream for S {}

/// The operations of a stream. Each direction has one waiter. Not to be named by other crates.
pub trait RawStream {
    /// The number of bytes that were put at the front of the buffer. It has that many bytes.
    fn poll_read<B: Unfilled + ?Sized>(
        &self,
        context: &mut Context<'_>,
        buffer: &mut B,
    ) -> Poll<io::Result<usize>>;
    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;
    /// As `poll_read`, without a waiter. `WouldBlock` if there is nothing.
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize>;
    /// As `poll_write`, without a waiter. `WouldBlock` if there is no room.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;
    fn poll_write_vectored(
        &self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>>;
    fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Ends writing, after everything that was written.
    fn poll_shutdown(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Ends writing without waiting, in a destructor. Does nothing in a child of fork(2), which
    /// shares the socket with its parent.
    fn shutdown_now(&self);
}

/// Receives into a buffer.
#[inline]
pub(crate) fn poll_receive<S: AsFd + 'static, B: Unfilled + ?Sized>(
    io: &AsyncFd<Socket<S>>,
    context: &mut Context<'_>,
    buffer: &mut B,
) -> Poll<io::Result<usize>> {
    if buffer.room() == 0 {
        return Poll::Ready(Ok(0));
    }
    receive(io.source(), io.get_ref(), context, buffer)
}

/// As [`poll_receive`], into a buffer that is not empty.
#[inline]
pub(crate) fn receive<S: AsFd, B: Unfilled + ?Sized>(
    source: &Source,
    socket: &Socket<S>,
    context: &mut Context<'_>,
    buffer: &mut B,
) -> Poll<io::Result<usize>> {
    let room = buffer.room();
    let result = source.poll_io(Direction::Read, context, Waiting::One, || {
        Ok(socket.receive(buffer, RecvFlags::empty())?)
    });
    if let Poll::Ready(Ok(count)) = result {
        source.note_read(room, count);
    }
    result
}

/// Receives what is there.
pub(crate) fn try_receive<S: AsFd>(
    source: &Source,
    socket: &Socket<S>,
    buffer: &mut [u8],
) -> io::Result<usize> {
    if buffer.is_empty() {
        return Ok(0);
    }
    let room = buffer.len();
    let receive = || Ok(socket.receive(buffer, RecvFlags::empty())?);
    let count = source.try_io(Direction::Read, receive)?;
    source.note_read(room, count);
    Ok(count)
}

/// Sends as much as there is room for.
pub(crate) fn try_send<S: AsFd>(
    source: &Source,
    socket: &Socket<S>,
    bytes: &[u8],
) -> io::Result<usize> {
    if bytes.is_empty() {
        return Ok(0);
    }
    source.try_io(Direction::Write, || Ok(socket.send(bytes, SendFlags::empty())?))
}

#[inline]
pub(crate) fn poll_send<S: AsFd + 'static>(
    io: &AsyncFd<Socket<S>>,
    context: &mut Context<'_>,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    if bytes.is_empty() {
        return Poll::Ready(Ok(0));
    }
    send(io.source(), io.get_ref(), context, bytes)
}

#[inline]
pub(crate) fn send<S: AsFd>(
    source: &Source,
    socket: &Socket<S>,
    context: &mut Context<'_>,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    source.poll_io(Direction::Write, context, Waiting::One, || {
        Ok(socket.send(bytes, SendFlags::empty())?)
    })
}

pub(crate) fn poll_send_vectored<S: AsFd + 'static>(
    io: &AsyncFd<Socket<S>>,
    context: &mut Context<'_>,
    parts: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    send_vectored(io.source(), io.get_ref(), context, parts)
}

pub(crate) fn send_vectored<S: AsFd>(
    source: &Source,
    socket: &Socket<S>,
    context: &mut Context<'_>,
    parts: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    if parts.iter().all(|part| part.is_empty()) {
        return Poll::Ready(Ok(0));
    }
    source.poll_io(Direction::Write, context, Waiting::One, || socket.send_vectored(parts))
}
