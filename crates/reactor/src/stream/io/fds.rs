//! Descriptors with the bytes of a stream over a Unix socket (`SCM_RIGHTS`).
//!
//! 1. Only a stream with [`StreamOptions::fds_max`] carries them. It is never [at
//!    rest](crate::stream::status::StreamStatus::rests), so other streams pay nothing for it.
//! 2. It works by readiness, also on a ring. A completion of a ring would bring the descriptors as
//!    numbers in a buffer. If a reactor ends before it has looked at it, nobody closes them.
//! 3. Descriptors go with the first byte of the part that they were sent with. A write ends before
//!    the first byte of the next such part.
//! 4. Received descriptors wait in a table until the handler takes them.

use core::fmt;
use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::io::fcntl_dupfd_cloexec;

use crate::{
    Errno,
    error::plain_error,
    fd_passing::{RecvFdsError, SendFdsError},
    kernel::Kernel,
    stream::{
        DisconnectReason, Stream, StreamOptions, StreamWriteError,
        io::{
            output::Output,
            readiness::{DriverFrame, ReceiveResult},
            write::PIECES_PER_WRITE,
        },
        parts::ReactorParts,
        state::{StreamCore, StreamTable},
        status::{Receive, StreamFlags},
    },
};

/// Why bytes with descriptors were not accepted for sending. Neither bytes nor descriptors are
/// sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamFdsError {
    /// The bytes are not accepted.
    Write(StreamWriteError),
    /// More than [`fds_max`](StreamOptions::fds_max) descriptors would wait. Send them later.
    LimitReached,
    /// There are more than [`fds_max`](StreamOptions::fds_max), so they can never be sent. A stream
    /// with TLS carries none.
    AboveMax,
    /// The descriptors cannot be sent, or cannot be kept until the socket accepts them (`EMFILE`).
    Send(SendFdsError),
}

plain_error!(
    StreamFdsError,
    |e| match e {
        Self::Write(_) => "the bytes of descriptors are not accepted",
        Self::LimitReached => "as many descriptors as may be (fds_max) wait already",
        Self::AboveMax => "there are more descriptors than fds_max of the stream; raise it",
        Self::Send(_) => "descriptors cannot be sent",
    },
    match e {
        StreamFdsError::Write(error) => return io::Error::from(*error),
        StreamFdsError::Send(error) => return io::Error::from(*error),
        StreamFdsError::LimitReached => Err(io::ErrorKind::WouldBlock),
        StreamFdsError::AboveMax => Err(io::ErrorKind::InvalidInput),
    },
    match e {
        Self::Write(error) => Some(error as &dyn fmt::Display),
        Self::Send(error) => Some(error as &dyn fmt::Display),
        Self::LimitReached | Self::AboveMax => None,
    }
);

impl From<StreamWriteError> for StreamFdsError {
    fn from(error: StreamWriteError) -> Self {
        Self::Write(error)
    }
}

impl From<SendFdsError> for StreamFdsError {
    fn from(error: SendFdsError) -> Self {
        Self::Send(error)
    }
}

