//! Streams on a ring: data has already been received when the event comes, and output is submitted
//! with the next wait.
//!
//! A stream by completion (`StreamIo::Ring`) is not polled while it receives. Input that completes
//! while the stream is paused is kept in the same way as the `read_buf` of an adoption. It is
//! delivered piece by piece when the stream is resumed; then the receive is armed again.
//!
//! A reply, a short output and shared bytes are queued with the ring if the stream has nothing
//! buffered. Such a stream has one send in the ring and no output.
//!
//! If more is sent to it in the same turn, the queued send is withdrawn. Its bytes go out first, by
//! the system calls that streams by readiness use. Bytes that the socket does not accept come back
//! as [`Failed`] and are buffered as the stream's output. Queued bytes are sent before the writing
//! half or the socket is closed (rule 14).

use crate::{
    Errno, ModifyError,
    api::interest::{ERR, HUP},
    backend::{
        ReceivedPart, Uring,
        completions::{BROUGHT, Done, Failed, NO_BUFFER, Rest, Times},
    },
    cell::{CellFlags, CellPtr},
    interest,
    kernel::{Kernel, pending_work},
    stream::{
        SharedBytes, StreamHandler,
        io::{memory::Undelivered, readiness::DriverFrame},
        state::{SCRATCH_LEN, StreamTable},
        status::{Receive, StreamFlags, StreamPhase, StreamStatus, Transport, Watch},
    },
};

/// Whether new streams work by completion.
pub(in crate::stream) fn works_by_ring(kernel: &mut Kernel) -> bool {
    let is_by_ring = kernel.ring().is_some_and(Uring::completes);
    if is_by_ring {
        kernel.note(pending_work::PACED);
    }
    is_by_ring
}

#[inline]
fn queue(kernel: &mut Kernel, queue: impl FnOnce(&mut Uring) -> bool) -> bool {
    let is_queued = kernel.ring().is_some_and(queue);
    if is_queued {
        kernel.note_queued();
    }
    is_queued
}

impl StreamTable {
    fn cell(&mut self, kernel: &Kernel, index: u32) -> Option<CellPtr> {
        kernel.find(self.core(index).cell)
    }

    /// Queues bytes with the ring. False if that is not possible, or if other bytes of the stream
    /// must go first.
    #[inline(never)]
    pub(in crate::stream) fn queue_send(
        &mut self,
        kernel: &mut Kernel,
        index: u32,
        bytes: &[u8],
    ) -> bool {
        self.may_queue(kernel, index, bytes.len())
            && queue(kernel, |ring| ring.queue_send(index, bytes))
    }

    /// Like [`queue_send`](Self::queue_send), for bytes that the caller keeps.
    #[inline(never)]
    pub(in crate::stream) fn queue_copy(
        &mut self,
        kernel: &mut Kernel,
        index: u32,
        bytes: &[u8],
    ) -> bool {
        self.may_queue(kernel, index, bytes.len())
            && queue(kernel, |ring| ring.queue_copied(index, bytes))
    }

    /// Like [`queue_send`](Self::queue_send), for bytes that are sent to many
    /// streams.
    #[inline(never)]
    pub(in crate::stream) fn queue_shared(
        &mut self,
        kernel: &mut Kernel,
        index: u32,
        shared: &SharedBytes<'_>,
    ) -> bool {
        self.may_queue(kernel, index, shared.bytes().len())
            && queue(kernel, |ring| ring.queue_shared(index, shared))
    }

    /// Whether `len` bytes may be queued: they are next in order, and a wait follows that submits
    /// them.
    #[inline]
    fn may_queue(&mut self, kernel: &mut Kernel, index: u32, len: usize) -> bool {
        let is_in_turn = kernel.is_in_turn();
        let core = self.core(index);
        // A failed send may belong to this stream, and its bytes would go first.
        let is_free = core.status.rests_as(Transport::RING)
            && core.output.is_none()
            && len <= core.options.output_max
            && len > 0;
        is_free && is_in_turn && kernel.ring().is_some_and(|ring| ring.failed().is_empty())
    }

    /// Whether records may be queued, if nothing else waits.
    pub(in crate::stream) fn may_queue_records(&mut self, kernel: &mut Kernel, index: u32) -> bool {
        let status = self.core(index).status;
        let is_free = !status.rejects_output() && !status.any(StreamFlags::BLOCKED);
        is_free && kernel.ring().is_some_and(|ring| ring.failed().is_empty())
    }

