//! State that the connections of a service share.
//!
//! # Access rules
//!
//! 1. Only calls of this crate borrow [`Tables`], each for its own duration. They are never
//!    borrowed while user code runs: callbacks, destructors, clocks (rule 13 of the reactor). Calls
//!    on a stream run no user code, because a stream runs callbacks in a frame of its own.
//! 2. The scratch is in its cell unless a pass has taken it. If a panic loses it, a new one is
//!    created.
//! 3. At most one connection is in a pass at a time, and [`ServiceState::in_pass`] says which.
//!    Messages that others send to it meanwhile go to the reentrant output, and from there to its
//!    output. So they stay in order with the connection's own messages before and after them.

use core::cell::{Cell, RefCell};
use std::{collections::BTreeMap, rc::Rc, sync::Arc};

use windlass::{Backend, stream::ListenerKey};
use windlass_ws::{CloseCode, Config, Scratch};

use super::{
    codec_budget::{CodecBudget, CodecQueue},
    drain::DrainCallback,
    live_status::LiveStatus,
    memory_budget::MemoryBudget,
};
use crate::{
    api::{Counters, NO_CONN, Options},
    http::ConnectionPermit,
    mailbox::{OtherWorkers, WorkerHandle},
    metrics::LabelCounters,
    pubsub::{Backlogs, FrameCache, FrameCompressor, PublishBatch, Topics},
    table::{CloseInfos, ConnTable, LARGE_LEN},
};

/// Output that a call of a connection must take care of first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingOutput(u8);

impl PendingOutput {
    pub(crate) const NONE: Self = Self(0);
    /// Publications wait in the batch.
    pub(crate) const BATCH: Self = Self(1);
    /// Others have sent messages to the connection that is in a pass.
    pub(crate) const REENTRANT: Self = Self(1 << 1);
    /// Some connection has a backlog.
    pub(crate) const BACKLOG: Self = Self(1 << 2);