impl Stream<'_> {
    /// Sends bytes with descriptors over a Unix socket, all or nothing. The descriptors go with the
    /// first of the bytes, behind the output sent before, and stay open here. There are at most
    /// [`FDS_MAX`](crate::fd_passing::FDS_MAX), with at least one byte.
    ///
    /// It is written at once. If the socket is full, the stream keeps duplicates of the descriptors
    /// until it has room. Later output follows behind. A stream that cannot send what waits ends
    /// with [`DisconnectReason::Error`]: for example with `ETOOMANYREFS`, if as many descriptors as
    /// the process may have open are on their way.
    ///
    /// ```
    /// use std::{fs::File, os::{fd::AsFd, unix::net::UnixStream}};
    /// use windlass::{Reactor, fd_passing::recv_with_fds, stream::StreamOptions};
    /// # use windlass::stream::{Input, Stream, StreamHandler};
    /// # struct Ignore;
    /// # impl StreamHandler for Ignore {
    /// #     fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
    /// # }
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let (ours, theirs) = UnixStream::pair()?;
    /// let mut reactor = Reactor::new()?;
    /// let options = StreamOptions::new().fds_max(8);
    /// let key = options.with_fd(ours).with_handler(Ignore).register_into(&mut reactor)?;
    /// let file = File::open("/dev/null")?;
    /// reactor.stream(key)?.send_with_fds(b"a file", &[file.as_fd()])?;
    /// let (count, fds) = recv_with_fds(&theirs, &mut [0; 64], 1)?;
    /// assert_eq!((count, fds.len()), (6, 1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Nothing is sent. [`StreamFdsError`] has the reasons.
    #[doc(alias("sendmsg", "SCM_RIGHTS"))]
    pub fn send_with_fds(
        &mut self,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), StreamFdsError> {
        if fds.is_empty() {
            return Ok(self.send(bytes)?);
        }
        let (streams, kernel, index) = self.split();
        let sent = streams.send_with_fds(kernel, index, bytes, fds);
        if sent.is_err() {
            // As after other failed writes.
            self.touch();
        }
        sent
    }

    /// Takes the descriptors that were received, in the order in which they were sent. They are
    /// here once the first byte that they were sent with is. What is not taken is closed with the
    /// stream.
    ///
    /// ```
    /// use std::{fs::File, io::Read, os::{fd::AsFd, unix::net::UnixStream}};
    /// use windlass::{Reactor, fd_passing::send_all_with_fds};
    /// use windlass::stream::{Input, Stream, StreamHandler, StreamOptions};
    ///
    /// struct Print;
    /// impl StreamHandler for Print {
    ///     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
    ///         assert_eq!(&input[..], b"a file");
    ///         for fd in stream.take_fds() {
    ///             let mut text = String::new();
    ///             File::from(fd).read_to_string(&mut text).expect("a text");
    ///             println!("{text}");
    ///         }
    ///         stream.turn().stop();
    ///     }
    /// }
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let (ours, theirs) = UnixStream::pair()?;
    /// let mut reactor = Reactor::new()?;
    /// StreamOptions::new().fds_max(1).register(ours, Print, &mut reactor)?;
    /// let file = File::open("/proc/self/comm")?;
    /// send_all_with_fds(&theirs, b"a file", &[file.as_fd()])?;
    /// reactor.run()
    /// # }
    /// ```
    #[doc(alias("recvmsg", "SCM_RIGHTS"))]
    pub fn take_fds(&mut self) -> Vec<OwnedFd> {
        let (streams, _, index) = self.split();
        streams.received_fds.remove(&index).unwrap_or_default()
    }

    /// The number of received descriptors that were not taken.
    #[must_use]
    pub fn received_fds(&self) -> usize {
        self.reactor.streams().received_fds.get(&self.index).map_or(0, Vec::len)
    }

    /// The number of descriptors of the buffered output.
    #[must_use]
    pub fn buffered_fds(&self) -> usize {
        self.core_ref().buffered_fds()
    }
}

impl StreamCore {
    /// Whether it carries descriptors (rule 1).
    pub(in crate::stream) fn carries_fds(&self) -> bool {
        self.options.fds_max > 0 && !self.status.has_tls()
    }

    /// How it is watched for input.
    pub(in crate::stream) fn armed(&self) -> Receive {
        if self.carries_fds() { Receive::WithFds } else { Receive::Armed }
    }

    fn buffered_fds(&self) -> usize {
        self.output.as_ref().map_or(0, |output| output.waiting_fds())
    }

