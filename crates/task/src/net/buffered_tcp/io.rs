//! The operations of a [`BufferedTcp`], as far as they are those of a stream.

use core::task::{Context, Poll, ready};
use std::{
    io::{self, ErrorKind, IoSlice},
    net::Shutdown,
    rc::Rc,
};

use rustix::{io::Errno, net::RecvFlags};
use windlass::{
    Key,
    stream::{Stream, StreamWriteError},
};

use crate::{
    budget::poll_proceed,
    fd::source::gone,
    io::{Socket, Unfilled, read_buffer::READ_BUFFER_MAX, receive, send, send_vectored},
    net::{
        buffered_tcp::{BufferedTcp, State},
        common,
    },
};

/// The outcome of a write.
enum Written {
    Count(usize),
    /// The output is full.
    Full,
    /// The stream has failed. Its handler is told in the next turn.
    Failed,
}

impl BufferedTcp {
    #[inline]
    pub(in crate::net) fn poll_read<B: Unfilled + ?Sized>(
        self: &Rc<Self>,
        context: &mut Context<'_>,
        buffer: &mut B,
    ) -> Poll<io::Result<usize>> {
        if buffer.room() == 0 {
            return Poll::Ready(Ok(0));
        }
        if self.read_buffer.borrow().is_empty() {
            let waits = matches!(self.state.get(), State::Streaming(_)) && !self.has_end.get();
            if waits && self.handle.is_open() {
                self.readers.set_one(context.waker());
                return Poll::Pending;
            }
            return self.poll_read_empty(context, buffer);
        }
        let proceed = ready!(poll_proceed(context));
        let count = self.read_buffered(buffer);
        proceed.made_progress();
        Poll::Ready(Ok(count))
    }

    /// Takes bytes out of the read buffer.
    #[inline]
    pub(super) fn read_buffered<B: Unfilled + ?Sized>(&self, buffer: &mut B) -> usize {
        let (count, left) = {
            let mut read_buffer = self.read_buffer.borrow_mut();
            (read_buffer.read(buffer, &self.streams.spares), read_buffer.len())
        };
        if self.is_paused.get() && left <= READ_BUFFER_MAX / 2 {
            self.resume();
        }
        count
    }

    /// The read buffer is empty, and the stream may be over, or may not have been started.
    #[cold]
    fn poll_read_empty<B: Unfilled + ?Sized>(
        self: &Rc<Self>,
        context: &mut Context<'_>,
        buffer: &mut B,
    ) -> Poll<io::Result<usize>> {
        if self.state.get() == State::Plain {
            if !self.completes {
                return receive(&*self.readiness()?, &self.socket, context, buffer);
            }
            ready!(self.start(context, &self.readers))?;
        }
        match self.state.get() {
            _ if self.has_end.get() => Poll::Ready(Ok(0)),
            State::Over => {
                let proceed = ready!(poll_proceed(context));
                proceed.made_progress();
                Poll::Ready(self.read_after_end(buffer))
            }
            _ if !self.handle.is_open() => Poll::Ready(Err(gone())),
            _ => {
                self.readers.set_one(context.waker());
                Poll::Pending
            }
        }
    }

    /// Protocols 3 and 4.
    #[cold]
    pub(super) fn read_after_end<B: Unfilled + ?Sized>(&self, buffer: &mut B) -> io::Result<usize> {
        if self.is_gone.get() {
            return Err(gone());
        }
        match self.socket.receive(buffer, RecvFlags::DONTWAIT) {
            Ok(count @ 1..) => Ok(count),
            Ok(_) | Err(Errno::AGAIN) => match self.error.get() {
                None | Some(Errno::PIPE) => Ok(0),
                Some(errno) => {
                    self.error.set(None);
                    Err(errno.into())
                }
            },
            Err(errno) => Err(errno.into()),
        }
    }

    /// Half of the read buffer was read (protocol 5).
    #[cold]
    fn resume(&self) {
        self.is_paused.set(false);
        let State::Streaming(key) = self.state.get() else { return };
        self.handle.request(move |mut turn| {
            if let Ok(mut stream) = turn.stream(key) {
                stream.resume();
            }
        });
    }

    #[inline]
    pub(in crate::net) fn poll_write(
        self: &Rc<Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if self.state.get() == State::Plain && !self.completes {
            return send(&*self.readiness()?, &self.socket, context, bytes);
        }
        let proceed = ready!(poll_proceed(context));
        let write = |mut stream: Stream<'_>| stream.send_some(bytes);
        let result = ready!(self.poll_output(context, write))?;
        proceed.made_progress();
        Poll::Ready(Ok(result))
    }

