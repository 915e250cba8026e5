//! The driver of a stream: it handles one event and calls the stream's handler.
//!
//! The handler is in the cell, everything else in the [`StreamCore`]. So a callback can use the
//! reactor, and through it its own stream, while the handler is borrowed. The callbacks of a stream
//! are called only here (rule 13). A stream is closed only here, in a frame of its own driver, or
//! when the reactor is dropped.

use std::os::fd::BorrowedFd;

use crate::{
    Errno, Event, Interest, Reactor, Subscriber, Turn,
    api::interest::{ERR, HUP, IN, OUT},
    backend::completions::COMPLETION,
    cell::CellFlags,
    interest,
    kernel::Kernel,
    stream::{
        DisconnectReason, Input, Stream, StreamHandler, Timeout,
        parts::ReactorParts,
        state::{StreamCore, StreamTable},
        status::{StreamFlags, StreamPhase, StreamStatus, Transport, Watch},
    },
};

/// The value in a stream's cell.
pub(in crate::stream) struct StreamCell<H> {
    pub(in crate::stream) index: u32,
    pub(in crate::stream) handler: H,
}

impl<H: StreamHandler> Subscriber for StreamCell<H> {
    fn fd(&self) -> BorrowedFd<'_> {
        unreachable!(
            "a stream is registered by its core's socket, and no key of the user's names its cell"
        )
    }

    fn interest(&self) -> Interest {
        interest()
    }

    #[inline(always)]
    fn handle(&mut self, event: Event, mut turn: Turn<'_>) {
        let (ready, reactor) = (event.ready().bits(), turn.ops());
        if ready != IN {
            return DriverFrame::handle_slow(reactor, self, ready);
        }
        if !DriverFrame::enter(reactor, self.index).rests_as(Transport::READINESS) {
            return DriverFrame::handle_slow(reactor, self, IN);
        }
        let mut frame = DriverFrame::new(reactor, self.index);
        match frame.receive(0) {
            ReceiveResult::Data(count) => frame.data(&mut self.handler, count),
            other => frame.note(other, &mut self.handler),
        }
        frame.leave(&mut self.handler);
    }
}

/// The result of one receive.
pub(in crate::stream) enum ReceiveResult {
    Data(usize),
    End,
    Nothing,
    Failed(Errno),
}

/// One call of a stream's driver. If the handler panics, dropping the frame resets the connection
/// and closes the stream.
pub(in crate::stream) struct DriverFrame<'r> {
    pub(in crate::stream) reactor: &'r mut Reactor,
    pub(in crate::stream) index: u32,
    /// The receive buffer, after a receive.
    pub(super) scratch: Option<Box<[u8]>>,
    /// The stream is still registered.
    is_open: bool,
}

impl<'r> DriverFrame<'r> {
    /// Starts a call, for which a frame is made next. Returns the stream's status.
    #[inline(always)]
    fn enter(reactor: &mut Reactor, index: u32) -> StreamStatus {
        let core = reactor.parts().streams.core(index);
        core.status.insert(StreamFlags::RUNNING);
        core.status.clear(StreamFlags::DRIVER_QUEUED);
        core.status
    }

    #[inline(always)]
    fn new(reactor: &'r mut Reactor, index: u32) -> Self {
        Self { reactor, index, scratch: None, is_open: true }
    }

    #[inline]
    pub(in crate::stream) fn core(&mut self) -> &mut StreamCore {
        self.reactor.parts().streams.core(self.index)
    }

    /// The parts of the reactor that most calls for a stream need, and its index.
    #[inline(always)]
    pub(in crate::stream) fn split(&mut self) -> (&mut StreamTable, &mut Kernel, u32) {
        let ReactorParts { streams, kernel, .. } = self.reactor.parts();
        (streams, kernel, self.index)
    }

    pub(in crate::stream) fn streams(&mut self) -> &mut StreamTable {
        self.reactor.parts().streams
    }

    /// The time of the turn. The clock may be user code.
    pub(in crate::stream) fn now_ns(&mut self) -> u64 {
        let ReactorParts { kernel, timing, .. } = self.reactor.parts();
        timing.now_ns(kernel)
    }

    pub(in crate::stream) fn has(&mut self, flags: StreamFlags) -> bool {
        self.core().status.any(flags)
    }

