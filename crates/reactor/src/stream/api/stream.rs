//! The handle to an open stream.

use core::fmt;
use std::{
    io::{self, IoSlice},
    ops::{Bound, RangeBounds},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use crate::{
    Key, NotFound, Reactor, Turn,
    api::key::KeyKind,
    kernel::Kernel,
    stream::{
        Address, DisconnectReason, Input, SharedBytes, StreamOptions, StreamWriteError, TlsSession,
        parts::ReactorParts,
        state::{StreamCore, StreamTable, no_core},
        status::{StreamFlags, StreamPhase},
    },
};

/// An open stream. A callback is given its own stream. Elsewhere on the reactor's thread,
/// [`Turn::stream`] and [`Reactor::stream`] find a stream by its key.
///
/// No call here runs a callback: its effects follow after the handler that made the call has
/// returned (rule 13).
///
/// Output sent in a callback of the stream itself is gathered and written once, after the callback
/// has returned. Output sent from elsewhere is written at the end of the turn, or outside a turn at
/// the start of the next one. Pieces of 16 KiB or more, and [`reply`](Self::reply), are written at
/// once.
///
/// On a ring ([`Backend::Uring`](crate::Backend::Uring)), the first reply or output of a turn needs
/// no system call of its own if it is short. It is submitted with the turn's end or the next wait.
/// It does not count as [`buffered`](Self::buffered). If the socket does not accept it, that shows
/// after the wait.
///
/// ```
/// use std::{io::Read, os::unix::net::UnixStream, time::Duration};
/// use windlass::{Reactor, stream::StreamOptions};
/// # use windlass::stream::{Input, Stream, StreamHandler};
/// # struct Echo;
/// # impl StreamHandler for Echo {
/// #     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
/// #         let _ = stream.reply(input, ..);
/// #     }
/// # }
///
/// # fn main() -> std::io::Result<()> {
/// let (ours, mut theirs) = UnixStream::pair()?;
/// let mut reactor = Reactor::new()?;
/// let key = StreamOptions::new().with_fd(ours).with_handler(Echo).register_into(&mut reactor)?;
///
/// let mut stream = reactor.stream(key)?;
/// stream.send(b"hello ").expect("the stream is open");
/// stream.send(b"world").expect("the stream is open");
/// reactor.run_once(Duration::ZERO)?; // both are written in one system call
/// let mut received = [0; 11];
/// theirs.read_exact(&mut received)?;
/// assert_eq!(&received, b"hello world");
/// # Ok(())
/// # }
/// ```
pub struct Stream<'a> {
    pub(in crate::stream) reactor: &'a mut Reactor,
    pub(in crate::stream) index: u32,
}

/// The bytes of a TCP connection since it began, as the kernel counts them: with those of TLS and
/// without headers of TCP. The end of either direction counts as one byte more. See
/// [`Stream::tcp_bytes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpBytes {
    /// Bytes that were received, whether they were read or not.
    pub received: u64,
    /// Bytes that were sent and that the peer's kernel has acknowledged. On the side that has
    /// connected, the kernel counts one more.
    pub acked: u64,
}

impl fmt::Debug for Stream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

impl<'a> Stream<'a> {
    /// See [`Turn::stream`].
    #[inline]
    pub(crate) fn find(reactor: &'a mut Reactor, key: Key) -> Result<Self, NotFound> {
        let index = reactor.streams().find(key).ok_or(NotFound)?;
        Ok(Self { reactor, index })
    }
}

