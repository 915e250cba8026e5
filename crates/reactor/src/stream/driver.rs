//! What one event does to a stream: the frame around its handler's callbacks.
//!
//! The handler lives in the cell, everything else in the [`Core`], so that a callback can be given
//! the reactor, and with it its own stream, while it borrows itself. The callbacks of a stream are
//! called here and nowhere else (rule 13), and a stream ends here and nowhere else: in a frame of
//! its own driver, or with the reactor.

use std::os::fd::BorrowedFd;

use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{RecvFlags, Shutdown, sockopt},
    time::Timespec,
};

use super::{
    CloseReason, Input, Stream, StreamHandler, Timeout,
    state::{Core, Flags, no_core},
};
use crate::{
    Errno, Event, Interest, Reactor, Subscriber, Turn,
    backend::COMPLETION,
    cell::Flags as CellFlags,
    interest,
    interest::{ERR, HUP, IN, OUT},
};

/// The value of a stream's cell.
pub(super) struct StreamCell<H> {
    pub(super) index: u32,
    pub(super) handler: H,
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
        let ready = event.ready().bits();
        let (mut frame, is_plain) = Frame::enter(turn.ops(), self.index, ready);
        if is_plain {
            match frame.receive() {
                Received::Data(count) => frame.data(&mut self.handler, count),
                other => frame.note(other, &mut self.handler),
            }
        } else {
            return frame.go_apart(&mut self.handler, ready);
        }
        frame.leave(&mut self.handler);
    }
}

/// What one receive has brought.
enum Received {
    Data(usize),
    End,
    Nothing,
    Failed(Errno),
}

/// One call of a stream's driver. Dropped by a panic of the handler, it resets the connection and
/// closes the stream.
pub(super) struct Frame<'r> {
    pub(super) reactor: &'r mut Reactor,
    pub(super) index: u32,
    /// The buffer, once something was received.
    scratch: Option<Box<[u8]>>,
    /// The stream is in the books.
    is_open: bool,
}

impl<'r> Frame<'r> {
    /// Begins a call, and says whether there is nothing to do in it but to receive.
    #[inline(always)]
    fn enter(reactor: &'r mut Reactor, index: u32, ready: u32) -> (Self, bool) {
        let core = reactor.stream_core(index);
        core.flags |= Flags::RUNNING;
        core.flags.clear(Flags::NOTIFIED);
        let is_plain = ready == IN && core.flags.is_plain();
        (Self { reactor, index, scratch: None, is_open: true }, is_plain)
    }

    #[inline]
    pub(super) fn core(&mut self) -> &mut Core {
        self.reactor.stream_core(self.index)
    }

    pub(super) fn has(&mut self, flags: Flags) -> bool {
        self.core().flags.any(flags)
    }