    #[inline]
    pub(crate) const fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    #[inline]
    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// State that all connections of a service share.
pub(crate) struct ServiceState {
    pub(crate) options: Options,
    pub(crate) backend: Backend,
    pub(crate) config: Arc<Config>,
    pub(crate) bounds: OutputBounds,
    pub(crate) memory: MemoryBudget,
    /// Bytes that the connection in a pass has sent in it.
    pub(crate) in_pass_output: Cell<u32>,
    /// Message count at the last timer event, to detect messages since then.
    activity: Cell<u64>,
    /// The time, in ticks of the timeout scan.
    pub(crate) tick: Cell<u32>,
    pending_output: Cell<PendingOutput>,
    /// The connection that is in a pass.
    pub(crate) in_pass: Cell<u32>,
    pub(crate) scratch: Cell<Option<Box<Scratch>>>,
    /// The time in seconds, for the rate limit of control frames.
    pub(crate) second: Cell<u32>,
    pub(crate) stats: Counters,
    pub(crate) labels: LabelCounters,
    /// A closure that delivers the batch waits for the end of the turn.
    pub(crate) flush_deferred: Cell<bool>,
    pub(crate) is_draining: Cell<bool>,
    /// Reusable memory for responses to requests.
    pub(crate) response: Cell<Vec<u8>>,
    pub(crate) last_protocol: Cell<Option<Rc<str>>>,
    pub(crate) live: LiveStatus,
    pub(crate) listeners: Cell<Vec<ListenerKey>>,
    /// Number of connections in their TLS handshake, which are in no table.
    pub(crate) tls_handshakes: Cell<u64>,
    /// Number of connections, as it was noted last.
    pub(super) connections_noted: Cell<u64>,
    pub(crate) drain_callbacks: Cell<Vec<DrainCallback>>,
    pub(crate) worker: Arc<WorkerHandle>,
    pub(crate) codec: CodecBudget,
    pub(crate) tables: RefCell<Tables>,
}

/// Bounds derived from the options.
#[derive(Clone, Copy)]
pub(crate) struct OutputBounds {
    /// High watermark of waiting bytes, above which a connection is not read from.
    pub(crate) high_watermark: usize,
    /// Number of bytes sent after which a pass ends.
    pub(crate) pass_output_max: u32,
    /// Number of bytes that a pass may send before the waiting bytes are checked.
    pub(crate) pass_output_unchecked: u32,
    /// Longer messages count against the pass's output limit as if they were sent back. If messages
    /// may be compressed, all of them count: even short ones can add up to more than was received.
    pub(crate) large_len: usize,
}

/// Number of bytes that a pass may send before the waiting bytes are checked, if the buffer is much
/// larger.
const PASS_OUTPUT_UNCHECKED: u32 = 4 << 10;

impl OutputBounds {
    fn new(options: &Options) -> Self {
        let pass_output_max = options.pass_output_max() as u32;
        let large_len = if options.deflate.is_some() { 0 } else { LARGE_LEN };
        Self {
            high_watermark: options.high_watermark(),
            pass_output_max,
            pass_output_unchecked: PASS_OUTPUT_UNCHECKED.min(pass_output_max),
            large_len,
        }
    }
}

/// State behind the `RefCell`.
pub(crate) struct Tables {
    pub(crate) conns: ConnTable,
    pub(crate) topics: Topics,
    pub(crate) batch: PublishBatch,
    /// The topic of the batch, while it is not empty.
    pub(crate) batch_topic: Option<u32>,
    /// Frames for the connection that is in a pass.
    pub(crate) reentrant_output: Vec<u8>,
    pub(crate) backlogs: Backlogs,
    /// Copies of the batch's frames that wait for receivers.
    pub(crate) frame_cache: [FrameCache; 2],
    /// Held input: received bytes of connections whose reading is suspended.
    pub(crate) held: BTreeMap<u32, Vec<u8>>,
    /// Connections whose held input waits for the codecs.
    pub(crate) codec_queue: CodecQueue,
    /// Reasons why connections are about to end. This map and the next three hold data that few
    /// connections have, so that the others need no room for it.
    pub(crate) close_infos: CloseInfos,
    /// Subprotocols, of connections that have one.
    pub(crate) protocols: BTreeMap<u32, Rc<str>>,
    /// Permits, if connections are counted by address.
    pub(crate) permits: BTreeMap<u32, ConnectionPermit>,
    /// Close codes and reasons, of connections that other code closes.
    pub(crate) pending_closes: BTreeMap<u32, (CloseCode, Box<str>)>,
    pub(crate) compressor: Option<FrameCompressor>,
    /// Reusable memory for one frame.
    pub(crate) frame: Vec<u8>,
    /// The services of the other workers.
    pub(crate) other_workers: OtherWorkers,
}

impl ServiceState {
    pub(crate) fn new(
        options: Options,
        backend: Backend,
        worker: u16,
        first_generation: u32,
        other_workers: OtherWorkers,
        worker_handle: Arc<WorkerHandle>,
        memory: MemoryBudget,
    ) -> Self {
        let node = other_workers.node().map(|(node, worker)| (Arc::clone(node), worker));
        let tables = Tables {
            conns: ConnTable::new(worker, first_generation),
            topics: Topics::new(node, memory.outside_streams()),
            batch: PublishBatch::default(),
            batch_topic: None,
            reentrant_output: Vec::new(),
            backlogs: Backlogs::new(memory.outside_streams()),
            frame_cache: Default::default(),
            held: BTreeMap::new(),
            codec_queue: CodecQueue::default(),
            close_infos: CloseInfos::default(),
            protocols: BTreeMap::new(),
            permits: BTreeMap::new(),
            pending_closes: BTreeMap::new(),
            compressor: options.deflate.as_ref().map(FrameCompressor::new),
            frame: Vec::new(),
            other_workers,
        };
        Self {
            config: Arc::new(Config::server().with_limits(options.limits)),
            bounds: OutputBounds::new(&options),
            memory,
            in_pass_output: Cell::new(0),
            activity: Cell::new(0),
            codec: CodecBudget::new(&options),
            options,
            backend,
            tick: Cell::new(0),
            pending_output: Cell::new(PendingOutput::NONE),
            in_pass: Cell::new(NO_CONN),
            scratch: Cell::new(None),
            second: Cell::new(0),
            stats: Counters::default(),
            labels: LabelCounters::default(),
            flush_deferred: Cell::new(false),
            is_draining: Cell::new(false),
            response: Cell::new(Vec::new()),
            last_protocol: Cell::new(None),
            live: LiveStatus::default(),
            listeners: Cell::new(Vec::new()),
            tls_handshakes: Cell::new(0),
            connections_noted: Cell::new(0),
            drain_callbacks: Cell::new(Vec::new()),
            worker: worker_handle,
            tables: RefCell::new(tables),
        }
    }

