//! Streams on a ring: what is received has been received when the event comes, and what is sent
//! goes out with the next wait.
//!
//! A stream [by completion](Flags::RING) is not polled while it receives. What completes while it
//! is paused is kept as an adoption's prefix is, and delivered when it is resumed, a piece at a
//! time; then the receive is armed again.
//!
//! An answer, a short output and shared bytes are queued with the ring if nothing of the stream's
//! waits: such a stream has one send there and no output. Whatever else is sent to it in the same
//! turn takes that one back and goes out at once after it, by the calls that streams by readiness
//! make. What the socket does not take comes back as [`Failed`] and waits as the stream's output
//! does everywhere. Before the writing half or the socket is closed, what is queued is sent (rule
//! 14).

use super::{
    Input, Shared, StreamHandler,
    driver::Frame,
    ledger::Undelivered,
    state::{Core, Flags, SCRATCH_LEN},
};
use crate::{
    Errno, ModifyError, Reactor,
    backend::{BROUGHT, Done, Failed, Lent, NO_BUFFER, Rest, Uring},
    cell::{CellPtr, Flags as CellFlags},
    interest,
    interest::{ERR, HUP},
    pending_work,
    reactor::Phase,
};

impl Core {
    /// Whether nothing is to be done for it but to receive, on a ring.
    #[inline]
    pub(super) fn rests_on_ring(&self) -> bool {
        self.flags.is_plain_on_ring() && self.output.is_none()
    }
}

impl Reactor {
    /// Whether new streams go by completion.
    pub(super) fn streams_complete(&mut self) -> bool {
        self.driver.ring().is_some_and(Uring::completes)
    }

    fn stream_cell(&mut self, index: u32) -> Option<CellPtr<Self>> {
        let key = self.stream_core(index).cell;
        self.registry.find(key)
    }

    /// Queues bytes with the ring; false when they cannot be, or something of the stream's comes
    /// before them.
    #[inline]
    pub(super) fn queue_stream_send(&mut self, index: u32, bytes: &[u8]) -> bool {
        self.may_queue(index, bytes.len()) && self.queue(|ring| ring.queue_send(index, bytes))
    }

    /// As [`queue_stream_send`](Self::queue_stream_send), for bytes that many are sent.
    #[inline]
    pub(super) fn queue_stream_shared(&mut self, index: u32, shared: &Shared<'_>) -> bool {
        self.may_queue(index, shared.bytes().len())
            && self.queue(|ring| ring.queue_shared(index, shared))
    }

    /// Whether so many bytes can be next, and a wait comes by which they go out.
    #[inline]
    fn may_queue(&mut self, index: u32, len: usize) -> bool {
        let is_in_turn = self.phase != Phase::Idle;
        let core = self.stream_core(index);
        // What has failed may be this stream's, and would come first.
        let is_free = core.rests_on_ring() && len <= core.options.output_max && len > 0;
        is_free && is_in_turn && self.driver.ring().is_some_and(|ring| ring.failed().is_empty())
    }

    #[inline]
    fn queue(&mut self, queue: impl FnOnce(&mut Uring) -> bool) -> bool {
        let is_queued = self.driver.ring().is_some_and(queue);
        if is_queued && !self.keeps_queue {
            self.pending_work |= pending_work::QUEUED;
        }
        is_queued
    }

    /// Before anything else is sent to a stream: what of it is queued with the ring is its output
    /// again, and goes out first.
    pub(super) fn before_output(&mut self, index: u32) {
        self.note_failed_sends();
        let (Some(ring), Some(streams)) = (self.driver.ring(), self.streams.as_deref_mut()) else {
            return;
        };
        ring.take_send_back(index, |bytes, shared| {
            debug_assert!(
                streams.core(index).output.is_none(),
                "what comes later takes back what is queued first"
            );
            let output = streams.output(index);
            match shared {
                Some(shared) => output.push_shared(&Shared::of(shared), 0),
                None => output.push(bytes),
            }
        });
        // It may have been seen through, and failed.
        self.note_failed_sends();
    }

    fn put_back(&mut self, index: u32, rest: Rest) {
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        debug_assert!(
            streams.core(index).output.is_none(),
            "what comes later takes back what is queued first"
        );
        match rest {
            Rest::Own(bytes) if bytes.is_empty() => {}
            Rest::Own(bytes) => streams.output(index).push(&bytes),
            Rest::Shared(bytes, from) => {
                streams.output(index).push_shared(&Shared::of(&bytes), from)
            }
        }
    }

    /// Sends that the ring could not make, or not whole: what is left waits until the socket is
    /// writable.
    #[inline]
    pub(super) fn note_failed_sends(&mut self) {
        if self.driver.ring().is_some_and(|ring| !ring.failed().is_empty()) {
            self.put_failed_back();
        }
    }