    /// Queues records with the ring, after [`may_queue_records`](Self::may_queue_records).
    pub(in crate::stream) fn queue_records_copied(
        kernel: &mut Kernel,
        index: u32,
        records: &[u8],
    ) -> bool {
        queue(kernel, |ring| ring.queue_copied(index, records))
    }

    /// Called before anything else is sent to a stream. Its bytes queued with the ring become its
    /// output again, so that they go out first.
    pub(in crate::stream) fn before_output(&mut self, kernel: &mut Kernel, index: u32) {
        self.note_failed_sends(kernel);
        let Some(ring) = kernel.ring() else { return };
        ring.take_send_back(index, |bytes, shared| {
            debug_assert!(
                self.core(index).output.is_none(),
                "what comes later takes back what is queued first"
            );
            let is_tls = self.core(index).status.has_tls();
            let output = self.output(index);
            match shared {
                // The queue of a stream with TLS has records only.
                None if is_tls => output.push_records(bytes),
                Some(shared) => output.push_shared(&SharedBytes::of(shared), 0),
                None => output.push(bytes),
            }
        });
        // The send may already have been made, and may have failed.
        self.note_failed_sends(kernel);
    }

    fn put_back(&mut self, index: u32, rest: Rest) {
        debug_assert!(
            self.core(index).output.is_none(),
            "what comes later takes back what is queued first"
        );
        let is_tls = self.core(index).status.has_tls();
        match rest {
            Rest::Own(bytes) if bytes.is_empty() => {}
            Rest::Own(bytes) if is_tls => self.output(index).push_records(&bytes),
            Rest::Own(bytes) => self.output(index).push(&bytes),
            Rest::Shared(bytes, from) => {
                self.output(index).push_shared(&SharedBytes::of(&bytes), from)
            }
        }
    }

    /// Handles sends that failed or were partial: the rest is buffered until the socket is
    /// writable.
    #[inline]
    pub(in crate::stream) fn note_failed_sends(&mut self, kernel: &mut Kernel) {
        if kernel.ring().is_some_and(|ring| !ring.failed().is_empty()) {
            self.put_failed_back(kernel);
        }
    }

    #[cold]
    fn put_failed_back(&mut self, kernel: &mut Kernel) {
        let failed = kernel.ring().map(|ring| core::mem::take(ring.failed())).unwrap_or_default();
        for Failed { index, result, rest } in failed {
            let sent = match result {
                0.. => Ok(result),
                _ => Err(Errno::from_raw_os_error(-result)),
            };
            match sent {
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {
                    self.put_back(index, rest);
                    let core = self.core(index);
                    core.block(result > 0);
                    core.update_full();
                }
                Err(errno) => self.core(index).fail(errno),
            }
            // The stream's own event also calls its driver. This covers a panic in between.
            self.touch(kernel, index);
        }
    }

    /// Writes the buffered output. A short output goes out with the next wait; a longer one, or the
    /// last one of the stream, is written at once.
    pub(in crate::stream) fn write_by_ring(&mut self, kernel: &mut Kernel, index: u32) {
        self.before_output(kernel, index);
        let is_in_turn = kernel.is_in_turn();
        let is_tls = self.core(index).status.has_tls();
        if is_tls && is_in_turn && self.queue_records(kernel, index) {
            return;
        }
        let core = self.core(index);
        let is_last = core.status.rejects_output()
            || core.status.any(StreamFlags::BLOCKED)
            || core.status.has_tls();
        let Some(output) = core.output.take() else { return };
        let is_queued = match output.single() {
            Some(single) if is_in_turn && !is_last => {
                queue(kernel, |ring| ring.queue_send(index, single))
            }
            _ => false,
        };
        if is_queued {
            let mut output = output;
            output.advance(output.len());
            return self.keep_output(output);
        }
        self.core(index).output = Some(output);
        if let Err(errno) = self.transmit(index, &[]) {
            self.core(index).fail(errno);
        }
    }