    pub(in crate::stream) fn is(&mut self, phase: StreamPhase) -> bool {
        self.core().status.is(phase)
    }

    pub(in crate::stream) fn has_tls(&mut self) -> bool {
        self.core().status.has_tls()
    }

    /// See [`StreamStatus::is_ending`].
    pub(in crate::stream) fn is_ending(&mut self) -> bool {
        self.core().status.is_ending()
    }

    /// Receives once, behind `room` bytes of the buffer; the next receive waits for the next event.
    /// Inlined, because most events need only this.
    #[inline(always)]
    fn receive(&mut self, room: usize) -> ReceiveResult {
        let ReactorParts { streams, kernel, timing, .. } = self.reactor.parts();
        let scratch = self.scratch.get_or_insert_with(|| streams.take_scratch());
        let core = streams.core(self.index);
        match core.socket.recv(&mut scratch[room..]) {
            Ok(0) => ReceiveResult::End,
            Ok(count) => {
                if core.status.any(StreamFlags::IDLE) {
                    core.last_rx_ns = timing.now_ns(kernel);
                }
                ReceiveResult::Data(count)
            }
            Err(Errno::AGAIN | Errno::INTR) => ReceiveResult::Nothing,
            Err(errno) => ReceiveResult::Failed(errno),
        }
    }

    /// Passes the received bytes to the handler.
    #[inline]
    fn data<H: StreamHandler + ?Sized>(&mut self, handler: &mut H, count: usize) {
        let Some(scratch) = &mut self.scratch else { return };
        let mut stream = Stream { reactor: self.reactor, index: self.index };
        handler.on_data(&mut stream, Input::new(&mut scratch[..count]));
    }