    /// Writes output with descriptors, and then the pieces. Returns how many bytes of the pieces
    /// the socket has accepted.
    #[cold]
    pub(super) fn drain_with_fds(
        &mut self,
        output: &mut Output,
        pieces: &[IoSlice<'_>],
    ) -> Result<usize, Errno> {
        while output.has_fds() {
            let mut slices = [IoSlice::new(&[]); PIECES_PER_WRITE];
            let (count, fds) = output.slices_with_fds(&mut slices);
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            let sent = self.offer_with_fds(&slices[..count], &fds)?;
            output.advance_with_fds(sent);
            if self.status.any(StreamFlags::BLOCKED) {
                return Ok(0);
            }
        }
        if output.len() == 0 && pieces.is_empty() { Ok(0) } else { self.drain(output, pieces) }
    }

    /// See [`StreamCore::offer`].
    fn offer_with_fds(
        &mut self,
        slices: &[IoSlice<'_>],
        fds: &[BorrowedFd<'_>],
    ) -> Result<usize, Errno> {
        let sent = self.socket.send_with_fds(slices, fds);
        self.note_sent(sent, slices.iter().map(|slice| slice.len()).sum())
    }
}

impl StreamTable {
    fn send_with_fds(
        &mut self,
        kernel: &mut Kernel,
        index: u32,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), StreamFdsError> {
        if self.is_in_child() {
            return Err(StreamWriteError::Closed.into());
        }
        let core = self.core(index);
        if core.status.rejects_output() {
            return Err(StreamWriteError::Closed.into());
        }
        if !core.carries_fds() || fds.len() > core.options.fds_max {
            return Err(StreamFdsError::AboveMax);
        }
        if core.buffered_fds() + fds.len() > core.options.fds_max {
            return Err(StreamFdsError::LimitReached);
        }
        core.socket.check_fds(bytes.len(), fds.len())?;
        self.admit_output(index, bytes.len())?;
        let accepted = match self.write_with_fds(index, bytes, fds) {
            Err(errno @ (Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)) => {
                self.core(index).fail(errno);
                return Err(StreamWriteError::Closed.into());
            }
            accepted => accepted.map_err(SendFdsError::Os)?,
        };
        if accepted == 0 {
            // One that fails closes those before it.
            let kept: Result<_, _> = fds.iter().map(|fd| fcntl_dupfd_cloexec(fd, 0)).collect();
            let kept = kept.map_err(|errno| {
                let core = self.core(index);
                if core.output.is_none() {
                    // Nothing waits for the socket.
                    core.status.clear(StreamFlags::BLOCKED);
                }
                SendFdsError::Os(errno)
            })?;
            self.output(index).push_with_fds(bytes, kept);
        } else if accepted < bytes.len() {
            self.output(index).push(&bytes[accepted..]);
        }
        self.after_output(kernel, index);
        Ok(())
    }

    /// Writes the output, and then the bytes if nothing is left of it. Returns how many of the
    /// bytes the socket has accepted; if any, the descriptors have gone.
    fn write_with_fds(
        &mut self,
        index: u32,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<usize, Errno> {
        if self.core(index).status.holds_output() {
            return Ok(0);
        }
        self.transmit(index, &[])?;
        let core = self.core(index);
        if core.output.is_some() {
            return Ok(0);
        }
        core.offer_with_fds(&[IoSlice::new(bytes)], fds)
    }
}

impl DriverFrame<'_> {
    /// [`receive`](Self::receive) with descriptors.
    #[cold]
    pub(super) fn receive_with_fds(&mut self) -> ReceiveResult {
        let index = self.index;
        let ReactorParts { streams, kernel, timing, .. } = self.reactor.parts();
        let scratch = self.scratch.get_or_insert_with(|| streams.take_scratch());
        let waiting = streams.received_fds.get(&index).map_or(0, Vec::len);
        let core = streams.core(index);
        match core.socket.recv_with_fds(scratch, core.options.fds_max - waiting) {
            Ok((0, _)) => ReceiveResult::End,
            Ok((count, fds)) => {
                if core.status.any(StreamFlags::IDLE) {
                    core.last_rx_ns = timing.now_ns(kernel);
                }
                if !fds.is_empty() {
                    streams.received_fds.entry(index).or_default().extend(fds);
                }
                ReceiveResult::Data(count)
            }
            Err(RecvFdsError::Os(Errno::AGAIN | Errno::INTR)) => ReceiveResult::Nothing,
            Err(RecvFdsError::Os(errno)) => ReceiveResult::Failed(errno),
            Err(error) => {
                core.kill(match error {
                    RecvFdsError::TooMany { .. } => DisconnectReason::TooManyFds,
                    _ => DisconnectReason::FdsTruncated,
                });
                ReceiveResult::Nothing
            }
        }
    }
}

impl StreamOptions {
    /// The maximum number of descriptors that wait in the stream, in each direction: received ones
    /// that [`take_fds`](Stream::take_fds) did not take, and those of output that the socket has
    /// not accepted. A peer that sends more is disconnected
    /// ([`TooManyFds`](DisconnectReason::TooManyFds)). Default: zero. Such a stream carries none,
    /// and the kernel closes those that a peer sends.
    ///
    /// For Unix sockets. Streams with TLS carry none. On a ring
    /// ([`Backend::Uring`](crate::Backend::Uring)) a stream that carries descriptors works by
    /// readiness, with system calls of its own: a completion that nobody looks at would leave its
    /// descriptors open.
    #[doc(alias = "SCM_RIGHTS")]
    pub const fn fds_max(mut self, count: usize) -> Self {
        self.fds_max = count;
        self
    }
}
