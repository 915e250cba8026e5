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
    io::Unfilled,
};

/// A stream of bytes of this crate: [`TcpStream`](crate::net::TcpStream) and
/// [`UnixStream`](crate::net::UnixStream). Their halves name it.
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
pub(crate) fn poll_receive<T: AsFd + 'static, B: Unfilled + ?Sized>(
    io: &AsyncFd<T>,
    context: &mut Context<'_>,
    buffer: &mut B,
) -> Poll<io::Result<usize>> {
    if buffer.room() == 0 {
        return Poll::Ready(Ok(0));
    }
    receive(io.source(), io, context, buffer)
}

/// As [`poll_receive`], into a buffer that is not empty.
#[inline]
pub(crate) fn receive<B: Unfilled + ?Sized>(
    source: &Source,
    fd: impl AsFd,
    context: &mut Context<'_>,
    buffer: &mut B,
) -> Poll<io::Result<usize>> {
    let room = buffer.room();
    let result = source.poll_io(Direction::Read, context, Waiting::One, || {
        Ok(buffer.receive(fd.as_fd(), RecvFlags::empty())?)
    });
    if let Poll::Ready(Ok(count)) = result {
        source.note_read(room, count);
    }
    result
}

/// Receives what is there.
pub(crate) fn try_receive(source: &Source, fd: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    if buffer.is_empty() {
        return Ok(0);
    }
    let room = buffer.len();
    let count =
        source.try_io(Direction::Read, || Ok(buffer.receive(fd.as_fd(), RecvFlags::empty())?))?;
    source.note_read(room, count);
    Ok(count)
}

/// Sends as much as there is room for.
pub(crate) fn try_send(source: &Source, fd: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    if bytes.is_empty() {
        return Ok(0);
    }
    source.try_io(Direction::Write, || Ok(rustix::net::send(&fd, bytes, SendFlags::NOSIGNAL)?))
}

#[inline]
pub(crate) fn poll_send<T: AsFd + 'static>(
    io: &AsyncFd<T>,
    context: &mut Context<'_>,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    if bytes.is_empty() {
        return Poll::Ready(Ok(0));
    }
    send(io.source(), io, context, bytes)
}

#[inline]
pub(crate) fn send(
    source: &Source,
    fd: impl AsFd,
    context: &mut Context<'_>,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    source.poll_io(Direction::Write, context, Waiting::One, || {
        Ok(rustix::net::send(&fd, bytes, SendFlags::NOSIGNAL)?)
    })
}

pub(crate) fn poll_send_vectored<T: AsFd + 'static>(
    io: &AsyncFd<T>,
    context: &mut Context<'_>,
    parts: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    send_vectored(io.source(), io, context, parts)
}

pub(crate) fn send_vectored(
    source: &Source,
    fd: impl AsFd,
    context: &mut Context<'_>,
    parts: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    if parts.iter().all(|part| part.is_empty()) {
        return Poll::Ready(Ok(0));
    }
    source.poll_io(Direction::Write, context, Waiting::One, || {
        let mut control = rustix::net::SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(&fd, parts, &mut control, SendFlags::NOSIGNAL)?)
    })
}
