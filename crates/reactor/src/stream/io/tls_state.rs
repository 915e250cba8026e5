//! The TLS session of one stream: its progress, and its way from one stream to another.
//!
//! 1. A session is foreign code and may panic. It is marked while it is called. A marked session is
//!    not called again.
//! 2. A session that leaves its stream takes along the records that the socket has not accepted.
//!    The partial record goes with `read_buf`.
//! 3. In a child of fork(2) a session that leaves its stream is marked: its keys are the parent's,
//!    and two records under one number would reveal both. So is a session that had left its stream
//!    before the fork, when a stream of the child continues it.

use std::rc::Rc;

use windlass_flow::process::ForkGeneration;

use crate::{
    stream::{
        ReleasedTls, TlsFailure, TlsSession,
        io::memory::{BufferMemory, Undelivered},
        lifecycle::RemovedStream,
        state::StreamTable,
        status::StreamFlags,
    },
    util::unwind_safe_drop::UnwindSafeDrop,
};

/// A session, whose destructor is foreign code.
pub(in crate::stream) type OwnSession = UnwindSafeDrop<Box<dyn TlsSession>>;

/// What has happened to a session. It stays with it.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::stream) struct TlsProgress {
    /// It was called without input (contract 2).
    pub(in crate::stream) has_begun: bool,
    /// The handshake has ended, so that output can be encrypted.
    pub(in crate::stream) is_open: bool,
    /// `close_notify` was sent, or the session has failed: nothing more is encrypted.
    pub(in crate::stream) is_closed: bool,
    /// The peer has sent `close_notify`.
    pub(in crate::stream) has_ended: bool,
    /// A call of the session has not returned (rule 1).
    pub(in crate::stream) is_called: bool,
    pub(in crate::stream) failure: Option<TlsFailure>,
}

/// The session of a stream and what belongs to it.
pub(in crate::stream) struct TlsState {
    pub(super) session: OwnSession,
    pub(super) progress: TlsProgress,
    /// The memory of the session, as it is counted.
    held: u32,
    /// It has got its place among the handshakes of a turn.
    pub(super) is_admitted: bool,
    /// The number of bytes without which the session cannot go on.
    pub(super) missing: usize,
    /// The beginning of a record, until the rest of it comes.
    pub(super) partial: Option<Undelivered>,
}

impl TlsState {
    pub(super) fn new(session: OwnSession) -> Self {
        Self {
            session,
            progress: TlsProgress::default(),
            held: 0,
            is_admitted: false,
            missing: 1,
            partial: None,
        }
    }

    /// Calls the session; `None` if it has panicked before.
    pub(super) fn call<T>(&mut self, call: impl FnOnce(&mut dyn TlsSession) -> T) -> Option<T> {
        if core::mem::replace(&mut self.progress.is_called, true) {
            return None;
        }
        let result = call(&mut **self.session);
        self.progress.is_called = false;
        Some(result)
    }

    /// Counts the memory of the session.
    pub(super) fn count(&mut self, memory: &BufferMemory) {
        let held = self.call(|session| session.memory()).unwrap_or(0);
        // A foreign session may return any number.
        let held = u32::try_from(held).unwrap_or(u32::MAX);
        if held != self.held {
            memory.add(held as usize);
            memory.subtract(self.held as usize);
            self.held = held;
        }
    }

    /// The stream ends: the memory of the session is not counted any more.
    pub(super) fn forget(&mut self, memory: &BufferMemory) {
        memory.subtract(core::mem::take(&mut self.held) as usize);
    }

    /// The memory of the session and of the partial record.
    pub(super) fn memory(&self) -> usize {
        self.held as usize + self.partial.as_ref().map_or(0, |kept| kept.bytes.capacity())
    }

    pub(in crate::stream) fn partial(&self) -> &[u8] {
        self.partial.as_ref().map_or(&[], |partial| &partial.bytes)
    }

    pub(in crate::stream) fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    /// Whether its handshake has ended.
    pub(in crate::stream) fn is_open(&self) -> bool {
        self.progress.is_open
    }