    /// One receive, whatever comes of it: the next one is for the next event. In line, because it
    /// is what most events are about.
    #[inline(always)]
    fn receive(&mut self) -> Received {
        let Some(streams) = self.reactor.streams.as_deref_mut() else { no_core() };
        let scratch = self.scratch.get_or_insert_with(|| streams.take_scratch());
        let core = streams.core(self.index);
        // Whoever made the socket may have left it blocking.
        match rustix::net::recv(&core.socket, &mut scratch[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Received::End,
            Ok((count, _)) => {
                if core.flags.any(Flags::IDLE) {
                    let now = self.reactor.now_ns();
                    self.core().heard_ns = now;
                }
                Received::Data(count)
            }
            Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
            Err(errno) => Received::Failed(errno),
        }
    }

    #[cold]
    #[inline(never)]
    fn receive_apart(&mut self) -> Received {
        self.receive()
    }

    /// Gives the received bytes to the handler.
    #[inline]
    fn data<H: StreamHandler + ?Sized>(&mut self, handler: &mut H, count: usize) {
        let Some(scratch) = &mut self.scratch else { return };
        let mut stream = Stream { reactor: self.reactor, index: self.index };
        handler.on_data(&mut stream, Input::new(&mut scratch[..count]));
    }

    /// Calls any other callback.
    pub(super) fn call(&mut self, call: impl FnOnce(&mut Stream<'_>)) {
        call(&mut Stream { reactor: self.reactor, index: self.index });
    }

    #[cold]
    fn note(&mut self, received: Received, handler: &mut dyn StreamHandler) {
        match received {
            // A closed stream discards what comes.
            Received::Data(_) if self.has(Flags::CLOSING) => {}
            Received::Data(count) => self.data(handler, count),
            Received::End => self.end_of_input(handler),
            Received::Nothing => {}
            Received::Failed(errno) => self.core().fail(errno),
        }
    }

    /// The peer has closed its writing half.
    pub(super) fn end_of_input(&mut self, handler: &mut dyn StreamHandler) {
        if self.has(Flags::ENDED | Flags::DEAD) {
            return;
        }
        self.core().flags |= Flags::ENDED;
        if !self.has(Flags::CLOSING) {
            self.call(|stream| handler.on_end(stream));
        }
    }

    /// What does not go by a receive here. Apart, so that nothing of it is in the way of what does.
    #[inline(never)]
    fn go_apart<H: StreamHandler>(mut self, handler: &mut H, ready: u32) {
        if let Some(mut lent) = self.take_brought(ready) {
            let mut stream = Stream { reactor: self.reactor, index: self.index };
            handler.on_data(&mut stream, Input::new(lent.bytes()));
        } else {
            self.drive(handler, ready);
        }
        let core = self.core();
        if core.rests_on_ring() {
            core.flags.clear(Flags::RUNNING);
            self.end();
            // See `leave`.
            core::mem::forget(self);
        } else {
            self.leave(handler);
        }
    }

    /// Everything that is not the plain case.
    #[cold]
    #[inline(never)]
    fn drive(&mut self, handler: &mut dyn StreamHandler, ready: u32) {
        if ready & COMPLETION != 0 {
            return self.complete(handler, ready);
        }
        if !self.open(handler, ready) {
            return;
        }
        self.write_blocked(ready);
        if self.core().flags.take(Flags::PREFIX) {
            self.deliver_prefix(handler);
        }
        if self.core().flags.take(Flags::CALLED) && !self.has(Flags::CLOSING | Flags::DEAD) {
            self.call(|stream| handler.on_notify(stream));
        }
        if self.has(Flags::RING) {
            self.look_at_poll(ready);
            return self.tell_timeouts(handler);
        }
        let asks = ready & (IN | ERR | HUP) != 0 || self.has(Flags::IDLE_DUE);
        if asks && self.core().wants_input() {
            let received = self.receive_apart();
            let is_nothing = matches!(received, Received::Nothing);
            if !is_nothing && self.core().flags.take(Flags::IDLE_DUE) {
                // The wheel does not have it any more.
                self.core().flags |= Flags::ARM;
            }
            self.note(received, handler);
            if is_nothing && ready & (ERR | HUP) != 0 {
                self.note_error();
            }
        } else if ready & (ERR | HUP) != 0 {
            self.note_error();
        }
        self.tell_timeouts(handler);
    }

    /// Writes what waits for the socket to take it, if that may do so by now.
    fn write_blocked(&mut self, ready: u32) {
        if !self.has(Flags::BLOCKED) || self.has(Flags::DEAD) {
            return;
        }
        // A hang-up makes the write fail, which is how it is told of while nobody reads. A stall is
        // told only of a socket that is still full: the event that says otherwise may come behind
        // this one, after a handler that took long.
        let may_write =
            ready & (OUT | HUP) != 0 || (self.has(Flags::STALL_DUE) && is_writable(self.core()));
        if !may_write {
            return;
        }
        let before = self.core().buffered();
        self.reactor.write_stream(self.index);
        let core = self.core();
        if core.buffered() < before && core.flags.take(Flags::STALL_DUE) {
            // The wheel does not have it any more.
            core.flags |= Flags::ARM;
        }
    }

    /// Brings a new stream to the point where it is open; false when it is not there yet, or never
    /// will be.
    pub(super) fn open(&mut self, handler: &mut dyn StreamHandler, ready: u32) -> bool {
        if self.has(Flags::OPENED) {
            return true;
        }
        if self.has(Flags::DEAD) {
            return false;
        }
        if self.has(Flags::CONNECTING) {
            if ready & (OUT | ERR | HUP) == 0 {
                return false;
            }
            if let Err(errno) = socket_error(self.core()) {
                self.core().kill(CloseReason::Connect(errno));
                return false;
            }
            self.core().flags.clear(Flags::CONNECTING);
        }
        if self.has(Flags::CLOSING) {
            return true;
        }
        let core = self.core();
        core.flags |= Flags::OPENED;
        if core.flags.any(Flags::IDLE) {
            core.flags |= Flags::HEARD | Flags::ARM;
        }
        self.call(|stream| handler.on_open(stream));
        true
    }

    /// Gives the handler the bytes of an adoption, or a piece of what was kept for it, unless they
    /// have to wait or nobody wants them any more.
    ///
    /// One piece a call of the driver, as from a receive: what is sent for it goes out, or fills
    /// the output, and the handler hears of that before the next.
    pub(super) fn deliver_prefix(&mut self, handler: &mut dyn StreamHandler) {
        let index = self.index;
        if self.has(Flags::CLOSING | Flags::DEAD) {
            self.reactor.streams_mut().prefixes.remove(&index);
            return;
        }
        if self.has(Flags::PAUSED) {
            self.core().flags |= Flags::PREFIX;
            return;
        }
        let prefixes = &mut self.reactor.streams_mut().prefixes;
        let Some(kept) = prefixes.get_mut(&index) else { return };
        let piece = kept.pop_front();
        if kept.is_empty() {
            prefixes.remove(&index);
        } else {
            self.core().flags |= Flags::PREFIX;
        }
        match piece {
            None => {}
            Some(piece) if piece.bytes.is_empty() => self.end_of_input(handler),
            Some(mut piece) => {
                self.call(|stream| handler.on_data(stream, Input::new(&mut piece.bytes)))
            }
        }
    }

    /// The kernel reports an error or hang-up, and nobody reads.
    pub(super) fn note_error(&mut self) {
        if let Err(errno) = socket_error(self.core()) {
            return self.core().fail(errno);
        }
        let cell = self.core().cell;
        // A stream by completion is absent for as long as it is not polled.
        let is_absent = self.has(Flags::RING) && !self.has(Flags::POLLS);
        let is_lost = !is_absent
            && self.reactor.registry.find(cell).is_none_or(|cell| {
                let is_told = cell.has_flag(CellFlags::DIRTY)
                    || cell.armed_mask() == cell.interest().kernel_mask();
                cell.has_flag(CellFlags::ABSENT) || !is_told
            });
        if is_lost {
            // The event is the reactor's own: it could not keep up the registration, or the kernel
            // has refused a change of it (rule 7).
            self.core().fail(Errno::IO);
        }
    }

    fn tell_timeouts(&mut self, handler: &mut dyn StreamHandler) {
        if !self.has(Flags::DUE) {
            return;
        }
        for (due, timeout, reason, anew) in [
            (Flags::IDLE_DUE, Timeout::Idle, CloseReason::IdleTimeout, Flags::HEARD),
            (Flags::STALL_DUE, Timeout::WriteStall, CloseReason::WriteStall, Flags::STAMP),
        ] {
            if !self.core().flags.take(due) || self.has(Flags::CLOSING | Flags::DEAD) {
                continue;
            }
            // Whichever way the handler ends the stream, this is why.
            self.core().reason = Some(reason);
            self.call(|stream| handler.on_timeout(stream, timeout));
            let core = self.core();
            if !core.flags.any(Flags::CLOSING | Flags::DEAD) {
                core.reason = None;
                core.flags |= anew | Flags::ARM;
            }
        }
    }

    /// The callback has returned: what was sent goes out, and what was caused comes.
    #[inline(always)]
    fn leave<H: StreamHandler>(mut self, handler: &mut H) {
        let mut core = self.core();
        let mut is_plain = core.flags.is_plain();
        if is_plain && core.output.is_some() {
            self.reactor.write_stream(self.index);
            core = self.core();
            is_plain = core.flags.is_plain() && core.output.is_none();
        }
        if is_plain {
            core.flags.clear(Flags::RUNNING);
            self.end();
            // It has nothing any more, and this way nobody looks whether it has.
            core::mem::forget(self);
        } else {
            self.settle(handler);
        }
    }

    #[cold]
    #[inline(never)]
    fn settle(&mut self, handler: &mut dyn StreamHandler) {
        if self.reactor.streams_are_a_childs() {
            // The process was forked in a callback. What is to become of the stream, the parent
            // sees to.
            self.core().flags.clear(Flags::RUNNING);
            return self.end();
        }
        let index = self.index;
        let is_on_ring = self.has(Flags::RING);
        self.reactor.flush_stream(index);
        // A handler that sends in both of them has the rest of its callbacks in the next turn (rule
        // 10).
        for _ in 0..2 {
            if !self.core().owes_mark() {
                break;
            }
            let is_full = self.has(Flags::FULL);
            self.core().flags.set(Flags::TOLD_FULL, is_full);
            self.call(
                |stream| if is_full { handler.on_full(stream) } else { handler.on_drained(stream) },
            );
            self.reactor.flush_stream(index);
        }
        if is_on_ring && self.has(Flags::NO_OUTPUT) {
            self.reactor.send_before_the_end(index);
        }
        self.core().advance_end();
        if self.core().flags.any(Flags::TIMES) && !self.has(Flags::DEAD) {
            self.reactor.arm_stream(index);
        }
        self.reactor.sync_stream(index);
        if self.has(Flags::DEAD) {
            return self.close(handler);
        }
        self.core().flags.clear(Flags::RUNNING);
        if self.core().needs_driver() {
            self.reactor.notify_stream(index);
        }
        self.end();
    }

    /// Closes the stream. The socket outlives `on_close`, so that its number does not come again
    /// before the cell is gone.
    #[cold]
    fn close(&mut self, handler: &mut dyn StreamHandler) {
        let key = Stream { reactor: self.reactor, index: self.index }.key();
        let (socket, reason) = self.reactor.deregister_stream(self.index);
        self.end();
        handler.on_close(key, reason, Turn::new(self.reactor));
        drop(socket);
    }

    /// Gives the buffer back; dropping the frame does nothing from here on.
    #[inline(always)]
    fn end(&mut self) {
        self.is_open = false;
        if let (Some(scratch), Some(streams)) =
            (self.scratch.take(), self.reactor.streams.as_deref_mut())
        {
            streams.scratch = Some(scratch);
        }
    }
}

impl Frame<'_> {
    /// A callback has panicked. Its handler is in an unknown state, and goes with the cell (rule
    /// 8).
    #[cold]
    #[inline(never)]
    fn break_off(&mut self) {
        self.core().flags |= Flags::RESET;
        drop(self.reactor.deregister_stream(self.index));
        self.end();
    }
}

impl Drop for Frame<'_> {
    /// In line, so that nothing of it is left where a call has ended well.
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_open {
            self.break_off();
        }
    }
}

impl Core {
    /// Closes the writing half when the output is out, and notes when the stream is over.
    fn advance_end(&mut self) {
        if self.can_finish() && !self.flags.any(Flags::DEAD) {
            // `ENOTCONN`: the peer has reset the connection. Who still reads will hear of it.
            let is_gone = rustix::net::shutdown(&self.socket, Shutdown::Write).is_err();
            self.flags |= Flags::FINISHED;
            let is_hasty = is_gone || self.options.linger.is_zero() || self.flags.any(Flags::HASTY);
            if self.flags.any(Flags::CLOSING) && is_hasty {
                self.kill(CloseReason::Closed);
            }
        }
        if self.flags.any(Flags::FINISHED) && self.flags.any(Flags::ENDED) {
            self.kill(CloseReason::Closed);
        }
    }
}

/// Whether the kernel would tell of room for output. To try a write instead would squeeze in what
/// is left below that, and count as progress.
fn is_writable(core: &Core) -> bool {
    let mut asked = [PollFd::new(&core.socket, PollFlags::OUT)];
    poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
}

/// The error that waits at a socket, which is cleared by this.
fn socket_error(core: &Core) -> Result<(), Errno> {
    sockopt::socket_error(&core.socket).unwrap_or(Ok(()))
}
