//! State that the connections of a service share.
//!
//! # Access rules
//!
//! 1. Only calls of this crate borrow [`Tables`], each for its own duration. They are never borrowed
//!    while user code runs: callbacks, destructors, clocks (rule 13 of the reactor). Calls on a
//!    stream run no user code, because a stream runs callbacks in a frame of its own.
//! 2. The scratch is in its cell unless a pass has taken it. If a panic loses it, a new one is
//!    created.
//! 3. At most one connection is in a pass at a time, and [`ServiceState::in_pass`] says which. Messages
//!    that others send to it meanwhile go to the reentrant output, and from there to its output. So
//!    they stay in order with the connection's own messages before and after them.

use core::cell::{Cell, RefCell};
use std::{collections::BTreeMap, rc::Rc, sync::Arc};

use windlass::{
    Turn,
    stream::{ListenerKey, Shared, Stream},
};
use windlass_flow::Sender;
use windlass_ws::{Close, CloseCode, Config, Scratch};

use super::{
    codec_budget::CodecBudget, codec_budget::CodecQueue, conn_table::ConnFlags,
    conn_table::ConnTable, conn_table::NO_CONN, drain::DrainCallback, memory_budget::MemoryBudget,
};
use crate::{
    api::{CloseInfo, CloseInfos, CloseReason, ConnState, Counters, Options},
    connection::LARGE_LEN,
    http::ConnectionPermit,
    mailbox::{OtherWorkers, WorkerCommand, WorkerHandle},
    pubsub::{Backlogs, FrameCache, FrameCompressor, PublishBatch, Topics},
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
    /// A closure that delivers the batch waits for the end of the turn.
    pub(crate) flush_deferred: Cell<bool>,
    pub(crate) is_draining: Cell<bool>,
    /// Reusable memory for responses to requests.
    pub(crate) response: Cell<Vec<u8>>,
    pub(crate) last_protocol: Cell<Option<Rc<str>>>,
    pub(crate) listeners: Cell<Vec<ListenerKey>>,
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
        worker: u16,
        first_generation: u32,
        others: Vec<Sender<WorkerCommand>>,
        worker_handle: Arc<WorkerHandle>,
        memory: MemoryBudget,
    ) -> Self {
        let tables = Tables {
            conns: ConnTable::new(worker, first_generation),
            topics: Topics::new(),
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
            other_workers: OtherWorkers::new(others),
        };
        Self {
            config: Arc::new(Config::server().with_limits(options.limits)),
            bounds: OutputBounds::new(&options),
            memory,
            in_pass_output: Cell::new(0),
            activity: Cell::new(0),
            codec: CodecBudget::new(&options),
            options,
            tick: Cell::new(0),
            pending_output: Cell::new(PendingOutput::NONE),
            in_pass: Cell::new(NO_CONN),
            scratch: Cell::new(None),
            second: Cell::new(0),
            stats: Counters::default(),
            flush_deferred: Cell::new(false),
            is_draining: Cell::new(false),
            response: Cell::new(Vec::new()),
            last_protocol: Cell::new(None),
            listeners: Cell::new(Vec::new()),
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

    /// Notes that bytes were received from a connection. Updates the connection table at most once per tick.
    #[inline(always)]
    pub(crate) fn note_rx(&self, conn: &mut ConnState) {
        if self.tick.get() != conn.last_rx {
            self.note_rx_tick(conn);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_rx_tick(&self, conn: &mut ConnState) {
        conn.last_rx = self.tick.get();
        let mut tables = self.tables.borrow_mut();
        let entry = tables.conns.entry(conn.index);
        if !entry.flags.any(ConnFlags::CLOSING) {
            entry.last_rx = conn.last_rx;
        }
    }

    /// Marks a connection that is about to end: it accepts no more messages.
    pub(crate) fn begin_closing(&self, index: u32, reason: CloseReason) {
        let tables = &mut *self.tables.borrow_mut();
        tables.close_infos.note(index, reason);
        let entry = tables.conns.entry(index);
        entry.flags.add(ConnFlags::CLOSING);
        // Pausing ends here, because the peer's Close frame must be read.
        entry.flags.clear(ConnFlags::PAUSED | ConnFlags::LOW_MEMORY);
        entry.last_rx = self.tick.get();
    }

    /// Notes that more than half of a connection's buffer is in use and that reading has stopped.
    /// Senders must check the remaining room.
    pub(crate) fn note_output_full(&self, index: u32) {
        self.stats.reading_paused.add(1);
        self.tables.borrow_mut().conns.entry(index).flags.add(ConnFlags::LAGGING);
    }

    /// Notes the peer's Close frame.
    pub(crate) fn note_close(&self, index: u32, close: &Close<'_>) {
        let mut tables = self.tables.borrow_mut();
        if let Some(close_info) = tables.close_infos.get_mut(index) {
            close_info.code = close.code;
            close_info.text = close.reason.into();
        }
    }

    /// Takes the messages that wait in the backlog of a connection, and counts each as sent. The
    /// connection is about to send its Close frame, so they must go out now.
    pub(crate) fn take_backlog(&self, index: u32) -> Vec<Arc<[u8]>> {
        let mut tables = self.tables.borrow_mut();
        if !tables.conns.entry(index).flags.any(ConnFlags::BACKLOG) {
            return Vec::new();
        }
        tables.conns.entry(index).flags.clear(ConnFlags::BACKLOG);
        let frames: Vec<_> = core::iter::from_fn(|| tables.backlogs.pop(index)).collect();
        self.remove_backlog(&mut tables, index);
        self.stats.messages_sent.add(frames.len() as u64);
        frames
    }

    /// Drops the messages in the backlog of a connection.
    pub(crate) fn remove_backlog(&self, tables: &mut Tables, index: u32) {
        if tables.backlogs.remove(index) {
            self.clear_pending(PendingOutput::BACKLOG);
        }
    }

    pub(crate) fn set_flags(&self, index: u32, flags: ConnFlags) {
        self.tables.borrow_mut().conns.entry(index).flags.add(flags);
    }

    /// Clears flags that kept a connection from being read from. Its idle time starts again.
    pub(crate) fn clear_flags(&self, index: u32, flags: ConnFlags) {
        let mut tables = self.tables.borrow_mut();
        let entry = tables.conns.entry(index);
        entry.flags.clear(flags);
        if !entry.flags.any(ConnFlags::CLOSING) {
            entry.last_rx = self.tick.get();
        }
    }

    /// Sets the current second, by which the engines limit the rate of control frames.
    pub(crate) fn set_second(&self, second: u32) {
        self.second.set(second);
        if let Some(mut scratch) = self.scratch.take() {
            scratch.set_second(second);
            self.scratch.set(Some(scratch));
        }
    }

    /// Updates the maximum number of simultaneous connections.
    pub(crate) fn note_connections(&self) {
        let now = self.tables.borrow().conns.len() as u64;
        self.stats.connections_most.set(now.max(self.stats.connections_most.get()));
    }

    pub(crate) fn count_end(&self, reason: CloseReason) {
        let stats = &self.stats;
        stats.closed.add(1);
        match reason {
            CloseReason::Violation(_) => stats.violations.add(1),
            CloseReason::Idle => stats.idle_timeouts.add(1),
            CloseReason::Failed(_) | CloseReason::WriteStall => stats.broken_off.add(1),
            _ => {}
        }
    }

    /// Sends messages from the backlog of a connection, as far as there is room.
    #[cold]
    pub(crate) fn refill_from_backlog(
        &self,
        index: u32,
        stream: &mut Stream<'_>,
        is_output_full: bool,
    ) {
        let tables = &mut *self.tables.borrow_mut();
        if !tables.conns.entry(index).flags.any(ConnFlags::BACKLOG) {
            return;
        }
        let half = self.options.receiver_buffer_max / 2;
        // Messages in the stream cannot be dropped any more, so only about half of the buffer goes
        // there, or one message.
        let low = self.bounds.high_watermark / 4;
        let fits = |waiting: usize, len: usize| waiting <= low || waiting + len <= half;
        while !stream.is_full()
            && tables.backlogs.next_len(index).is_some_and(|len| fits(stream.buffered(), len))
        {
            let Some(frame) = tables.backlogs.pop(index) else { break };
            self.stats.messages_sent.add(1);
            if stream.send_shared(&Shared::of(&frame)).is_err() {
                break;
            }
        }
        if tables.backlogs.is_empty(index) {
            tables.conns.entry(index).flags.clear(ConnFlags::BACKLOG);
            self.remove_backlog(tables, index);
        } else if !is_output_full && !stream.wait_for_low_mark() {
            // No other event would resume this.
            stream.notify();
        }
    }

    /// Removes an ended connection from the topics and the connection table. Returns how it ended, if that is
    /// known.
    pub(crate) fn remove_conn(&self, index: u32) -> Option<CloseInfo> {
        let mut tables = self.tables.borrow_mut();
        let tables = &mut *tables;
        tables.topics.unsubscribe_all(&mut tables.conns, index);
        if tables.batch_topic.is_some_and(|topic| tables.topics.topic(topic).is_none()) {
            // The topic of the batch has no subscriber left.
            tables.discard_batch(self);
        }
        tables.drop_waiting(self, index);
        tables.codec_queue.remove(index);
        self.memory.change(tables.conns.entry(index).partial_bytes as usize, 0);
        tables.pending_closes.remove(&index);
        tables.protocols.remove(&index);
        tables.permits.remove(&index);
        tables.conns.remove(index);
        tables.close_infos.remove(index)
    }

    /// Delivers pending publications, here and to the other workers.
    pub(crate) fn flush(&self, turn: &mut Turn<'_>) {
        let mut tables = self.tables.borrow_mut();
        tables.flush(self, turn);
        tables.other_workers.forward(self);
        drop(tables);
        self.check_memory_if_grown(turn);
    }

    /// Checks the memory in use if more data has begun to wait.
    #[inline]
    pub(crate) fn check_memory_if_grown(&self, turn: &mut Turn<'_>) {
        if self.memory.has_grown.get() {
            self.check_memory(turn);
        }
    }

    /// Notes how much memory a connection uses for a partly received message, frame or request.
    #[cold]
    pub(crate) fn note_partial(&self, index: u32, bytes: usize) {
        let mut tables = self.tables.borrow_mut();
        let entry = tables.conns.entry(index);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.memory.change(entry.partial_bytes as usize, bytes as usize);
        self.memory.has_grown.set(bytes > entry.partial_bytes || self.memory.has_grown.get());
        entry.partial_bytes = bytes;
    }

    /// Frees reusable memory if there was no message since the last timer event.
    pub(crate) fn release_spares(&self) {
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

    /// Delivers pending publications if this connection is to get some of them, because its next
    /// output must not overtake them.
    pub(crate) fn flush_for(&self, index: u32, turn: &mut Turn<'_>) {
        let mut tables = self.tables.borrow_mut();
        tables.flush_for(self, index, turn);
    }
}

impl Drop for ServiceState {
    fn drop(&mut self) {
        self.worker.set_stats(self.snapshot());
    }
}

/// A connection's pass: sets [`ServiceState::in_pass`] during its lifetime, and resets it even on a panic.
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

impl Tables {
    pub(crate) fn discard_batch(&mut self, state: &ServiceState) {
        for from in self.batch.publisher_conns() {
            if let Some(entry) = self.conns.get_mut(from) {
                entry.flags.clear(ConnFlags::PUBLISHED);
            }
        }
        self.batch.clear();
        self.frame_cache.iter_mut().for_each(Vec::clear);
        self.batch_topic = None;
        state.clear_pending(PendingOutput::BATCH);
    }

    pub(crate) fn flush_for(&mut self, state: &ServiceState, index: u32, turn: &mut Turn<'_>) {
        let first = self.conns.entry(index).subscriptions;
        if self.batch_topic.is_some_and(|topic| self.topics.is_subscribed(first, topic)) {
            self.flush(state, turn);
        }
    }
}