    pub(in crate::net) fn poll_write_vectored(
        self: &Rc<Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.state.get() == State::Plain && !self.completes {
            return send_vectored(&*self.readiness()?, &self.socket, context, parts);
        }
        let mut parts = parts.iter().filter(|part| !part.is_empty());
        let Some(first) = parts.next() else { return Poll::Ready(Ok(0)) };
        let proceed = ready!(poll_proceed(context));
        let write = |mut stream: Stream<'_>| {
            let mut count = stream.send_some(first)?;
            let mut is_whole = count == first.len();
            for part in parts {
                if !is_whole {
                    break;
                }
                // The error, if there is one, is that of the next write.
                let Ok(more) = stream.send_some(part) else { break };
                count += more;
                is_whole = more == part.len();
            }
            Ok(count)
        };
        let result = ready!(self.poll_output(context, write))?;
        proceed.made_progress();
        Poll::Ready(Ok(result))
    }

    /// Calls a closure that sends.
    #[inline]
    fn poll_output(
        self: &Rc<Self>,
        context: &Context<'_>,
        write: impl FnOnce(Stream<'_>) -> Result<usize, StreamWriteError>,
    ) -> Poll<io::Result<usize>> {
        if self.state.get() == State::Plain && !self.is_finished.get() {
            ready!(self.start(context, &self.writers))?;
        }
        let key = match self.state.get() {
            State::Over => {
                let error = self.take_write_error().unwrap_or_else(|| Errno::PIPE.into());
                return Poll::Ready(Err(error));
            }
            State::Streaming(key) if !self.is_finished.get() => key,
            _ => return Poll::Ready(Err(Errno::PIPE.into())),
        };
        let written = self.with_stream(key, |stream| match stream.map(write) {
            Some(Ok(count)) => Written::Count(count),
            Some(Err(StreamWriteError::Full)) => Written::Full,
            None | Some(Err(_)) => Written::Failed,
        });
        match written {
            Some(Written::Count(count)) => Poll::Ready(Ok(count)),
            Some(Written::Full) => {
                self.wait_for_output(key, context);
                Poll::Pending
            }
            Some(Written::Failed) => self.wait_for_end(context),
            None => self.wait_for_turn(context, &self.writers),
        }
    }

    /// Waits until the socket has accepted the output.
    #[cold]
    pub(super) fn wait_for_output(&self, key: Key, context: &Context<'_>) {
        self.writers.set_one(context.waker());
        self.with_stream(key, |stream| stream.map(|mut stream| stream.notify()));
    }

    /// The handler is told in the next turn why the stream has ended.
    #[cold]
    fn wait_for_end<T>(&self, context: &Context<'_>) -> Poll<io::Result<T>> {
        if !self.handle.is_open() {
            return Poll::Ready(Err(gone()));
        }
        self.writers.set_one(context.waker());
        Poll::Pending
    }

    /// The error of an ended stream, for writing (protocol 4).
    pub(super) fn take_write_error(&self) -> Option<io::Error> {
        if self.is_gone.get() { Some(gone()) } else { self.error.take().map(io::Error::from) }
    }

    /// Ready when no output waits for the socket, except for a short one of this turn, which is
    /// queued with the ring.
    pub(in crate::net) fn poll_flush(
        self: &Rc<Self>,
        context: &Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_output_gone(context, |stream| stream.buffered() > 0 && stream.wait_for_low_mark())
    }

    /// Ready when `waits` says that no output waits for the socket.
    pub(super) fn poll_output_gone(
        self: &Rc<Self>,
        context: &Context<'_>,
        waits: impl FnOnce(&mut Stream<'_>) -> bool,
    ) -> Poll<io::Result<()>> {
        let key = match self.state.get() {
            State::Plain => return Poll::Ready(Ok(())),
            State::Over => return Poll::Ready(self.take_write_error().map_or(Ok(()), Err)),
            State::Streaming(key) => key,
        };
        let waits = self.with_stream(key, |stream| stream.map(|mut stream| waits(&mut stream)));
        match waits {
            Some(Some(false)) => Poll::Ready(Ok(())),
            Some(Some(true)) => {
                self.wait_for_output(key, context);
                Poll::Pending
            }
            Some(None) => self.wait_for_end(context),
            None => self.wait_for_turn(context, &self.writers),
        }
    }

    /// Ends writing after the output. Ready when the output is gone.
    pub(in crate::net) fn poll_shutdown(
        self: &Rc<Self>,
        context: &Context<'_>,
    ) -> Poll<io::Result<()>> {
        let key = match self.state.get() {
            State::Plain => {
                return Poll::Ready(common::ended(self.shutdown_plain(Shutdown::Write)));
            }
            State::Over => {
                let error = self.take_write_error();
                return Poll::Ready(
                    error.map_or_else(|| self.shutdown_socket(Shutdown::Write), Err),
                );
            }
            State::Streaming(key) => key,
        };
        let left = self.with_stream(key, |stream| Some(self.finish(&mut stream?)).flatten());
        match left {
            Some(Some(0)) => Poll::Ready(self.shutdown_socket(Shutdown::Write)),
            Some(Some(_)) => {
                self.wait_for_output(key, context);
                Poll::Pending
            }
            Some(None) => self.wait_for_end(context),
            None => self.wait_for_turn(context, &self.writers),
        }
    }

    /// Writes the output, and ends writing. Returns the number of bytes that still wait. `None` if
    /// the stream has failed.
    fn finish(&self, stream: &mut Stream<'_>) -> Option<usize> {
        let left = stream.send_now();
        if !self.is_finished.get() && stream.send(&[]).is_err() {
            return None;
        }
        self.is_finished.set(true);
        stream.finish();
        Some(left)
    }

    /// Ends a direction of a plain socket. A stream that is started later knows of it.
    fn shutdown_plain(&self, how: Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)?;
        if how != Shutdown::Read {
            self.is_finished.set(true);
        }
        Ok(())
    }

    fn shutdown_socket(&self, how: Shutdown) -> io::Result<()> {
        common::ended(self.socket.shutdown(how))
    }

    /// Ends a direction without waiting. Output that waits is sent before.
    pub(in crate::net) fn shutdown_now(self: &Rc<Self>, how: Shutdown) -> io::Result<()> {
        if how == Shutdown::Read {
            return self.socket.shutdown(how);
        }
        if !self.unsent.is_empty() {
            // The peer would read the end in its place.
            return Err(gone());
        }
        let State::Streaming(key) = self.state.get() else { return self.shutdown_plain(how) };
        let left = self.with_stream(key, |stream| Some(self.finish(&mut stream?)).flatten());
        match left {
            Some(None | Some(0)) => self.socket.shutdown(how),
            Some(Some(_)) if how == Shutdown::Write => Ok(()),
            Some(Some(_)) => self.socket.shutdown(Shutdown::Read),
            None => {
                // In the next turn.
                self.is_finished.set(true);
                let queued = self.queued_shutdown.get();
                if queued != Some(Shutdown::Both) {
                    self.queued_shutdown.set(Some(how));
                }
                if queued.is_some() {
                    return Ok(());
                }
                let this = Rc::downgrade(self);
                self.handle.request(move |mut turn| {
                    let Some(this) = this.upgrade() else { return };
                    let Some(how) = this.queued_shutdown.take() else { return };
                    this.is_finished.set(false);
                    if let Ok(mut stream) = turn.stream(key) {
                        if matches!(this.finish(&mut stream), None | Some(0)) {
                            let _ = this.socket.shutdown(how);
                        }
                    }
                });
                Ok(())
            }
        }
    }

    /// Copies bytes without removing them.
    pub(in crate::net) fn peek_buffered(&self, buffer: &mut [u8]) -> Option<usize> {
        let read_buffer = self.read_buffer.borrow();
        (!read_buffer.is_empty()).then(|| read_buffer.peek(buffer))
    }

    /// Polls for bytes, an end or an error, and copies bytes without removing them.
    pub(in crate::net) async fn peek(self: &Rc<Self>, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(count) = self.peek_buffered(buffer) {
                return Ok(count);
            }
            match self.state.get() {
                State::Plain => {
                    let source = self.readiness()?;
                    let peek = || Ok(self.socket.receive(&mut *buffer, RecvFlags::PEEK)?);
                    match source.io(crate::Direction::Read, peek).await {
                        Err(error) if self.has_left(&source) && error.raw_os_error().is_none() => {}
                        result => return result,
                    }
                }
                _ if self.has_end.get() => return Ok(0),
                State::Streaming(_) => self.ready(crate::Direction::Read).await?,
                State::Over if self.is_gone.get() => return Err(gone()),
                State::Over => {
                    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
                    return match self.socket.receive(buffer, flags) {
                        Ok(count) => Ok(count),
                        Err(Errno::AGAIN) => Ok(0),
                        Err(errno) => Err(errno.into()),
                    };
                }
            }
        }
    }

    /// `SO_ERROR`, and the error of the stream.
    pub(in crate::net) fn take_error(&self) -> io::Result<Option<io::Error>> {
        match self.error.take() {
            Some(errno) => Ok(Some(errno.into())),
            None => self.socket.take_error(),
        }
    }

    pub(in crate::net) const fn socket(&self) -> &Socket<std::net::TcpStream> {
        &self.socket
    }
}

/// A closure of the user would miss the bytes of the read buffer (protocol 2).
pub(super) fn unsupported() -> io::Error {
    io::Error::new(
        ErrorKind::Unsupported,
        "this stream receives and sends by completion: use `read`, `peek` and `write`, or `detach` \
         it first",
    )
}