impl Stream<'_> {
    /// The parts of the reactor that most calls need, and the index.
    #[inline(always)]
    pub(in crate::stream) fn split(&mut self) -> (&mut StreamTable, &mut Kernel, u32) {
        let ReactorParts { streams, kernel, .. } = self.reactor.parts();
        (streams, kernel, self.index)
    }

    pub(in crate::stream) fn core(&mut self) -> &mut StreamCore {
        self.reactor.parts().streams.core(self.index)
    }

    /// The core, by shared reference.
    #[inline]
    pub(in crate::stream) fn core_ref(&self) -> &StreamCore {
        match self.reactor.streams().cores.at(self.index) {
            Some(core) => core,
            None => no_core(),
        }
    }

    /// The stream's key, as [`Turn::stream`] takes it. It becomes stale as soon as
    /// [`on_close`](crate::stream::StreamHandler::on_close) is called.
    #[must_use]
    pub fn key(&self) -> Key {
        let generation = self.reactor.streams().cores.generation(self.index);
        Key::new(KeyKind::Stream, (self.index, generation))
    }

    /// The current turn, for example to use another stream.
    pub fn turn(&mut self) -> Turn<'_> {
        Turn::new(self.reactor)
    }

    /// The peer's address.
    ///
    /// # Errors
    /// The errors of getpeername(2): `ENOTCONN` before it is connected.
    #[doc(alias = "getpeername")]
    pub fn peer_addr(&self) -> io::Result<Address> {
        self.core_ref().socket.peer_addr()
    }

    /// The local address.
    ///
    /// # Errors
    /// The errors of getsockname(2).
    #[doc(alias = "getsockname")]
    pub fn local_addr(&self) -> io::Result<Address> {
        self.core_ref().socket.local_addr()
    }

    /// The bytes that the kernel has counted on the TCP connection. This is a system call: the
    /// stream itself counts no bytes.
    ///
    /// # Errors
    /// Those of getsockopt(2): `EOPNOTSUPP` if the socket is no TCP socket, or is simulated.
    #[doc(alias = "TCP_INFO")]
    pub fn tcp_bytes(&self) -> io::Result<TcpBytes> {
        self.core_ref().socket.tcp_bytes()
    }

    /// Copies and sends bytes, either all of them or none. For when they are written, see
    /// [`Stream`].
    ///
    /// # Errors
    /// None of the bytes is sent.
    ///
    /// - [`Full`](crate::stream::StreamWriteError::Full): more than
    ///   [`output_max`](crate::stream::StreamOptions::output_max) bytes would be buffered.
    /// - [`Closed`](crate::stream::StreamWriteError::Closed): the stream was finished, closed or
    ///   aborted, or has failed. Also in a child of fork(2).
    #[doc(alias("write", "sendto"))]
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), StreamWriteError> {
        let (streams, kernel, index) = self.split();
        let sent = streams.send(kernel, index, bytes);
        self.noted(sent)
    }

    /// Sends several pieces in order. See [`send`](Self::send).
    ///
    /// # Errors
    /// None of the bytes is sent.
    ///
    /// - [`Full`](crate::stream::StreamWriteError::Full): more than
    ///   [`output_max`](crate::stream::StreamOptions::output_max) bytes would be buffered.
    /// - [`Closed`](crate::stream::StreamWriteError::Closed): the stream was finished, closed or
    ///   aborted, or has failed. Also in a child of fork(2).
    #[doc(alias("writev", "sendmsg"))]
    pub fn send_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Result<(), StreamWriteError> {
        let (streams, kernel, index) = self.split();
        let sent = streams.send(kernel, index, pieces);
        self.noted(sent)
    }

    /// Sends bytes that many streams are sent. Bytes that have to wait are shared and not copied,
    /// unless they are very short.
    ///
    /// # Errors
    /// None of the bytes is sent.
    ///
    /// - [`Full`](crate::stream::StreamWriteError::Full): more than
    ///   [`output_max`](crate::stream::StreamOptions::output_max) bytes would be buffered.
    /// - [`Closed`](crate::stream::StreamWriteError::Closed): the stream was finished, closed or
    ///   aborted, or has failed. Also in a child of fork(2).
    pub fn send_shared(&mut self, bytes: &SharedBytes<'_>) -> Result<(), StreamWriteError> {
        let (streams, kernel, index) = self.split();
        let sent = streams.send(kernel, index, bytes);
        self.noted(sent)
    }

    /// Sends bytes that many streams are sent, at once and after the output sent before. Use it at
    /// the end of a turn when nothing more follows. Returns the number of buffered bytes. Bytes
    /// that have to wait are shared and not copied, unless they are very short.
    ///
    /// # Errors
    /// None of the bytes is sent.
    ///
    /// - [`Full`](crate::stream::StreamWriteError::Full): more than
    ///   [`output_max`](crate::stream::StreamOptions::output_max) bytes would be buffered.
    /// - [`Closed`](crate::stream::StreamWriteError::Closed): the stream was finished, closed or
    ///   aborted, or has failed. Also in a child of fork(2).
    #[inline]
    pub fn write_shared(&mut self, bytes: &SharedBytes<'_>) -> Result<usize, StreamWriteError> {
        let (streams, kernel, index) = self.split();
        let sent = streams.write_payload(kernel, index, bytes);
        self.noted(sent)
    }

    /// Requests a call of the handler's [`on_notify`](crate::stream::StreamHandler::on_notify) in
    /// the next turn, which starts without waiting. If the stream is not open yet, the call follows
    /// when it is. A closed stream is not notified.
    pub fn notify(&mut self) {
        self.core().status.insert(StreamFlags::NOTIFY_DUE);
        self.touch();
    }

    /// Sends a part of the received bytes, with any changes made to them, directly from the buffer.
    /// Only bytes that the socket does not accept are copied.
    ///
    /// It is written at once, after the output sent before it.
    ///
    /// # Errors
    /// None of the bytes is sent.
    ///
    /// - [`Full`](crate::stream::StreamWriteError::Full): more than
    ///   [`output_max`](crate::stream::StreamOptions::output_max) bytes would be buffered.
    /// - [`Closed`](crate::stream::StreamWriteError::Closed): the stream was finished, closed or
    ///   aborted, or has failed. Also in a child of fork(2).
    ///
    /// # Panics
    /// If the range is not inside the input.
    #[inline(always)]
    pub fn reply(
        &mut self,
        input: Input<'_>,
        range: impl RangeBounds<usize>,
    ) -> Result<(), StreamWriteError> {
        self.write_reply(input, range).map(drop)
    }

    /// Like [`reply`](Self::reply), and returns the number of buffered bytes, as
    /// [`write_shared`](Self::write_shared) does.
    ///
    /// # Errors
    /// None of the bytes is sent.
    ///
    /// - [`Full`](crate::stream::StreamWriteError::Full): more than
    ///   [`output_max`](crate::stream::StreamOptions::output_max) bytes would be buffered.
    /// - [`Closed`](crate::stream::StreamWriteError::Closed): the stream was finished, closed or
    ///   aborted, or has failed. Also in a child of fork(2).
    ///
    /// # Panics
    /// If the range is not inside the input.
    #[inline(always)]
    pub fn write_reply(
        &mut self,
        input: Input<'_>,
        range: impl RangeBounds<usize>,
    ) -> Result<usize, StreamWriteError> {
        // Written out so that the compiler can inline it: slicing by bounds is a call.
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => input.bytes.len(),
        };
        let (streams, kernel, index) = self.split();
        let sent = streams.write_payload(kernel, index, &input.bytes[start..end]);
        self.noted(sent)
    }

    /// The stream's TLS session, with what was negotiated: complete in
    /// [`on_open`](crate::stream::StreamHandler::on_open). `None` for a stream without TLS.
    #[must_use]
    pub fn tls(&self) -> Option<&dyn TlsSession> {
        self.reactor.streams().tls_session(self.index)
    }

    /// The number of buffered bytes: gathered output, and output that the socket has not accepted.
    #[must_use]
    #[inline]
    pub fn buffered(&self) -> usize {
        self.core_ref().buffered()
    }

    /// Bytes of memory held for buffered output, and for received bytes that were not delivered
    /// yet. Bytes shared with other streams ([`send_shared`](Self::send_shared)) count with this
    /// stream's share.
    #[must_use]
    pub fn memory(&mut self) -> usize {
        let (streams, _, index) = self.split();
        let output = streams.core(index).output.as_ref().map_or(0, |output| output.memory());
        let partial = streams.tls_memory(index);
        let undelivered = streams.prefixes.get(&index).into_iter().flatten();
        output + partial + undelivered.map(|piece| piece.bytes.capacity()).sum::<usize>()
    }

    /// True if the output has exceeded the high watermark and has not fallen to the low one since.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.core_ref().status.any(StreamFlags::FULL)
    }

    /// Treats the output as above the high watermark, so that
    /// [`on_drained`](crate::stream::StreamHandler::on_drained) is called when it has fallen to the
    /// low one. Returns false if that call would not come: the output is already at the low
    /// watermark, or the socket may still accept it.
    pub fn wait_for_low_mark(&mut self) -> bool {
        let core = self.core();
        let may_wait =
            core.status.any(StreamFlags::BLOCKED) && core.buffered() > core.options.low_watermark;
        if may_wait {
            core.status.insert(StreamFlags::FULL);
            self.touch();
        }
        may_wait
    }

    /// Closes the writing half once the output is written; receiving continues. The stream ends
    /// when the peer closes its writing half too, or by [`close`](Self::close).
    #[doc(alias("shutdown", "SHUT_WR"))]
    pub fn finish(&mut self) {
        self.core().status.insert(StreamFlags::FINISHING);
        self.touch();
    }

    /// Closes the stream gracefully: writes the buffered output and a FIN, then waits for the
    /// peer's FIN. All of that takes at most [`linger`](StreamOptions::linger). Input received
    /// meanwhile is discarded. This way the peer gets all of the output, even if not all of its
    /// input was read.
    ///
    /// After the running handler, [`on_close`](crate::stream::StreamHandler::on_close) is the only
    /// callback.
    pub fn close(&mut self) {
        let (streams, kernel, index) = self.split();
        streams.close(kernel, index);
    }

    /// Closes the stream gracefully, but without waiting for the peer's FIN. For protocols in which
    /// the peer has announced that it sends nothing more. If it still sends something, the kernel
    /// sends a RST, which may overtake the output.
    pub fn close_after_output(&mut self) {
        self.core().status.insert(StreamFlags::NO_LINGER);
        self.close();
    }

    /// Closes the stream at once and discards buffered output. On TCP the peer gets a RST.
    /// [`on_close`](crate::stream::StreamHandler::on_close) follows after the running handler, or
    /// in the next turn if that is the handler of another stream.
    #[doc(alias = "SO_LINGER")]
    pub fn abort(&mut self) {
        let core = self.core();
        if core.status.is(StreamPhase::Closing) {
            core.reason = Some(DisconnectReason::Aborted);
        }
        core.kill(DisconnectReason::Aborted);
        core.status.clear(StreamFlags::DELIVERS);
        core.status.insert(StreamFlags::RESET);
        self.touch();
    }

    /// Like [`abort`](Self::abort), but frees the buffered bytes at once instead of when the stream
    /// is closed. For use when memory is short.
    pub fn discard(&mut self) {
        self.abort();
        let (streams, _, index) = self.split();
        streams.drop_waiting(index);
    }

    /// Stops reading until [`resume`](Self::resume): the kernel's buffer fills, and then the peer
    /// must wait. A reset of the connection is still noticed. The peer's end of stream is noticed
    /// when reading continues.
    pub fn pause(&mut self) {
        let core = self.core();
        core.status.insert(StreamFlags::PAUSED);
        if core.status.take(StreamFlags::IDLE_DUE) {
            // The wheel has already removed its deadline.
            core.status.insert(StreamFlags::ARM);
        }
        self.touch();
    }

    /// Reads again after [`pause`](Self::pause).
    pub fn resume(&mut self) {
        let core = self.core();
        if core.status.take(StreamFlags::PAUSED) {
            if core.status.any(StreamFlags::IDLE) {
                core.status.insert(StreamFlags::STAMP_RX | StreamFlags::ARM);
            }
            self.touch();
        }
    }

    /// True while reading is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.core_ref().status.any(StreamFlags::PAUSED)
    }

    /// The stream's settings.
    #[must_use = "it changes nothing"]
    pub fn options(&self) -> StreamOptions {
        *self.core_ref().options
    }

    /// See [`StreamOptions::watermarks`].
    pub fn set_watermarks(&mut self, low: usize, high: usize) {
        self.set_options(|options| options.watermarks(low, high));
    }

    /// See [`StreamOptions::idle_timeout`]. The timeout starts again.
    pub fn set_idle_timeout(&mut self, timeout: Option<Duration>) {
        self.set_options(|options| options.idle_timeout(timeout));
        let core = self.core();
        core.status.set(StreamFlags::IDLE, timeout.is_some());
        core.status.clear(StreamFlags::IDLE_DUE);
        core.status.insert(StreamFlags::STAMP_RX | StreamFlags::ARM);
    }

    /// See [`StreamOptions::write_stall_timeout`]. The timeout starts again.
    pub fn set_write_stall_timeout(&mut self, timeout: Option<Duration>) {
        self.set_options(|options| options.write_stall_timeout(timeout));
        let core = self.core();
        // Other waits are timed in these phases, and must not start again: for the connection, for
        // the handshake, and for the end.
        let is_other_wait = [StreamPhase::Connecting, StreamPhase::Handshake, StreamPhase::Closing]
            .into_iter()
            .any(|phase| core.status.is(phase));
        let stamp = if is_other_wait { StreamFlags::default() } else { StreamFlags::STAMP_WAIT };
        core.status.clear(StreamFlags::STALL_DUE);
        core.status.insert(stamp | StreamFlags::ARM);
    }

    /// See [`StreamOptions::linger`].
    pub fn set_linger(&mut self, longest: Duration) {
        self.set_options(|options| options.linger(longest));
        self.core().status.insert(StreamFlags::ARM);
    }

    fn set_options(&mut self, change: impl FnOnce(StreamOptions) -> StreamOptions) {
        let (streams, _, index) = self.split();
        let options = change(*streams.core(index).options);
        let shared = streams.share(&options);
        let core = streams.core(index);
        core.options = shared;
        core.update_full();
        self.touch();
    }

    /// A failed write ends the stream. That is handled here, because the kernel may already have
    /// reported the error and need not do so again.
    #[inline]
    fn noted<T>(&mut self, sent: Result<T, StreamWriteError>) -> Result<T, StreamWriteError> {
        if sent.is_err() {
            self.touch();
        }
        sent
    }

    /// Schedules the stream for its driver if that is running, else for the end of the turn.
    pub(in crate::stream) fn touch(&mut self) {
        let (streams, kernel, index) = self.split();
        streams.touch(kernel, index);
    }
}

impl AsFd for Stream<'_> {
    /// The socket, for queries and for setting options. Reading from it or writing to it directly
    /// breaks the order of the bytes.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core_ref().socket.as_fd()
    }
}