    #[cold]
    fn put_failed_back(&mut self) {
        let failed =
            self.driver.ring().map(|ring| core::mem::take(ring.failed())).unwrap_or_default();
        for Failed { index, result, rest } in failed {
            let sent = match result {
                0.. => Ok(result),
                _ => Err(Errno::from_raw_os_error(-result)),
            };
            match sent {
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {
                    self.put_back(index, rest);
                    let core = self.stream_core(index);
                    core.block(result > 0);
                    core.note_marks();
                }
                Err(errno) => self.stream_core(index).fail(errno),
            }
            // Its own event tells its driver; so does this, if a panic comes between.
            self.touch_stream(index);
        }
    }

    /// Writes what waits: a short output with the next wait, and what is longer, or the last that
    /// there is, at once.
    pub(super) fn write_by_ring(&mut self, index: u32) {
        self.before_output(index);
        let is_in_turn = self.phase != Phase::Idle;
        let core = self.stream_core(index);
        let is_last = core.flags.any(Flags::NO_OUTPUT | Flags::BLOCKED);
        let Some(output) = core.output.take() else { return };
        let is_queued = match output.single() {
            Some(single) if is_in_turn && !is_last => {
                self.queue(|ring| ring.queue_send(index, single))
            }
            _ => false,
        };
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        if is_queued {
            let mut output = output;
            output.advance(output.len());
            return streams.keep_output(output);
        }
        streams.core(index).output = Some(output);
        if let Err(errno) = streams.transmit(index, &[]) {
            streams.core(index).fail(errno);
        }
    }

    /// Before the writing half is closed, or the socket: what is queued with the ring is sent at
    /// once.
    #[cold]
    pub(super) fn send_before_the_end(&mut self, index: u32) {
        if self.streams_are_a_childs()
            || !self.driver.ring().is_some_and(|ring| ring.has_send(index))
        {
            return;
        }
        self.before_output(index);
        let core = self.stream_core(index);
        if core.output.is_none() || core.flags.any(Flags::BLOCKED) {
            return;
        }
        let streams = self.streams.as_deref_mut().expect("a stream is in the table");
        if let Err(errno) = streams.transmit(index, &[]) {
            streams.core(index).fail(errno);
        }
    }

    /// Before a stream leaves the books.
    #[cold]
    pub(super) fn leave_ring(&mut self, index: u32) {
        self.send_before_the_end(index);
        if let Some(ring) = self.driver.ring() {
            // It is there no more, unless the kernel could not be made to take it.
            ring.forget_send(index);
        }
    }

    /// Asks the ring for what the stream wants to hear of: a receive if it wants input, and a poll
    /// for what no receive tells. A refusal is the stream's end.
    pub(super) fn sync_by_ring(&mut self, index: u32) {
        let Some(cell) = self.stream_cell(index) else {
            return self.stream_core(index).fail(Errno::IO);
        };
        let Some(ring) = self.driver.ring() else { return };
        let Some(streams) = self.streams.as_deref_mut() else { return };
        let core = streams.core(index);
        // What is kept comes first; a closed stream keeps nothing.
        let wants_input = core.wants_input()
            && (core.flags.any(Flags::CLOSING) || !core.flags.any(Flags::PREFIX));
        if wants_input && !core.flags.any(Flags::WATCHES_IN | Flags::ENDING) {
            ring.receive(cell);
            ring.enroll_sender(index, cell);
            core.flags |= Flags::WATCHES_IN;
        } else if !wants_input && core.flags.take(Flags::WATCHES_IN) {
            let is_over = ring.end_receive(cell);
            core.flags.set(Flags::ENDING, !is_over);
        }
        let mut polls = Flags::default();
        polls.set(Flags::WATCHES_OUT, core.flags.any(Flags::BLOCKED | Flags::CONNECTING));
        polls.set(
            Flags::WATCHES_ENDS,
            !polls.any(Flags::WATCHES_OUT) && !core.flags.any(Flags::WATCHES_IN),
        );
        if core.flags.only(Flags::POLLS) != polls {
            self.poll_stream(index, cell, polls);
        }
    }

    fn poll_stream(&mut self, index: u32, cell: CellPtr<Self>, polls: Flags) {
        let done = if polls == Flags::default() {
            cell.set_flag(CellFlags::DIRTY, false);
            cell.set_flag(CellFlags::ABSENT, true);
            if let Some(ring) = self.driver.ring() {
                ring.unpoll(cell);
            }
            Ok(())
        } else if polls.any(Flags::WATCHES_OUT) {
            self.change(cell, interest().write())
        } else {
            self.change(cell, interest())
        };
        let core = self.stream_core(index);
        match done {
            Ok(()) => {
                core.flags.clear(Flags::POLLS);
                core.flags |= polls;
            }
            Err(ModifyError::Os(errno)) => core.fail(errno),
            Err(_) => core.fail(Errno::IO),
        }
    }
}

