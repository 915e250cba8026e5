//! Streams with TLS: their sessions, and their output.
//!
//! 1. The session is in a table beside the cores, so that a plain stream is not larger for it.
//! 2. Output waits as plaintext, which streams share. It is encrypted right before the write. What
//!    the socket does not accept of one write waits as records in front of the output: at most
//!    [`WRITE_MAX`] bytes with their overhead, and what a handshake sends.
//! 3. Plaintext that is encrypted counts as accepted, because it cannot be taken back.
//! 4. A turn reads from at most [`HANDSHAKES_PER_TURN`] streams that are in their handshake. The
//!    others wait in a queue, first in, first out, and are not read from. One that is paused loses
//!    its place. The handshake timeout also runs in the queue.
//! 5. The time of the handshakes of a turn is bounded too: some keys need milliseconds. Once
//!    [`HANDSHAKE_TIME`] is used up, the others wait. Those that came from the queue go back to its
//!    front.
//! 6. A session may panic (`tls_state.rs`). Its stream is then reset: by the frame of its driver,
//!    or at the end of the turn.
//! 7. On a ring, short output is encrypted when it is written, and its records are queued. What is
//!    sent later takes them back as records, in front of it. Other output is sent by system calls.

use std::{collections::VecDeque, io::IoSlice, time::Duration};

use crate::{
    Errno,
    kernel::{Kernel, pending_work},
    stream::{
        DisconnectReason, TlsDecrypted, TlsFailure, TlsPhase, TlsSession,
        io::{
            output::Output,
            tls_state::{OwnSession, TlsState},
        },
        state::{StreamCore, StreamTable},
        status::{StreamFlags, StreamPhase},
    },
    time::clock,
};

/// Bytes of plaintext in one record (RFC 8446 section 5.1).
const RECORD_MAX: usize = 16 << 10;

/// Bytes of plaintext that are encrypted for one write: a message of 16 KiB with its header.
const WRITE_MAX: usize = RECORD_MAX + 1024;

/// The longest partial record: plaintext, its expansion, and the header (RFC 5246 section 6.2.3).
const PARTIAL_MAX: usize = RECORD_MAX + 2048 + 5;

/// Plaintext that goes by the ring's queue. Its records are not longer than what the queue copies.
const QUEUED_PLAINTEXT_MAX: usize = 4000;

/// The shared buffer keeps at most this much memory.
const RECORDS_KEPT: usize = 2 * WRITE_MAX;

/// The number of streams in their handshake that a turn reads from. A turn costs less than a
/// hundredth of a handshake, so few of them keep the turns short for nearly nothing. A ring needs
/// several turns to report what is ready: some twenty receives in each.
pub(in crate::stream) const HANDSHAKES_PER_TURN: usize = 4;

/// The time after which a turn reads from no more of them.
const HANDSHAKE_TIME: Duration = Duration::from_millis(1);

/// The sessions of a reactor, and the buffers that they share.
#[derive(Default)]
pub(crate) struct TlsTable {
    /// By the stream's index.
    states: Vec<Option<Box<TlsState>>>,
    /// Plaintext in several pieces is gathered here.
    plaintext: Vec<u8>,
    /// Records on their way to the socket.
    records: Vec<u8>,
    /// Streams that wait to be read from. An entry counts only if the stream at its index
    /// [waits](StreamFlags::HANDSHAKE_WAITS).
    queue: VecDeque<u32>,
    /// Entries of streams that were removed or paused.
    stale: usize,
    /// The number of streams in their handshake that this turn has read from.
    handshakes: usize,
    /// The time that this turn has used for handshakes.
    spent: Duration,
    /// The number of entries that this turn has put back to the front of the queue.
    returned: usize,
}

impl TlsTable {
    pub(super) fn state(&mut self, index: u32) -> Option<&mut TlsState> {
        self.states.get_mut(index as usize)?.as_deref_mut()
    }

    /// Whether the end of the turn has something to do.
    pub(in crate::stream) fn needs_service(&self) -> bool {
        self.handshakes > 0 || !self.queue.is_empty()
    }
}

/// Pieces that are encrypted after the buffered output.
struct Pieces<'p> {
    pieces: &'p [IoSlice<'p>],
    /// The number of bytes that were taken from the first piece.
    skip: usize,
    taken: usize,
    len: usize,
}

