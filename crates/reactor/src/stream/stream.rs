//! What one does with a stream.

use core::fmt;
use std::{
    io::{self, IoSlice},
    ops::{Bound, RangeBounds},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use super::{
    Address, CloseReason, Input, SendError, Shared, StreamOptions,
    state::{Core, Flags},
};
use crate::{Key, Reactor, Turn, registry::Kind};

/// A stream: in a callback its own, and anywhere on the reactor's thread the one that
/// [`Turn::stream`] or [`Reactor::stream`] finds by its key.
///
/// No call here runs a callback: what it causes comes after the handler that made the call has
/// returned (rule 13).
///
/// What is sent in a callback of the stream itself is gathered and goes out in one write when the
/// callback has returned; what others send goes out at the end of the turn, and outside a turn at
/// the beginning of the next. Pieces of 16 KiB or more, and [`reply`](Self::reply), are written at
/// once.
///
/// On a ring ([`Backend::Uring`](crate::Backend::Uring)) what goes out at once, if it is an answer
/// or short and the first that is sent to the stream in a turn, goes out with the turn's end or the
/// next wait, without a call of its own. It does not count as [`buffered`](Self::buffered); if the
/// socket does not take it, that shows after the wait.
pub struct Stream<'a> {
    pub(super) reactor: &'a mut Reactor,
    pub(super) index: u32,
}

impl fmt::Debug for Stream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