impl Frame<'_> {
    /// The bytes that a receive has brought, where that is all there is to the event and to the
    /// stream.
    #[inline]
    pub(super) fn take_brought(&mut self, ready: u32) -> Option<Lent> {
        if ready & BROUGHT != BROUGHT || !self.core().flags.is_plain_on_ring() {
            return None;
        }
        if self.core().flags.any(Flags::IDLE) {
            let now = self.reactor.now_ns();
            self.core().heard_ns = now;
        }
        self.reactor.driver.ring()?.take_done(ready)?.lent
    }

    /// What the ring tells of a stream.
    pub(super) fn complete(&mut self, handler: &mut dyn StreamHandler, ready: u32) {
        let Some(Done { result, has_more, lent }) =
            self.reactor.driver.ring().and_then(|ring| ring.take_done(ready))
        else {
            return self.reactor.note_failed_sends();
        };
        let core = self.core();
        if !has_more {
            core.flags.clear(Flags::WATCHES_IN | Flags::ENDING);
        }
        // It may have come before the event by which the stream is opened.
        self.open(handler, ready);
        match result {
            1.. => {
                let Some(mut lent) = lent else { return };
                self.note_heard();
                // A buffer may be larger than what a handler is told to expect.
                let mut pieces = lent.bytes().chunks_mut(SCRATCH_LEN);
                while let Some(piece) = pieces.next() {
                    self.take_input(handler, piece);
                    // Once something is to be told of, or waits, the next piece is for the next
                    // call of the driver.
                    if pieces.len() > 0
                        && !self.core().rests_on_ring()
                        && !self.has(Flags::CLOSING | Flags::DEAD)
                    {
                        self.keep(pieces);
                        break;
                    }
                }
            }
            0 => self.take_input(handler, &mut []),
            _ => match Errno::from_raw_os_error(-result) {
                NO_BUFFER => self.starve(),
                // It was cancelled, or is to be armed again.
                Errno::CANCELED | Errno::INTR | Errno::AGAIN => {}
                errno => self.core().fail(errno),
            },
        }
    }

    fn note_heard(&mut self) {
        if self.core().flags.any(Flags::IDLE) {
            let now = self.reactor.now_ns();
            let core = self.core();
            core.heard_ns = now;
            if core.flags.take(Flags::IDLE_DUE) {
                // The wheel does not have it any more.
                core.flags |= Flags::ARM;
            }
        }
    }

    /// Received bytes, or none at the peer's end, go to the handler; they are kept while it does
    /// not want to read.
    fn take_input(&mut self, handler: &mut dyn StreamHandler, bytes: &mut [u8]) {
        if self.has(Flags::CLOSING | Flags::DEAD) {
            if bytes.is_empty() {
                self.end_of_input(handler);
            }
        } else if self.has(Flags::PAUSED | Flags::PREFIX) {
            let index = self.index;
            let streams = self.reactor.streams_mut();
            let piece = Undelivered::new(bytes.to_vec(), &streams.ledger);
            streams.prefixes.entry(index).or_default().push_back(piece);
            self.core().flags.clear(Flags::PREFIX);
            self.deliver_prefix(handler);
        } else if bytes.is_empty() {
            self.end_of_input(handler);
        } else {
            self.call(|stream| handler.on_data(stream, Input::new(bytes)));
        }
    }

    /// What was received goes behind what the stream keeps already.
    #[cold]
    fn keep<'b>(&mut self, pieces: impl Iterator<Item = &'b mut [u8]>) {
        let index = self.index;
        let streams = self.reactor.streams_mut();
        let kept = streams.prefixes.entry(index).or_default();
        kept.extend(pieces.map(|piece| Undelivered::new(piece.to_vec(), &streams.ledger)));
        self.core().flags |= Flags::PREFIX;
    }

    /// The receive has found no buffer: it is armed again when there are some.
    #[cold]
    fn starve(&mut self) {
        let core = self.core();
        if core.flags.any(Flags::DEAD | Flags::PREFIX) || !core.wants_input() {
            return;
        }
        let index = self.index;
        let Some(cell) = self.reactor.stream_cell(index) else { return };
        if let Some(ring) = self.reactor.driver.ring() {
            ring.receive_later(cell);
            self.core().flags |= Flags::WATCHES_IN;
        }
    }

    /// What a poll of the stream has told, beside that it is writable.
    pub(super) fn look_at_poll(&mut self, ready: u32) {
        // Where a receive is under way it tells.
        if ready & (ERR | HUP) != 0 && !self.has(Flags::WATCHES_IN | Flags::DEAD) {
            self.note_error();
        }
        if self.has(Flags::IDLE_DUE) && self.core().wants_input() && self.has_news() {
            let core = self.core();
            core.flags.clear(Flags::IDLE_DUE);
            core.flags |= Flags::HEARD | Flags::ARM;
        }
    }

    /// Whether something has come that the handler will be told of in its turn.
    fn has_news(&mut self) -> bool {
        let index = self.index;
        let Some(cell) = self.reactor.stream_cell(index) else { return false };
        let is_in_batch = self.reactor.batch.names(cell.expose());
        is_in_batch
            || self.reactor.driver.ring().is_some_and(|ring| ring.has_news(cell))
            || rustix::io::ioctl_fionread(&self.core().socket).is_ok_and(|bytes| bytes > 0)
    }
}