impl<'p> Pieces<'p> {
    fn new(pieces: &'p [IoSlice<'p>]) -> Self {
        Self { pieces, skip: 0, taken: 0, len: pieces.iter().map(|piece| piece.len()).sum() }
    }

    /// The rest of the first piece.
    fn first(&self) -> &'p [u8] {
        self.pieces.first().map_or(&[], |piece| &piece[self.skip..])
    }

    fn advance(&mut self, mut count: usize) {
        self.taken += count;
        self.len -= count;
        while count > 0 {
            let part = self.first().len().min(count);
            count -= part;
            self.skip += part;
            self.skip_empty();
        }
    }

    fn skip_empty(&mut self) {
        while self.pieces.first().is_some_and(|piece| piece.len() == self.skip) {
            self.pieces = &self.pieces[1..];
            self.skip = 0;
        }
    }

    fn move_to(&mut self, to: &mut Vec<u8>, count: usize) {
        let end = to.len() + count;
        self.skip_empty();
        while to.len() < end {
            let first = self.first();
            let part = &first[..first.len().min(end - to.len())];
            to.extend_from_slice(part);
            self.advance(part.len());
        }
    }
}

impl StreamCore {
    /// The session has failed. The alert is sent, then the stream is closed as by
    /// [`close`](crate::stream::Stream::close).
    pub(in crate::stream) fn fail_tls(&mut self, failure: TlsFailure) {
        if self.status.is_ending() {
            return;
        }
        self.reason = Some(DisconnectReason::Tls(failure));
        self.begin_linger();
        self.status.advance(StreamPhase::Closing);
    }
}

impl StreamTable {
    pub(in crate::stream) fn insert_tls(&mut self, index: u32, session: OwnSession) {
        let states = &mut self.tls.get_or_insert_default().states;
        if states.len() <= index as usize {
            states.resize_with(index as usize + 1, || None);
        }
        states[index as usize] = Some(Box::new(TlsState::new(session)));
    }

    /// Removes the session of a stream. The session is foreign code: the caller drops it after the
    /// stream is out of all tables.
    pub(in crate::stream) fn remove_tls(
        &mut self,
        index: u32,
        was_waiting: bool,
    ) -> Option<Box<TlsState>> {
        let tls = self.tls.as_deref_mut()?;
        let mut state = tls.states.get_mut(index as usize)?.take()?;
        state.forget(&self.memory);
        tls.stale += usize::from(was_waiting);
        if tls.stale > tls.queue.len() / 2 {
            let cores = &mut self.cores;
            tls.queue.retain(|index| {
                let core = cores.at_mut(*index);
                core.is_some_and(|core| core.status.any(StreamFlags::HANDSHAKE_WAITS))
            });
            tls.stale = 0;
        }
        Some(state)
    }

    pub(in crate::stream) fn tls_state(&mut self, index: u32) -> &mut TlsState {
        let tls = self.tls.as_deref_mut();
        tls.and_then(|tls| tls.state(index)).expect("a stream with the flag has a session")
    }

    pub(in crate::stream) fn tls_session(&self, index: u32) -> Option<&dyn TlsSession> {
        let state = self.tls.as_deref()?.states.get(index as usize)?.as_deref()?;
        Some(&**state.session)
    }

    /// The memory of a partial record, and of the session.
    pub(in crate::stream) fn tls_memory(&self, index: u32) -> usize {
        let states = self.tls.as_deref().map_or(&[][..], |tls| &tls.states);
        let state = states.get(index as usize).and_then(Option::as_deref);
        state.map_or(0, |state| state.memory())
    }

    /// Frees the buffers of a session that are not the output's.
    pub(in crate::stream) fn drop_tls_buffers(&mut self, index: u32) {
        if let Some(state) = self.tls.as_deref_mut().and_then(|tls| tls.state(index)) {
            state.partial = None;
        }
        if let Some(output) = &mut self.core(index).output {
            output.drop_records();
        }
    }