    #[inline]
    pub(crate) fn has_pending(&self, of: PendingOutput) -> bool {
        self.pending_output.get().any(of)
    }

    pub(crate) fn set_pending(&self, those: PendingOutput) {
        self.pending_output.set(PendingOutput(self.pending_output.get().0 | those.0));
    }

    pub(crate) fn clear_pending(&self, those: PendingOutput) {
        self.pending_output.set(PendingOutput(self.pending_output.get().0 & !those.0));
    }

    /// Takes the scratch out of its cell.
    #[inline]
    pub(crate) fn take_scratch(&self) -> Box<Scratch> {
        match self.scratch.take() {
            Some(scratch) => scratch,
            None => self.new_scratch(),
        }
    }

    /// Puts the scratch back.
    #[inline]
    pub(crate) fn put_scratch(&self, scratch: Box<Scratch>) {
        self.scratch.set(Some(scratch));
    }

    #[cold]
    fn new_scratch(&self) -> Box<Scratch> {
        let mut scratch = Box::new(Scratch::new());
        self.codec.reset_scratch_count();
        scratch.set_second(self.second.get());
        scratch
    }

    /// Sets the current second, by which the engines limit the rate of control frames.
    pub(crate) fn set_second(&self, second: u32) {
        self.second.set(second);
        if let Some(mut scratch) = self.scratch.take() {
            scratch.set_second(second);
            self.scratch.set(Some(scratch));
        }
    }

    /// Frees reusable memory if there was no message since the last timer event.
    pub(crate) fn release_spare_memory(&self) {
        let activity = self.stats.messages_received.get()
            + self.stats.messages_sent.get()
            + self.stats.opened.get();
        if self.activity.replace(activity) != activity {
            return;
        }
        drop(self.scratch.take());
        drop(self.response.take());
        let tables = &mut *self.tables.borrow_mut();
        if tables.batch.is_empty() {
            tables.batch = PublishBatch::default();
        }
        tables.frame = Vec::new();
        if tables.reentrant_output.is_empty() {
            tables.reentrant_output = Vec::new();
        }
    }
}

impl Drop for ServiceState {
    fn drop(&mut self) {
        self.worker.end(self.worker_snapshot());
    }
}

/// A connection's pass: sets [`ServiceState::in_pass`] during its lifetime, and resets it even on a
/// panic.
pub(crate) struct PassGuard<'h>(&'h ServiceState);

impl<'h> PassGuard<'h> {
    #[inline]
    pub(crate) fn begin(state: &'h ServiceState, index: u32) -> Self {
        state.in_pass.set(index);
        state.in_pass_output.set(0);
        Self(state)
    }
}

impl Drop for PassGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.in_pass.set(NO_CONN);
        if self.0.has_pending(PendingOutput::REENTRANT) {
            self.0.drop_reentrant_output();
        }
    }
}

impl ServiceState {
    /// Drops the reentrant output of a connection that panicked or closed before it could take it.
    #[cold]
    fn drop_reentrant_output(&self) {
        self.clear_pending(PendingOutput::REENTRANT);
        self.tables.borrow_mut().reentrant_output.clear();
    }
}