    /// Sends the bytes queued with the ring at once. Called before the writing half or the socket
    /// is closed.
    #[cold]
    pub(in crate::stream) fn send_before_the_end(&mut self, kernel: &mut Kernel, index: u32) {
        if self.is_in_child() {
            return;
        }
        // A send may have failed, and its event may be behind the one that ends the stream.
        self.note_failed_sends(kernel);
        if !kernel.ring().is_some_and(|ring| ring.has_send(index)) {
            return;
        }
        self.before_output(kernel, index);
        let core = self.core(index);
        if core.output.is_none() || core.status.any(StreamFlags::BLOCKED) {
            return;
        }
        if let Err(errno) = self.transmit(index, &[]) {
            self.core(index).fail(errno);
        }
    }

    /// Called before a stream is removed from the tables.
    #[cold]
    pub(in crate::stream) fn leave_ring(&mut self, kernel: &mut Kernel, index: u32) {
        self.send_before_the_end(kernel, index);
        if let Some(ring) = kernel.ring() {
            // The send is no longer queued, unless the kernel could not be made to take it.
            ring.forget_send(index);
        }
    }

    /// Updates the stream's requests in the ring: a receive if it wants input, and a poll for
    /// conditions that a receive does not report. An error ends the stream.
    pub(in crate::stream) fn sync_by_ring(&mut self, kernel: &mut Kernel, index: u32) {
        let Some(cell) = self.cell(kernel, index) else {
            return self.core(index).fail(Errno::IO);
        };
        if cell.is_paused() {
            return;
        }
        let Some(ring) = kernel.ring() else { return };
        let core = self.core(index);
        // Kept input is delivered first. A closed stream keeps none.
        let wants_input = core.wants_input()
            && (core.status.is(StreamPhase::Closing) || !core.status.any(StreamFlags::PREFIX));
        if wants_input && core.status.receive() == Receive::Off {
            match (core.socket.is_lent(), core.status.is(StreamPhase::New)) {
                (false, _) => ring.receive(cell),
                (true, true) => ring.receive_soon(cell, Times::Once),
                (true, false) => ring.receive_soon(cell, Times::Many),
            }
            ring.enroll_sender(index, cell);
            core.status.set_receive(Receive::Armed);
        } else if !wants_input && core.status.receive() == Receive::Armed {
            let is_over = ring.end_receive(cell);
            core.status.set_receive(if is_over { Receive::Off } else { Receive::Ending });
        }
        let watch = match (core.status.holds_output(), core.status.receive()) {
            (true, _) => Watch::Writable,
            (false, Receive::Armed) => Watch::Nothing,
            (false, Receive::Off | Receive::Ending | Receive::WithFds) => Watch::Ends,
        };
        if core.status.watch() != watch {
            self.poll(kernel, index, cell, watch);
        }
    }

    fn poll(&mut self, kernel: &mut Kernel, index: u32, cell: CellPtr, watch: Watch) {
        let done = if watch == Watch::Nothing {
            cell.set_flag(CellFlags::DIRTY, false);
            cell.set_flag(CellFlags::ABSENT, true);
            if let Some(ring) = kernel.ring() {
                ring.unpoll(cell);
            }
            Ok(())
        } else if watch == Watch::Writable {
            kernel.change(cell, interest().write())
        } else {
            kernel.change(cell, interest())
        };
        let core = self.core(index);
        match done {
            Ok(()) => core.status.set_watch(watch),
            Err(ModifyError::Os(errno)) => core.fail(errno),
            Err(_) => core.fail(Errno::IO),
        }
    }
}