    /// Decrypts received bytes. Appends records in reply to `records`.
    fn decrypt_into(
        &mut self,
        index: u32,
        input: &mut [u8],
        records: &mut Vec<u8>,
    ) -> TlsDecrypted {
        let broken = TlsDecrypted::new(0, 0, TlsPhase::Failed(TlsFailure::Internal));
        let state = self.tls_state(index);
        let (len, was_open) = (input.len(), state.progress.is_open);
        state.progress.has_begun = true;
        let begin = (!was_open && len > 0).then(clock::now);
        let mut done = state.call(|session| session.decrypt(input, records)).unwrap_or(broken);
        // It takes all whole records, except at the end of the handshake and of the session.
        let takes_all = match done.phase {
            TlsPhase::Handshake => true,
            TlsPhase::Open => was_open,
            TlsPhase::PeerClosed | TlsPhase::Failed(_) => false,
        };
        let is_sound = done.consumed <= len
            && done.plaintext <= done.consumed
            && (was_open || done.plaintext == 0);
        if !is_sound || (takes_all && len - done.consumed > PARTIAL_MAX) {
            done = broken;
        }
        // A session that asks for more than a record would make the partial one grow without end.
        let more_max = PARTIAL_MAX.saturating_sub(len - done.consumed).max(1);
        state.missing = done.missing.clamp(1, more_max);
        let progress = &mut state.progress;
        progress.is_open |= matches!(done.phase, TlsPhase::Open | TlsPhase::PeerClosed);
        progress.has_ended |= matches!(done.phase, TlsPhase::PeerClosed);
        progress.is_closed |= matches!(done.phase, TlsPhase::Failed(_));
        let memory = std::rc::Rc::clone(&self.memory);
        self.tls_state(index).count(&memory);
        if let (Some(begin), Some(tls)) = (begin, self.tls.as_deref_mut()) {
            // None in a simulation, where each run is the same.
            tls.spent += clock::now().saturating_duration_since(begin);
        }
        done
    }

