//! Input of streams with TLS: received bytes become plaintext, in a frame of the stream's driver.
//!
//! 1. Records are decrypted where they were received. Their plaintexts are moved together, so that
//!    a message in several records is delivered in one piece.
//! 2. A partial record is kept until the rest of it comes. It is then copied in front of the rest.
//! 3. A handler that pauses in `on_open` gets nothing more. The records that came with the end of
//!    the handshake are kept like the `read_buf` of an adoption.
//! 4. Input after the end of the session is discarded.
//! 5. The peer's `close_notify` may come with data, and the handler may pause when it gets the
//!    data. The end is then kept like input, as an empty piece.

use crate::stream::{
    Input, StreamHandler, TlsDecrypted, TlsFailure, TlsPhase,
    io::{memory::Undelivered, readiness::DriverFrame},
    state::SCRATCH_LEN,
    status::{StreamFlags, StreamPhase},
};

impl DriverFrame<'_> {
    /// Passes received bytes on: to the session if there is one, else to the handler.
    pub(in crate::stream) fn deliver(&mut self, handler: &mut dyn StreamHandler, bytes: &mut [u8]) {
        if self.has_tls() {
            self.decrypt_piece(handler, bytes);
        } else {
            self.call(|stream| handler.on_data(stream, Input::new(bytes)));
        }
    }

    /// Whether it has waited for its place among the handshakes of this turn.
    pub(in crate::stream) fn is_admitted(&mut self) -> bool {
        let index = self.index;
        self.is(StreamPhase::Handshake) && self.streams().tls_state(index).is_admitted()
    }

    pub(super) fn admit_handshake(&mut self) -> bool {
        let (streams, kernel, index) = self.split();
        streams.admit_handshake(kernel, index)
    }

    /// The length of the partial record.
    pub(super) fn partial_len(&mut self) -> usize {
        let (streams, _, index) = self.split();
        streams.tls_state(index).partial().len()
    }

    /// Decrypts the bytes that lie in the receive buffer behind room for the partial record.
    pub(super) fn records(
        &mut self,
        handler: &mut dyn StreamHandler,
        partial: usize,
        count: usize,
    ) {
        debug_assert_eq!(partial, self.partial_len(), "the room is that of the partial record");
        let Some(mut scratch) = self.scratch.take() else { return };
        self.complete_records(handler, &mut scratch[..partial + count], partial);
        self.scratch = Some(scratch);
    }

    /// Decrypts bytes that lie behind room for the partial record.
    fn complete_records(
        &mut self,
        handler: &mut dyn StreamHandler,
        bytes: &mut [u8],
        partial: usize,
    ) {
        if self.is_ending() {
            return;
        }
        let (streams, _, index) = self.split();
        let memory = std::rc::Rc::clone(&streams.memory);
        let state = streams.tls_state(index);
        if partial > 0 {
            if bytes.len() - partial < state.missing() {
                return state.append(&bytes[partial..], &memory);
            }
            bytes[..partial].copy_from_slice(state.partial());
            state.keep(&[], &memory);
        }
        self.decrypt(handler, bytes);
    }

    /// Decrypts bytes that were received elsewhere: by a ring, or before the stream was adopted.
    fn decrypt_piece(&mut self, handler: &mut dyn StreamHandler, mut bytes: &mut [u8]) {
        if self.is(StreamPhase::Handshake) && !self.admit_handshake() {
            return self.put_back_input(bytes);
        }
        while !bytes.is_empty() && !self.is_ending() && !self.has(StreamFlags::ENDED) {
            if self.holds_input() {
                return self.put_back_input(bytes);
            }
            let partial = self.partial_len();
            if partial == 0 {
                return self.decrypt(handler, bytes);
            }
            let taken = self.scratch.take();
            let mut scratch = taken.unwrap_or_else(|| self.streams().take_scratch());
            let count = bytes.len().min(SCRATCH_LEN - partial);
            let (now, later) = core::mem::take(&mut bytes).split_at_mut(count);
            scratch[partial..partial + count].copy_from_slice(now);
            self.scratch = Some(scratch);
            self.records(handler, partial, count);
            bytes = later;
        }
    }

    /// Decrypts bytes that begin with a record, and calls the handler.
    fn decrypt(&mut self, handler: &mut dyn StreamHandler, mut bytes: &mut [u8]) {
        loop {
            let (streams, kernel, index) = self.split();
            let TlsDecrypted { consumed, plaintext, phase, .. } =
                streams.decrypt(kernel, index, bytes);
            let (taken, rest) = bytes.split_at_mut(consumed);
            let opens = self.is(StreamPhase::Handshake)
                && matches!(phase, TlsPhase::Open | TlsPhase::PeerClosed);
            if opens {
                self.opened(handler);
            }
            if plaintext > 0 && self.is(StreamPhase::Open) {
                self.call(|stream| handler.on_data(stream, Input::new(&mut taken[..plaintext])));
            }
            match phase {
                TlsPhase::Failed(failure) => {
                    return self.streams().end_tls(index, failure);
                }
                TlsPhase::PeerClosed => return self.tls_ended(handler),
                TlsPhase::Handshake | TlsPhase::Open => {}
            }
            if rest.is_empty() || self.is_ending() {
                return;
            }
            if !opens {
                let streams = self.streams();
                let memory = std::rc::Rc::clone(&streams.memory);
                return streams.tls_state(index).keep(rest, &memory);
            }
            if self.holds_input() {
                return self.put_back_input(rest);
            }
            bytes = rest;
        }
    }

    /// Keeps received bytes in front of those that are kept already.
    fn put_back_input(&mut self, bytes: &[u8]) {
        let index = self.index;
        let streams = self.streams();
        let piece = Undelivered::new(bytes.to_vec(), &streams.memory);
        streams.prefixes.entry(index).or_default().push_front(piece);
        self.core().status.insert(StreamFlags::PREFIX);
    }

    /// Begins the handshake of a new or connected stream. A client sends its first flight. A
    /// session that comes from another stream goes on.
    #[cold]
    pub(in crate::stream) fn begin_handshake(&mut self, handler: &mut dyn StreamHandler) {
        let core = self.core();
        core.status.advance(StreamPhase::Handshake);
        core.status.insert(StreamFlags::STAMP_WAIT | StreamFlags::ARM);
        let index = self.index;
        let progress = self.streams().tls_state(index).progress;
        let failure =
            if progress.is_called { Some(TlsFailure::Internal) } else { progress.failure };
        if let Some(failure) = failure {
            self.streams().end_tls(index, failure);
        } else if progress.is_open {
            self.opened(handler);
            if progress.has_ended {
                self.tls_ended(handler);
            }
        } else if !progress.has_begun {
            self.decrypt(handler, &mut []);
        }
    }

    /// The peer has sent `close_notify`.
    #[cold]
    fn tls_ended(&mut self, handler: &mut dyn StreamHandler) {
        if self.has(StreamFlags::ENDED) || self.is(StreamPhase::Dead) {
            return;
        }
        let index = self.index;
        self.streams().prefixes.remove(&index);
        self.core().status.clear(StreamFlags::PREFIX);
        if self.holds_input() && !self.is(StreamPhase::Closing) {
            return self.put_back_input(&[]);
        }
        self.core().status.insert(StreamFlags::ENDED);
        if !self.is(StreamPhase::Closing) {
            self.call(|stream| handler.on_end(stream));
        }
    }

    /// The peer has closed its writing half, or the end that was kept is delivered.
    #[cold]
    pub(in crate::stream) fn end_of_records(&mut self, handler: &mut dyn StreamHandler) {
        let index = self.index;
        if self.streams().tls_state(index).progress.has_ended {
            return self.tls_ended(handler);
        }
        let failure = match self.is(StreamPhase::Handshake) {
            true => TlsFailure::HandshakeIncomplete,
            false => TlsFailure::Truncated,
        };
        self.core().status.insert(StreamFlags::ENDED);
        self.streams().end_tls(index, failure);
    }
}