impl DriverFrame<'_> {
    /// Returns the received bytes, if there is nothing else in the event and nothing else to do for
    /// the stream.
    #[inline(always)]
    pub(in crate::stream) fn take_brought(
        &mut self,
        status: StreamStatus,
        ready: u32,
    ) -> Option<ReceivedPart> {
        // No condition has a higher bit.
        if ready < BROUGHT || !status.rests_as(Transport::RING) {
            return None;
        }
        if status.any(StreamFlags::IDLE) {
            let now = self.now_ns();
            self.core().last_rx_ns = now;
        }
        self.reactor.parts().kernel.ring()?.take_received(ready)
    }

    /// Handles an event of the ring for a stream.
    pub(in crate::stream) fn complete(&mut self, handler: &mut dyn StreamHandler, ready: u32) {
        let Some(Done { result, has_more, part }) =
            self.reactor.parts().kernel.ring().and_then(|ring| ring.take_done(ready))
        else {
            let (streams, kernel, _) = self.split();
            return streams.note_failed_sends(kernel);
        };
        let core = self.core();
        if !has_more {
            core.status.set_receive(Receive::Off);
        }
        // This event may precede the one that opens the stream.
        self.open(handler, ready);
        match result {
            1.. => {
                let Some(mut part) = part else { return };
                self.note_rx();
                // A buffer may be larger than the limit documented for handlers.
                let mut pieces = part.bytes().chunks_mut(SCRATCH_LEN);
                while let Some(piece) = pieces.next() {
                    self.take_input(handler, piece);
                    // Once another callback is due, or input is kept, the next piece waits for the
                    // next call of the driver.
                    if pieces.len() > 0 && !self.core().is_at_rest() && !self.is_ending() {
                        self.keep(pieces);
                        break;
                    }
                }
            }
            0 => self.take_input(handler, &mut []),
            _ => match Errno::from_raw_os_error(-result) {
                NO_BUFFER => self.await_buffer(),
                // The receive was cancelled, or must be armed again.
                Errno::CANCELED | Errno::INTR | Errno::AGAIN => {}
                errno => self.core().fail(errno),
            },
        }
    }

    fn note_rx(&mut self) {
        if self.core().status.any(StreamFlags::IDLE) {
            let now = self.now_ns();
            let core = self.core();
            core.last_rx_ns = now;
            if core.status.take(StreamFlags::IDLE_DUE) {
                // The wheel has already removed its deadline.
                core.status.insert(StreamFlags::ARM);
            }
        }
    }

    /// Passes received bytes to the handler, or the peer's end of stream if there are none. They
    /// are kept while reading is paused.
    fn take_input(&mut self, handler: &mut dyn StreamHandler, bytes: &mut [u8]) {
        if self.is_ending() {
            if bytes.is_empty() {
                self.end_of_input(handler);
            } else if self.has(StreamFlags::DELIVERS) {
                // They precede what its close finds.
                self.keep(core::iter::once(bytes));
            }
        } else if self.has(StreamFlags::PREFIX) || self.holds_input() {
            let index = self.index;
            let streams = self.streams();
            let piece = Undelivered::new(bytes.to_vec(), &streams.memory);
            streams.prefixes.entry(index).or_default().push_back(piece);
            self.core().status.clear(StreamFlags::PREFIX);
            self.deliver_prefix(handler);
        } else if bytes.is_empty() {
            self.end_of_input(handler);
        } else {
            self.deliver(handler, bytes);
        }
    }

    /// Appends received bytes to the input that is already kept.
    #[cold]
    fn keep<'b>(&mut self, pieces: impl Iterator<Item = &'b mut [u8]>) {
        let index = self.index;
        let streams = self.streams();
        let kept = streams.prefixes.entry(index).or_default();
        kept.extend(pieces.map(|piece| Undelivered::new(piece.to_vec(), &streams.memory)));
        self.core().status.insert(StreamFlags::PREFIX);
    }

    /// The receive has found no buffer. It is armed again when buffers are free.
    #[cold]
    fn await_buffer(&mut self) {
        let core = self.core();
        if core.status.any(StreamFlags::PREFIX) || !core.wants_input() {
            return;
        }
        let (streams, kernel, index) = self.split();
        let Some(cell) = streams.cell(kernel, index) else { return };
        if let Some(ring) = kernel.ring() {
            ring.receive_later(cell);
            self.core().status.set_receive(Receive::Armed);
        }
    }

    /// Handles the conditions of a poll other than writable.
    pub(in crate::stream) fn look_at_poll(&mut self, ready: u32) {
        // If a receive is active, it reports the error.
        if ready & (ERR | HUP) != 0
            && self.core().status.receive() != Receive::Armed
            && !self.is(StreamPhase::Dead)
        {
            self.note_error();
        }
        if self.has(StreamFlags::IDLE_DUE) && self.core().wants_input() && self.has_news() {
            let core = self.core();
            core.status.clear(StreamFlags::IDLE_DUE);
            core.status.insert(StreamFlags::STAMP_RX | StreamFlags::ARM);
        }
    }

    /// Whether an event has come for which the handler is called later.
    fn has_news(&mut self) -> bool {
        let (streams, kernel, index) = self.split();
        let Some(cell) = streams.cell(kernel, index) else { return false };
        kernel.has_event_of(cell)
            || kernel.ring().is_some_and(|ring| ring.has_news(cell))
            || streams.core(index).socket.has_input()
    }
}