    /// Like [`transmit`](Self::transmit), for a stream with TLS.
    #[inline(never)]
    pub(in crate::stream) fn transmit_tls(
        &mut self,
        index: u32,
        pieces: &[IoSlice<'_>],
    ) -> Result<usize, Errno> {
        let mut pieces = Pieces::new(pieces);
        while self.send_records(index, &mut pieces)? && self.encrypt_next(index, &mut pieces)? {}
        Ok(pieces.taken)
    }

    /// Sends the records that wait. False if the socket did not accept all of them.
    fn send_records(&mut self, index: u32, pieces: &mut Pieces<'_>) -> Result<bool, Errno> {
        let waiting = self.core(index).output.as_ref().map_or(0, |output| output.records().len());
        if waiting == 0 {
            return Ok(true);
        }
        self.join_records(index, waiting, pieces)?;
        let core = self.core(index);
        let Some(mut output) = core.output.take() else { return Ok(true) };
        let sent = core.offer(&[IoSlice::new(output.records())]);
        output.advance_records(*sent.as_ref().unwrap_or(&0));
        let is_sent = output.records().is_empty();
        self.put_output(index, output);
        if sent? > 0 {
            self.core(index).note_progress();
        }
        Ok(is_sent)
    }

    /// Encrypts the output behind records that wait, if all of it is short, for one write. So an
    /// answer that follows the end of the handshake leaves together with the session tickets.
    fn join_records(
        &mut self,
        index: u32,
        waiting: usize,
        pieces: &mut Pieces<'_>,
    ) -> Result<(), Errno> {
        let progress = self.tls_state(index).progress;
        let len = self.core(index).buffered() - waiting + pieces.len;
        let is_short = len > 0 && waiting + len <= WRITE_MAX;
        if !is_short || !progress.is_open || progress.is_closed {
            return Ok(());
        }
        let mut records = self.take_records();
        let encrypted = self.encrypt(index, pieces, len, &mut records);
        if encrypted.is_ok() {
            self.output(index).push_records(&records);
        }
        self.keep_records(records);
        // Reported as the reason in place of this error.
        encrypted.map_err(|failure| {
            self.end_tls(index, failure);
            Errno::IO
        })
    }

    fn put_output(&mut self, index: u32, output: Box<Output>) {
        if output.len() == 0 {
            self.keep_output(output);
        } else {
            self.core(index).output = Some(output);
        }
    }

    /// Encrypts and sends the next plaintext. False if there is none, if nothing can be encrypted,
    /// or if the socket did not accept all of it.
    fn encrypt_next(&mut self, index: u32, pieces: &mut Pieces<'_>) -> Result<bool, Errno> {
        let state = self.tls_state(index);
        let may_encrypt = state.progress.is_open && !state.progress.is_closed;
        let len = self.core(index).buffered() + pieces.len;
        if len == 0 || !may_encrypt {
            return Ok(false);
        }
        let mut records = self.take_records();
        let count = if len <= WRITE_MAX { len } else { RECORD_MAX };
        let encrypted = self.encrypt(index, pieces, count, &mut records);
        let is_sent = match encrypted {
            Ok(()) => self.send_or_keep(index, &records),
            Err(failure) => {
                self.end_tls(index, failure);
                // Reported as the reason in place of this error.
                Err(Errno::IO)
            }
        };
        self.keep_records(records);
        is_sent
    }

    /// Appends records with the next `count` bytes of the output and of the pieces behind it.
    fn encrypt(
        &mut self,
        index: u32,
        pieces: &mut Pieces<'_>,
        count: usize,
        records: &mut Vec<u8>,
    ) -> Result<(), TlsFailure> {
        let output = self.core(index).output.take();
        let encrypted = if output.is_none() && pieces.first().len() >= count {
            let bytes = &pieces.first()[..count];
            pieces.advance(count);
            self.tls_state(index).call(|session| session.encrypt(bytes, records))
        } else {
            let tls = self.tls.as_deref_mut().expect("a stream with the flag has a session");
            let mut gathered = core::mem::take(&mut tls.plaintext);
            gathered.clear();
            if let Some(mut output) = output {
                let own = output.copy_to(&mut gathered, count);
                output.advance(own);
                self.put_output(index, output);
            }
            let more = count - gathered.len();
            pieces.move_to(&mut gathered, more);
            let encrypted =
                self.tls_state(index).call(|session| session.encrypt(&gathered, records));
            if let Some(tls) = self.tls.as_deref_mut() {
                tls.plaintext = gathered;
            }
            encrypted
        };
        encrypted.unwrap_or(Err(TlsFailure::Internal))
    }

    /// Sends records right away. Those that the socket does not accept wait.
    fn send_or_keep(&mut self, index: u32, records: &[u8]) -> Result<bool, Errno> {
        let core = self.core(index);
        let sent = core.offer(&[IoSlice::new(records)])?;
        if sent > 0 {
            core.note_progress();
        }
        if sent < records.len() {
            self.output(index).push_records(&records[sent..]);
        }
        Ok(sent == records.len())
    }

    /// The session has failed: nothing more is encrypted, and the rest of the output is dropped.
    pub(in crate::stream) fn end_tls(&mut self, index: u32, failure: TlsFailure) {
        let state = self.tls_state(index);
        state.progress.is_closed = true;
        state.progress.failure.get_or_insert(failure);
        state.partial = None;
        let is_broken = state.progress.is_called;
        if let Some(mut output) = self.core(index).output.take() {
            output.drop_pieces();
            self.put_output(index, output);
        }
        self.prefixes.remove(&index);
        let core = self.core(index);
        core.fail_tls(failure);
        if is_broken {
            core.kill(DisconnectReason::Closed);
            core.status.insert(StreamFlags::RESET);
        }
    }

    fn take_records(&mut self) -> Vec<u8> {
        let tls = self.tls.as_deref_mut();
        let mut records = tls.map(|tls| core::mem::take(&mut tls.records)).unwrap_or_default();
        records.clear();
        records
    }

    /// Returns the shared buffer.
    fn keep_records(&mut self, mut records: Vec<u8>) {
        if records.capacity() > RECORDS_KEPT {
            // A flight with many certificates has made it long.
            records.clear();
            records.shrink_to(RECORDS_KEPT);
        }
        if let Some(tls) = self.tls.as_deref_mut() {
            tls.records = records;
        }
    }

    /// Whether a stream in its handshake may be read from in this turn. If not, it waits, and the
    /// end of a turn admits it.
    pub(in crate::stream) fn admit_handshake(&mut self, kernel: &mut Kernel, index: u32) -> bool {
        kernel.note(pending_work::STREAMS);
        let Some(tls) = self.tls.as_deref_mut() else { return true };
        let has_time = tls.spent < HANDSHAKE_TIME;
        let Some(state) = tls.state(index) else { return true };
        let was_queued = core::mem::take(&mut state.is_admitted);
        if was_queued && has_time {
            return true;
        }
        if was_queued {
            // Those that were put back before may have been removed meanwhile.
            tls.queue.insert(tls.returned.min(tls.queue.len()), index);
            tls.returned += 1;
        } else if tls.queue.is_empty() && tls.handshakes < HANDSHAKES_PER_TURN && has_time {
            tls.handshakes += 1;
            return true;
        } else {
            tls.queue.push_back(index);
        }
        self.core(index).status.insert(StreamFlags::HANDSHAKE_WAITS);
        false
    }
}

impl StreamCore {
    /// The socket has accepted output.
    fn note_progress(&mut self) {
        if self.status.take(StreamFlags::STALL_DUE) {
            // The wheel has already removed its deadline.
            self.status.insert(StreamFlags::ARM);
        }
    }
}

impl StreamTable {
    /// Decrypts received bytes. Records in reply become output.
    pub(in crate::stream) fn decrypt(
        &mut self,
        kernel: &mut Kernel,
        index: u32,
        input: &mut [u8],
    ) -> TlsDecrypted {
        let mut records = self.take_records();
        let done = self.decrypt_into(index, input, &mut records);
        if !records.is_empty() {
            if self.core(index).status.is_on_ring() {
                // Records that the ring has go first.
                self.before_output(kernel, index);
            }
            self.output(index).push_records(&records);
        }
        self.keep_records(records);
        done
    }