impl Stream<'_> {
    fn core(&mut self) -> &mut Core {
        self.reactor.stream_core(self.index)
    }

    /// The core, to look at, and its generation.
    fn seen(&self) -> (&Core, u32) {
        let streams = self.reactor.streams.as_deref().expect("a stream is in the table");
        let generation = streams.cores.generation(self.index);
        let core = streams
            .cores
            .get(self.index, generation)
            .expect("a stream's cell and its core live together");
        (core, generation)
    }

    /// The stream's name: what [`Turn::stream`] takes. Stale as soon as
    /// [`on_close`](super::StreamHandler::on_close) is called.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::new(Kind::Stream, (self.index, self.seen().1))
    }

    /// The turn, to do other things than with this stream: with another one, say.
    pub fn turn(&mut self) -> Turn<'_> {
        Turn::new(self.reactor)
    }

    /// Where the peer is.
    ///
    /// # Errors
    /// What getpeername(2) says: `ENOTCONN` before it is connected.
    pub fn peer_addr(&self) -> io::Result<Address> {
        Address::peer_of(self)
    }

    /// Where this end is.
    ///
    /// # Errors
    /// What getsockname(2) says.
    pub fn local_addr(&self) -> io::Result<Address> {
        Address::local_of(self)
    }

    /// Sends bytes: they are copied, and go out as the type's description says. All of them are
    /// taken, or none.
    ///
    /// # Errors
    /// [`SendError::Full`] when more than `output_max` bytes would wait, [`SendError::Closed`].
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        let sent = self.reactor.stream_send(self.index, &[IoSlice::new(bytes)]);
        self.noted(sent)
    }

    /// Sends pieces in a row. See [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Result<(), SendError> {
        let sent = self.reactor.stream_send(self.index, pieces);
        self.noted(sent)
    }

    /// Sends bytes that many streams are sent: what has to wait is not copied, but for very short
    /// ones.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_shared(&mut self, bytes: &Shared<'_>) -> Result<(), SendError> {
        let sent = self.reactor.stream_send_shared(self.index, bytes);
        self.noted(sent)
    }

    /// Sends bytes that many streams are sent, at once, together with what was sent before: for who
    /// gives out the same to many at the end of a turn and knows that nothing follows. Says how
    /// many bytes wait now. What has to wait is not copied, but for very short ones.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[inline]
    pub fn write_shared(&mut self, bytes: &Shared<'_>) -> Result<usize, SendError> {
        let sent = self.reactor.stream_write_shared(self.index, bytes);
        self.noted(sent)
    }

    /// Has the handler's [`on_notify`](super::StreamHandler::on_notify) called in the next turn,
    /// which does not wait. A stream that is not open yet hears of it when it is; one that is
    /// closed does not.
    pub fn notify(&mut self) {
        self.core().flags |= Flags::CALLED;
        self.touch();
    }

    /// Sends a part of the received bytes, as it is now, straight out of the buffer: only what the
    /// socket does not take is copied.
    ///
    /// It is written at once, together with what was sent before it.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    ///
    /// # Panics
    /// When the range is not inside the input.
    #[inline(always)]
    pub fn reply(
        &mut self,
        input: Input<'_>,
        range: impl RangeBounds<usize>,
    ) -> Result<(), SendError> {
        self.write_reply(input, range).map(drop)
    }

    /// [`reply`](Self::reply), which says how many bytes wait now, as
    /// [`write_shared`](Self::write_shared) does.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    ///
    /// # Panics
    /// When the range is not inside the input.
    #[inline(always)]
    pub fn write_reply(
        &mut self,
        input: Input<'_>,
        range: impl RangeBounds<usize>,
    ) -> Result<usize, SendError> {
        // By hand, for the compiler to see through it: a slice by bounds is a call.
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
        let sent = self.reactor.stream_reply(self.index, &input.bytes[start..end]);
        self.noted(sent)
    }

    /// How many bytes wait to be sent: those that have been gathered and those that the socket has
    /// not taken.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.seen().0.buffered()
    }

    /// Bytes of memory that it holds for output that waits, and for received bytes that were not
    /// delivered yet. Of bytes that wait for several streams ([`send_shared`](Self::send_shared))
    /// it is each one's part.
    #[must_use]
    pub fn memory(&mut self) -> usize {
        let index = self.index;
        let streams = self.reactor.streams_mut();
        let output = streams.core(index).output.as_ref().map_or(0, |output| output.memory());
        let undelivered = streams.prefixes.get(&index);
        output + undelivered.map_or(0, |row| row.iter().map(|piece| piece.bytes.capacity()).sum())
    }

    /// Whether the output has passed the high watermark, and has not sunk to the low one since.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.seen().0.flags.any(Flags::FULL)
    }

    /// Counts the output as above the high watermark, whatever it is, so that
    /// [`on_drained`](super::StreamHandler::on_drained) tells when it has sunk to the low one.
    /// False if that would not come: the output is at the low watermark, or the socket may take it
    /// yet.
    pub fn wait_for_low_mark(&mut self) -> bool {
        let core = self.core();
        let may_wait = core.flags.any(Flags::BLOCKED) && core.buffered() > core.options.low_mark;
        if may_wait {
            core.flags |= Flags::FULL;
            self.touch();
        }
        may_wait
    }

    /// Closes the writing half once the output is out; receiving goes on. The stream ends when the
    /// peer has done the same, or by [`close`](Self::close).
    pub fn finish(&mut self) {
        self.core().flags |= Flags::FINISHING;
        self.touch();
    }

    /// Closes the stream in order: output that waits, then a FIN, then the peer's FIN is waited
    /// for, all together no longer than [`linger`](StreamOptions::linger), and what comes meanwhile
    /// is discarded. So the peer gets all of the output, even if not all of his was read.
    ///
    /// No callback but [`on_close`](super::StreamHandler::on_close) comes after the handler that is
    /// running.
    pub fn close(&mut self) {
        let core = self.core();
        if core.flags.any(Flags::CLOSING | Flags::DEAD) {
            return;
        }
        core.reason.get_or_insert(CloseReason::Closed);
        core.flags |= Flags::CLOSING | Flags::STAMP | Flags::ARM;
        if core.flags.any(Flags::CONNECTING) {
            // There is nobody to be orderly with.
            core.flags |= Flags::DEAD;
        }
        self.touch();
    }

    /// Closes the stream in order, but when the output and the FIN are out it is over: for
    /// protocols by which the peer has said that nothing more comes from him. If something does,
    /// the kernel sends a RST, which may overtake the output.
    pub fn close_after_output(&mut self) {
        self.core().flags |= Flags::HASTY;
        self.close();
    }

    /// Closes the stream at once; output that waits is lost. On TCP the peer gets a RST.
    /// [`on_close`](super::StreamHandler::on_close) comes after the handler that is running, and in
    /// the next turn if that is another one's.
    pub fn abort(&mut self) {
        let core = self.core();
        if core.flags.any(Flags::CLOSING) && !core.flags.any(Flags::DEAD) {
            core.reason = Some(CloseReason::Aborted);
        }
        core.kill(CloseReason::Aborted);
        core.flags |= Flags::RESET;
        self.touch();
    }

    /// [`abort`](Self::abort), which frees what waits at once, and not when the driver comes to
    /// close the stream: for who is short of memory.
    pub fn discard(&mut self) {
        self.abort();
        let index = self.index;
        self.reactor.streams_mut().drop_waiting(index);
    }

    /// Reads no more until [`resume`](Self::resume): the kernel's buffer fills, and then the peer
    /// must wait. That the connection is reset is noticed all the same; that the peer has ended it
    /// is noticed when reading goes on.
    pub fn pause(&mut self) {
        let core = self.core();
        core.flags |= Flags::PAUSED;
        if core.flags.take(Flags::IDLE_DUE) {
            // The wheel does not have it any more.
            core.flags |= Flags::ARM;
        }
        self.touch();
    }

    /// Reads again after [`pause`](Self::pause).
    pub fn resume(&mut self) {
        let core = self.core();
        if core.flags.take(Flags::PAUSED) {
            if core.flags.any(Flags::IDLE) {
                core.flags |= Flags::HEARD | Flags::ARM;
            }
            self.touch();
        }
    }

    /// Whether reading is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.seen().0.flags.any(Flags::PAUSED)
    }

    /// The stream's settings.
    #[must_use = "it changes nothing"]
    pub fn options(&self) -> StreamOptions {
        *self.seen().0.options
    }

    /// See [`StreamOptions::watermarks`].
    pub fn set_watermarks(&mut self, low: usize, high: usize) {
        self.set_options(|options| options.watermarks(low, high));
    }

    /// See [`StreamOptions::idle_timeout`]. It begins anew.
    pub fn set_idle_timeout(&mut self, timeout: Option<Duration>) {
        self.set_options(|options| options.idle_timeout(timeout));
        let core = self.core();
        core.flags.set(Flags::IDLE, timeout.is_some());
        core.flags.clear(Flags::IDLE_DUE);
        core.flags |= Flags::HEARD | Flags::ARM;
    }

    /// See [`StreamOptions::write_stall_timeout`]. It begins anew.
    pub fn set_write_stall_timeout(&mut self, timeout: Option<Duration>) {
        self.set_options(|options| options.write_stall_timeout(timeout));
        let core = self.core();
        // The wait of a closed stream is another one.
        let stamp = if core.flags.any(Flags::CLOSING) { Flags::default() } else { Flags::STAMP };
        core.flags.clear(Flags::STALL_DUE);
        core.flags |= stamp | Flags::ARM;
    }

    /// See [`StreamOptions::linger`].
    pub fn set_linger(&mut self, longest: Duration) {
        self.set_options(|options| options.linger(longest));
        self.core().flags |= Flags::ARM;
    }

    fn set_options(&mut self, change: impl FnOnce(StreamOptions) -> StreamOptions) {
        let streams = self.reactor.streams_mut();
        let options = change(*streams.core(self.index).options);
        let shared = streams.share(&options);
        let core = streams.core(self.index);
        core.options = shared;
        core.note_marks();
        self.touch();
    }

    /// A write that has failed is the stream's end, which is seen to without waiting for the kernel
    /// to tell of it: it may have done so before.
    #[inline]
    fn noted<T>(&mut self, sent: Result<T, SendError>) -> Result<T, SendError> {
        if sent.is_err() {
            self.touch();
        }
        sent
    }

    /// The stream is looked after: by its driver if that runs, or else at the end of the turn.
    fn touch(&mut self) {
        self.reactor.touch_stream(self.index);
    }
}

impl AsFd for Stream<'_> {
    /// The socket, to ask it more or to set options. To read from it or to write to it puts bytes
    /// out of order.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.seen().0.socket.as_fd()
    }
}