    pub(in crate::stream) fn missing(&self) -> usize {
        self.missing
    }

    /// Keeps the beginning of a record in place of the present one.
    pub(in crate::stream) fn keep(&mut self, rest: &[u8], memory: &Rc<BufferMemory>) {
        self.partial = (!rest.is_empty()).then(|| Undelivered::new(rest.to_vec(), memory));
    }

    /// Appends bytes that do not complete the record.
    pub(in crate::stream) fn append(&mut self, bytes: &[u8], memory: &Rc<BufferMemory>) {
        let mut whole = self.partial.take().map_or_else(Vec::new, Undelivered::into_bytes);
        whole.extend_from_slice(bytes);
        self.missing -= bytes.len();
        self.partial = Some(Undelivered::new(whole, memory));
    }
}

/// A session without a stream.
pub(in crate::stream) struct ReleasedState {
    pub(in crate::stream) session: OwnSession,
    pub(in crate::stream) progress: TlsProgress,
    records: Vec<u8>,
    /// The process that has released it (rule 3).
    process: ForkGeneration,
}

/// What a released session leaves in its stream's buffers.
#[derive(Default)]
pub(in crate::stream) struct TlsRest {
    /// The beginning of a record that was received.
    pub(in crate::stream) partial: Vec<u8>,
    /// Records that the socket has not accepted.
    records: Vec<u8>,
}

impl TlsRest {
    /// The `read_buf` of the released stream, of which these were received later.
    pub(in crate::stream) fn before(&mut self, received: Vec<u8>) -> Vec<u8> {
        let mut all = core::mem::take(&mut self.partial);
        if all.is_empty() {
            return received;
        }
        all.extend_from_slice(&received);
        all
    }
}

impl RemovedStream {
    /// Takes the session of a released stream.
    pub(in crate::stream) fn take_tls(
        &mut self,
        rest: TlsRest,
        is_in_child: bool,
    ) -> Option<ReleasedTls> {
        let TlsState { session, mut progress, .. } = *self.tls.take()?;
        progress.is_called |= is_in_child;
        let process = ForkGeneration::current();
        let records = rest.records;
        Some(ReleasedTls(Box::new(ReleasedState { session, progress, records, process })))
    }
}

impl StreamTable {
    /// Takes from the buffers of a stream what its session needs in another one.
    pub(in crate::stream) fn take_tls_rest(&mut self, index: u32) -> TlsRest {
        if !self.core(index).status.has_tls() {
            return TlsRest::default();
        }
        let partial = self.tls_state(index).partial.take();
        let partial = partial.map(Undelivered::into_bytes).unwrap_or_default();
        let output = self.core(index).output.as_ref();
        let records = output.map(|output| output.records().to_vec()).unwrap_or_default();
        TlsRest { partial, records }
    }

    /// Whether the session of a stream has panicked.
    pub(in crate::stream) fn is_tls_broken(&mut self, index: u32) -> bool {
        let state = self.tls.as_deref_mut().and_then(|tls| tls.state(index));
        state.is_some_and(|state| state.progress.is_called)
    }

    /// Gives the released session to a stream that is registered.
    pub(in crate::stream) fn continue_tls(&mut self, index: u32, released: ReleasedTls) {
        let ReleasedState { session, mut progress, records, process } = *released.0;
        progress.is_called |= !process.is_current();
        self.insert_tls(index, session);
        let memory = Rc::clone(&self.memory);
        let state = self.tls_state(index);
        state.progress = progress;
        state.count(&memory);
        // The records of a marked session are the parent's too, or it has panicked.
        if !records.is_empty() && !progress.is_called {
            self.output(index).push_records(&records);
        }
        let core = self.core(index);
        if progress.is_closed && progress.failure.is_none() {
            core.status.insert(StreamFlags::FINISHING);
            // If `close_notify` waits, the writing half is still open.
            core.status.set(StreamFlags::FINISHED, records.is_empty());
        }
    }
}