    /// On a ring: encrypts the output of a stream with TLS, if it is short, and queues the records
    /// with the ring. False if the output must be sent at once.
    pub(in crate::stream) fn queue_records(&mut self, kernel: &mut Kernel, index: u32) -> bool {
        if !self.may_queue_records(kernel, index) {
            return false;
        }
        let progress = self.tls_state(index).progress;
        let core = self.core(index);
        let len = core.buffered();
        let has_records = core.output.as_ref().is_none_or(|output| !output.records().is_empty());
        if has_records || len > QUEUED_PLAINTEXT_MAX || !progress.is_open || progress.is_closed {
            return false;
        }
        let mut records = self.take_records();
        match self.encrypt(index, &mut Pieces::new(&[]), len, &mut records) {
            Err(failure) => self.end_tls(index, failure),
            // The stream has no output now, so these records are next.
            Ok(()) if Self::queue_records_copied(kernel, index, &records) => {}
            Ok(()) => {
                if let Err(errno) = self.send_or_keep(index, &records) {
                    self.core(index).fail(errno);
                }
            }
        }
        self.keep_records(records);
        true
    }

    /// At the end of a turn: admits the next streams that wait in their handshake. Their drivers
    /// are called in the next turn.
    #[cold]
    pub(crate) fn admit_next_handshakes(&mut self, kernel: &mut Kernel) {
        let Some(tls) = self.tls.as_deref_mut() else { return };
        if core::mem::take(&mut tls.handshakes) == 0 && tls.queue.is_empty() {
            return;
        }
        (tls.spent, tls.returned) = (Duration::ZERO, 0);
        loop {
            let Some(tls) = self.tls.as_deref_mut() else { return };
            if tls.handshakes == HANDSHAKES_PER_TURN {
                break;
            }
            let Some(index) = tls.queue.pop_front() else { break };
            let Some(core) = self.cores.at_mut(index) else {
                tls.stale = tls.stale.saturating_sub(1);
                continue;
            };
            if !core.status.take(StreamFlags::HANDSHAKE_WAITS) {
                tls.stale = tls.stale.saturating_sub(1);
                continue;
            }
            // A paused stream asks again when it is resumed.
            if core.status.is(StreamPhase::Handshake) && !core.status.any(StreamFlags::PAUSED) {
                tls.handshakes += 1;
                if let Some(state) = tls.state(index) {
                    state.is_admitted = true;
                }
            }
            self.notify(kernel, index);
        }
        let is_next = self.tls.as_deref().is_some_and(|tls| tls.needs_service());
        kernel.clear(pending_work::STREAMS);
        kernel.note(if is_next { pending_work::STREAMS } else { 0 });
    }

    /// Encrypts `close_notify` once all output was sent, and sends it.
    pub(in crate::stream) fn send_close_notify(&mut self, index: u32) {
        if self.is_in_child() {
            return;
        }
        let state = self.tls_state(index);
        let progress = &mut state.progress;
        if !progress.is_open || core::mem::replace(&mut progress.is_closed, true) {
            return;
        }
        let mut records = self.take_records();
        let state = self.tls_state(index);
        if state.call(|session| session.close_notify(&mut records)).is_none() {
            self.end_tls(index, TlsFailure::Internal);
        } else if !records.is_empty() {
            if let Err(errno) = self.send_or_keep(index, &records) {
                self.core(index).fail(errno);
            }
        }
        self.keep_records(records);
    }
}