    /// Makes any other callback.
    pub(in crate::stream) fn call(&mut self, call: impl FnOnce(&mut Stream<'_>)) {
        call(&mut Stream { reactor: self.reactor, index: self.index });
    }

    #[cold]
    fn note(&mut self, received: ReceiveResult, handler: &mut dyn StreamHandler) {
        match received {
            // A closed stream discards its input.
            ReceiveResult::Data(_) if self.is(StreamPhase::Closing) => {}
            ReceiveResult::Data(count) => self.data(handler, count),
            ReceiveResult::End => self.end_of_input(handler),
            ReceiveResult::Nothing => {}
            ReceiveResult::Failed(errno) => self.core().fail(errno),
        }
    }

    /// The peer has closed its writing half.
    pub(in crate::stream) fn end_of_input(&mut self, handler: &mut dyn StreamHandler) {
        if self.has(StreamFlags::ENDED) || self.is(StreamPhase::Dead) {
            return;
        }
        if self.has_tls() && !self.is(StreamPhase::Closing) {
            return self.end_of_records(handler);
        }
        self.core().status.insert(StreamFlags::ENDED);
        if !self.is(StreamPhase::Closing) {
            self.call(|stream| handler.on_end(stream));
        }
    }

    /// Handles an event that needs no receive. Kept out of line, so that the receive path stays
    /// short.
    #[inline(never)]
    fn handle_slow<H: StreamHandler>(
        reactor: &'r mut Reactor,
        cell: &mut StreamCell<H>,
        ready: u32,
    ) {
        let StreamCell { index, handler } = cell;
        let index = *index;
        let status = Self::enter(reactor, index);
        let mut frame = Self::new(reactor, index);
        if let Some(mut part) = frame.take_brought(status, ready) {
            let mut stream = Stream { reactor: frame.reactor, index };
            handler.on_data(&mut stream, Input::new(part.bytes()));
            part.give_back();
            return frame.leave(handler);
        }
        if ready == IN && status.rests_as(Transport::READINESS_TLS) {
            frame.receive_and_note(handler);
        } else {
            frame.drive(handler, ready);
        }
        frame.leave(handler);
    }

    /// Handles everything outside the fast path.
    #[cold]
    #[inline(never)]
    fn drive(&mut self, handler: &mut dyn StreamHandler, ready: u32) {
        if ready & COMPLETION != 0 {
            return self.complete(handler, ready);
        }
        if !self.open(handler, ready) || self.is_paused() {
            return;
        }
        self.write_blocked(ready);
        if self.core().status.take(StreamFlags::PREFIX) {
            self.deliver_prefix(handler);
        }
        let may_notify = !self.is(StreamPhase::Handshake) && !self.is_paused();
        if may_notify && self.core().status.take(StreamFlags::NOTIFY_DUE) && !self.is_ending() {
            self.call(|stream| handler.on_notify(stream));
        }
        if self.is_paused() {
            return;
        }
        if self.core().status.is_on_ring() {
            self.look_at_poll(ready);
            return self.tell_timeouts(handler);
        }
        let asks =
            ready & (IN | ERR | HUP) != 0 || self.has(StreamFlags::IDLE_DUE) || self.is_admitted();
        if asks && self.core().wants_input() {
            let is_nothing = self.receive_and_note(handler);
            if is_nothing && ready & (ERR | HUP) != 0 {
                self.note_error();
            }
        } else if ready & (ERR | HUP) != 0 {
            self.note_error();
        }
        self.tell_timeouts(handler);
    }

    /// Receives once and calls the handler. Returns true if nothing has come. A session gets its
    /// input behind the partial record.
    #[inline(never)]
    fn receive_and_note(&mut self, handler: &mut dyn StreamHandler) -> bool {
        if self.is(StreamPhase::Handshake) && !self.admit_handshake() {
            return false;
        }
        // A closed stream discards its input.
        let decrypts = self.has_tls() && !self.is(StreamPhase::Closing);
        let partial = if decrypts { self.partial_len() } else { 0 };
        let carries_fds = self.core().carries_fds() && !self.is(StreamPhase::Closing);
        let received = if carries_fds { self.receive_with_fds() } else { self.receive(partial) };
        let is_nothing = matches!(received, ReceiveResult::Nothing);
        if !is_nothing && self.core().status.take(StreamFlags::IDLE_DUE) {
            // The wheel has already removed its deadline.
            self.core().status.insert(StreamFlags::ARM);
        }
        match received {
            ReceiveResult::Data(count) if decrypts => self.records(handler, partial, count),
            other => self.note(other, handler),
        }
        is_nothing
    }

    /// Writes the blocked output, if the socket may accept it by now.
    fn write_blocked(&mut self, ready: u32) {
        if !self.has(StreamFlags::BLOCKED) || self.is(StreamPhase::Dead) {
            return;
        }
        // After a hang-up the write fails, which reports the error even while reading is paused. A
        // stall is reported only if the socket is still full. The event that it is writable may be
        // queued behind this one, after a handler that took long.
        // A closed stream is about to be reset, so whatever the socket accepts counts.
        let may_write = ready & (OUT | HUP) != 0
            || (self.has(StreamFlags::STALL_DUE)
                && (self.is(StreamPhase::Closing) || self.core().socket.is_writable()));
        if !may_write {
            return;
        }
        let before = self.core().buffered();
        let (streams, kernel, index) = self.split();
        streams.write(kernel, index);
        let core = self.core();
        // With TLS, what is encrypted may need more room than what was sent before has freed.
        let has_progress = core.buffered() < before || core.status.any(StreamFlags::STAMP_WAIT);
        if has_progress && core.status.take(StreamFlags::STALL_DUE) {
            // The wheel has already removed its deadline.
            core.status.insert(StreamFlags::ARM);
        }
    }

    /// Brings a new stream to the open state. False if it is not open yet or has failed.
    pub(in crate::stream) fn open(&mut self, handler: &mut dyn StreamHandler, ready: u32) -> bool {
        if self.is(StreamPhase::Open) || self.is(StreamPhase::Handshake) {
            return true;
        }
        if self.is(StreamPhase::Dead) {
            return false;
        }
        if self.is(StreamPhase::Connecting) {
            // A spurious event leaves the attempt in progress.
            if ready & (OUT | ERR | HUP) == 0 || !self.core().socket.is_writable() {
                return false;
            }
            if let Err(errno) = self.core().socket.take_error() {
                self.core().kill(DisconnectReason::Connect(errno));
                return false;
            }
        }
        if self.is(StreamPhase::Closing) {
            return true;
        }
        if self.has_tls() {
            self.begin_handshake(handler);
        } else {
            self.opened(handler);
        }
        true
    }

    /// The stream is open.
    pub(in crate::stream) fn opened(&mut self, handler: &mut dyn StreamHandler) {
        let core = self.core();
        core.status.advance(StreamPhase::Open);
        if core.status.any(StreamFlags::IDLE) {
            core.status.insert(StreamFlags::STAMP_RX | StreamFlags::ARM);
        }
        self.call(|stream| handler.on_open(stream));
    }

    /// Delivers the `read_buf` of an adoption, or a piece of the input kept for the handler. Input
    /// waits while reading is paused, and a closed stream drops it.
    ///
    /// It delivers one piece per call of the driver, as a receive does. Output sent in reply is
    /// written or buffered, and the handler is told about a watermark before the next piece.
    pub(in crate::stream) fn deliver_prefix(&mut self, handler: &mut dyn StreamHandler) {
        let index = self.index;
        if self.is_ending() {
            if !self.has(StreamFlags::DELIVERS) {
                self.streams().prefixes.remove(&index);
            }
            return;
        }
        if self.holds_input() {
            self.core().status.insert(StreamFlags::PREFIX);
            return;
        }
        let prefixes = &mut self.streams().prefixes;
        let Some(kept) = prefixes.get_mut(&index) else { return };
        let piece = kept.pop_front();
        if kept.is_empty() {
            prefixes.remove(&index);
        } else {
            self.core().status.insert(StreamFlags::PREFIX);
        }
        match piece {
            None => {}
            Some(piece) if piece.bytes.is_empty() => self.end_of_input(handler),
            Some(mut piece) => self.deliver(handler, &mut piece.bytes),
        }
    }

    /// The kernel reports an error or hang-up while reading is paused.
    pub(in crate::stream) fn note_error(&mut self) {
        if let Err(errno) = self.core().socket.take_error() {
            return self.core().fail(errno);
        }
        let cell = self.core().cell;
        // A stream by completion has no registration while it is not polled.
        let status = self.core().status;
        let is_absent = status.is_on_ring() && status.watch() == Watch::Nothing;
        let is_lost = !is_absent
            && self.reactor.parts().kernel.find(cell).is_none_or(|cell| {
                let is_told = cell.has_flag(CellFlags::DIRTY)
                    || cell.armed_mask() == cell.interest().kernel_mask();
                cell.has_flag(CellFlags::ABSENT) || !is_told
            });
        if is_lost {
            // The reactor itself made this event: it could not renew the registration, or the
            // kernel has rejected a change of it (rule 7).
            self.core().fail(Errno::IO);
        }
    }

    fn tell_timeouts(&mut self, handler: &mut dyn StreamHandler) {
        if !self.has(StreamFlags::DUE) {
            return;
        }
        for (due, timeout, reason, anew) in [
            (
                StreamFlags::IDLE_DUE,
                Timeout::Idle,
                DisconnectReason::IdleTimeout,
                StreamFlags::STAMP_RX,
            ),
            (
                StreamFlags::STALL_DUE,
                Timeout::WriteStall,
                DisconnectReason::WriteStall,
                StreamFlags::STAMP_WAIT,
            ),
        ] {
            if self.is_paused() || !self.core().status.take(due) {
                continue;
            }
            if self.is_ending() {
                if due == StreamFlags::STALL_DUE && self.is(StreamPhase::Closing) {
                    self.core().has_lingered();
                }
                continue;
            }
            // This is the reason reported, however the handler ends the stream.
            self.core().reason = Some(reason);
            self.call(|stream| handler.on_timeout(stream, timeout));
            let core = self.core();
            if !core.status.is_ending() {
                core.reason = None;
                core.status.insert(anew | StreamFlags::ARM);
            }
        }
    }

    /// The callback has returned: writes its output and handles its effects.
    #[inline(always)]
    fn leave<H: StreamHandler>(mut self, handler: &mut H) {
        let mut core = self.core();
        let mut rests = core.status.rests();
        if rests && core.output.is_some() {
            let (streams, kernel, index) = self.split();
            streams.write(kernel, index);
            core = self.core();
            rests = core.is_at_rest();
        }
        if rests {
            core.status.clear(StreamFlags::RUNNING);
            self.end();
            // Nothing is left to drop, so `forget` saves the check.
            core::mem::forget(self);
        } else {
            self.settle(handler);
        }
    }

    #[cold]
    #[inline(never)]
    fn settle(&mut self, handler: &mut dyn StreamHandler) {
        if self.streams().is_in_child() {
            // The process was forked in a callback. The stream belongs to the parent.
            self.core().status.clear(StreamFlags::RUNNING);
            return self.end();
        }
        let is_on_ring = self.core().status.is_on_ring();
        let (streams, kernel, index) = self.split();
        streams.flush(kernel, index);
        // If the handler sends in both callbacks, its further callbacks follow in the next turn
        // (rule 10).
        for _ in 0..2 {
            if !self.core().owes_watermark() || self.is_paused() {
                break;
            }
            let is_full = self.has(StreamFlags::FULL);
            self.core().status.set(StreamFlags::REPORTED_FULL, is_full);
            self.call(
                |stream| if is_full { handler.on_full(stream) } else { handler.on_drained(stream) },
            );
            let (streams, kernel, index) = self.split();
            streams.flush(kernel, index);
        }
        if is_on_ring && self.core().status.rejects_output() {
            let (streams, kernel, index) = self.split();
            streams.send_before_the_end(kernel, index);
        }
        if self.has_tls() && self.core().can_finish() && !self.is(StreamPhase::Dead) {
            let (streams, _, index) = self.split();
            streams.send_close_notify(index);
        }
        self.core().advance_end();
        let is_paused = self.is_paused();
        if self.core().status.any(StreamFlags::TIMES) && !self.is(StreamPhase::Dead) && !is_paused {
            let ReactorParts { streams, kernel, timing, .. } = self.reactor.parts();
            streams.arm(kernel, timing, self.index);
        }
        let (streams, kernel, index) = self.split();
        streams.sync(kernel, index);
        if self.is(StreamPhase::Dead) && !is_paused {
            return self.close(handler);
        }
        self.core().status.clear(StreamFlags::RUNNING);
        if self.core().needs_driver() {
            let (streams, kernel, index) = self.split();
            streams.notify(kernel, index);
        }
        self.end();
    }

    /// Closes the stream. The socket stays open during `on_close`, so that its number is not reused
    /// before the cell is removed.
    #[cold]
    fn close(&mut self, handler: &mut dyn StreamHandler) {
        let key = Stream { reactor: self.reactor, index: self.index }.key();
        if self.has(StreamFlags::DELIVERS) {
            self.deliver_received(handler);
        }
        let ReactorParts { streams, kernel, groups, .. } = self.reactor.parts();
        let removed = streams.deregister(kernel, groups, self.index);
        self.end();
        handler.on_close(key, removed.reason, Turn::new(self.reactor));
        drop(removed);
    }

    /// Returns the receive buffer. Dropping the frame afterwards does nothing.
    #[inline(always)]
    fn end(&mut self) {
        self.is_open = false;
        if let Some(scratch) = self.scratch.take() {
            self.streams().scratch = Some(scratch);
        }
    }
}

impl DriverFrame<'_> {
    /// A callback has panicked. The handler is in an unknown state and is dropped with the cell
    /// (rule 8).
    #[cold]
    #[inline(never)]
    fn reset_after_panic(&mut self) {
        self.core().status.insert(StreamFlags::RESET);
        let ReactorParts { streams, kernel, groups, .. } = self.reactor.parts();
        drop(streams.deregister(kernel, groups, self.index));
        self.end();
    }
}

impl Drop for DriverFrame<'_> {
    /// Inlined, so that a call that ended normally runs no drop code.
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_open {
            self.reset_after_panic();
        }
    }
}

impl StreamCore {
    /// Closes the writing half when the output is written, and records when the stream has ended.
    fn advance_end(&mut self) {
        if self.can_finish() && !self.status.is(StreamPhase::Dead) {
            // `ENOTCONN`: the peer has reset the connection. If the stream still reads, the next
            // receive reports it.
            let is_gone = self.socket.shutdown_write().is_err();
            self.status.insert(StreamFlags::FINISHED);
            let skips_linger =
                is_gone || self.options.linger.is_zero() || self.status.any(StreamFlags::NO_LINGER);
            if self.status.is(StreamPhase::Closing) && skips_linger {
                self.kill(DisconnectReason::Closed);
            } else if self.status.is(StreamPhase::Closing) && self.options.linger_restarts {
                self.status.insert(StreamFlags::STAMP_WAIT | StreamFlags::ARM);
            }
        }
        if self.status.any(StreamFlags::FINISHED) && self.status.any(StreamFlags::ENDED) {
            self.kill(DisconnectReason::Closed);
        }
    }
}
