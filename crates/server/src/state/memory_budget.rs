//! The memory budget over all connections: [`Options::memory_max`](crate::Options::memory_max).
//!
//! 1. A worker counts its own bytes, in plain cells. They are the memory that its reactor's streams
//!    hold for waiting bytes ([`Turn::stream_memory`]), and the memory that this crate holds beside
//!    them ([`MemoryBudget::outside_streams`]): held input, partly received messages and frames,
//!    messages in the backlog, topics, TLS handshakes. Shared bytes count once per worker.
//! 2. All workers borrow from one [`MemoryPool`], in chunks. A worker that needs no further chunk
//!    touches no shared state. It runs this code only when data of its own has begun to wait, when
//!    a connection subscribes, and on each timer event of the timeouts.
//! 3. Above four fifths of the budget, the connections that hold the most are not read from. Above
//!    all of it, the largest are evicted until a tenth is free. Requests get status 503 until a
//!    timer event finds the pool below its limit.
//! 4. A worker evicts only while it holds more than nine tenths of its share. If that does not
//!    help, other workers hold more than their shares, and are woken.

use core::{cell::Cell, cmp::Reverse};
use std::{
    rc::Rc,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use windlass::Turn;

use super::state::{ServiceState, Tables};
use crate::{api::CloseReason, mailbox::WorkerHandle, metrics::PoolFigures, table::ConnFlags};

/// Maximum number of bytes that a worker borrows at once.
const CHUNK_MAX: usize = 1 << 20;

/// State that the workers of a server share.
#[derive(Debug)]
pub(crate) struct MemoryPool {
    limit: usize,
    worker_count: usize,
    chunk: usize,
    /// Bytes borrowed. This value and the next protect no other data, so relaxed accesses suffice.
    taken: AtomicUsize,
    /// Requests get status 503.
    is_exhausted: AtomicBool,
    /// Used to wake the other workers.
    workers: OnceLock<Vec<Arc<WorkerHandle>>>,
}

impl MemoryPool {
    pub(crate) fn new(limit: usize, worker_count: usize) -> Arc<Self> {
        let chunk = (limit / (64 * worker_count)).clamp(1, CHUNK_MAX);
        let (taken, is_exhausted) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { limit, worker_count, chunk, taken, is_exhausted, workers: OnceLock::new() })
    }

    /// Sets how the workers are woken. Called once.
    pub(crate) fn set_workers(&self, workers: Vec<Arc<WorkerHandle>>) {
        let _ = self.workers.set(workers);
    }

    fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Number of bytes that may be taken before reading pauses.
    fn pause_threshold(&self) -> usize {
        self.limit / 5 * 4
    }

    fn is_over(&self) -> bool {
        self.taken() > self.limit
    }

    fn wake_others(&self, own: &Arc<WorkerHandle>) {
        for worker in self.workers.get().into_iter().flatten() {
            if !Arc::ptr_eq(worker, own) {
                worker.wake();
            }
        }
    }
}

/// One worker's part of the budget.
pub(crate) struct MemoryBudget {
    pool: Arc<MemoryPool>,
    granted: Cell<usize>,
    /// Bytes that this crate holds, beside those of the streams.
    outside_streams: Rc<Cell<usize>>,
    /// Data has begun to wait where memory could not be checked at once.
    pub(crate) has_grown: Cell<bool>,
    /// Some connections are not read from, because memory is low.
    is_low: Cell<bool>,
    /// Number of bytes in use from which the largest connections are searched for again before the
    /// next timer event.
    search_again_at: Cell<usize>,
    /// Maximum number of bytes in use so far.
    peak: Cell<usize>,
}

impl MemoryBudget {
    pub(crate) fn new(pool: Arc<MemoryPool>) -> Self {
        Self {
            pool,
            granted: Cell::new(0),
            outside_streams: Rc::default(),
            has_grown: Cell::new(false),
            is_low: Cell::new(false),
            search_again_at: Cell::new(0),
            peak: Cell::new(0),
        }
    }

    /// Returns the counter for memory outside the streams, for the code that adds to it.
    pub(crate) fn outside_streams(&self) -> &Rc<Cell<usize>> {
        &self.outside_streams
    }

    /// Notes that memory was allocated or freed.
    pub(crate) fn record_change(&self, before: usize, after: usize) {
        self.outside_streams.set((self.outside_streams.get() + after).saturating_sub(before));
    }

    /// Takes memory that this crate will hold, and borrows it at once. Returns false, and takes
    /// nothing, if more than four fifths of the budget would be in use.
    pub(crate) fn reserve(&self, bytes: usize) -> bool {
        if bytes > 0 && self.pool.taken().saturating_add(bytes) > self.pool.pause_threshold() {
            return false;
        }
        self.pool.taken.fetch_add(bytes, Ordering::Relaxed);
        self.granted.set(self.granted.get() + bytes);
        self.record_change(0, bytes);
        true
    }

    /// Returns memory that was reserved.
    pub(crate) fn release(&self, bytes: usize) {
        let back = bytes.min(self.granted.get());
        self.pool.taken.fetch_sub(back, Ordering::Relaxed);
        self.granted.set(self.granted.get() - back);
        self.record_change(bytes, 0);
    }

    /// Returns whether new requests must be rejected.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.pool.is_exhausted.load(Ordering::Relaxed)
    }

    /// Returns all workers, if there are several.
    pub(crate) fn workers(&self) -> Option<&[Arc<WorkerHandle>]> {
        self.pool.workers.get().map(Vec::as_slice)
    }

    /// Returns what the workers share, for the metrics.
    pub(crate) fn figures(&self) -> PoolFigures {
        PoolFigures {
            limit: self.pool.limit as u64,
            borrowed: self.pool.taken() as u64,
            is_exhausted: self.is_exhausted(),
        }
    }

    pub(crate) fn used(&self, turn: &mut Turn<'_>) -> usize {
        turn.stream_memory() + self.outside_streams.get()
    }

    /// Borrows memory for the used bytes in whole chunks, and returns the surplus.
    fn adjust_grant(&self, used: usize) {
        let (chunk, granted) = (self.pool.chunk, self.granted.get());
        let wanted = used.div_ceil(chunk) * chunk;
        // One spare chunk is kept, so that small changes do not borrow each time.
        if wanted > granted {
            self.pool.taken.fetch_add(wanted - granted, Ordering::Relaxed);
        } else if granted > wanted + chunk {
            self.pool.taken.fetch_sub(granted - wanted - chunk, Ordering::Relaxed);
        }
        self.granted.set(granted.clamp(wanted, wanted + chunk));
        self.peak.set(self.peak.get().max(used));
    }
}

impl Drop for MemoryBudget {
    fn drop(&mut self) {
        self.pool.taken.fetch_sub(self.granted.get(), Ordering::Relaxed);
    }
}

/// A connection that holds memory.
struct MemoryHolder {
    /// Bytes that wait, in either direction. They become less when the peer reads, or when it is
    /// not read from.
    waiting: usize,
    /// Bytes of its topics and subscriptions, which stay.
    topics: usize,
    index: u32,
}

impl MemoryHolder {
    fn bytes(&self) -> usize {
        self.waiting + self.topics
    }
}

impl ServiceState {
    /// Checks the memory in use if more data has begun to wait.
    #[inline]
    pub(crate) fn check_memory_if_grown(&self, turn: &mut Turn<'_>) {
        if self.memory.has_grown.get() {
            self.check_memory(turn);
        }
    }

    /// Checks memory after more data has begun to wait. Must be called while the tables are not
    /// borrowed.
    #[cold]
    #[inline(never)]
    pub(crate) fn check_memory(&self, turn: &mut Turn<'_>) {
        let budget = &self.memory;
        budget.has_grown.set(false);
        let used = budget.used(turn);
        if used > budget.granted.get() {
            budget.adjust_grant(used);
        }
        if budget.pool.taken() > budget.pool.pause_threshold()
            && used >= budget.search_again_at.get()
        {
            self.relieve(turn, true);
        }
    }

    /// Checks memory on the timer event of the timeouts.
    pub(crate) fn update_memory(&self, turn: &mut Turn<'_>) {
        let budget = &self.memory;
        let used = budget.used(turn);
        budget.adjust_grant(used);
        self.stats.memory.set(used as u64);
        self.stats.memory_most.set(budget.peak.get() as u64);
        budget.search_again_at.set(0);
        if !budget.pool.is_over() {
            budget.pool.is_exhausted.store(false, Ordering::Relaxed);
        }
        if budget.pool.taken() > budget.pool.pause_threshold() || budget.is_low.get() {
            self.relieve(turn, false);
        }
    }

    /// Checks this worker's memory because another worker may need it.
    pub(crate) fn relieve_others(&self, turn: &mut Turn<'_>) {
        if self.memory.pool.is_over() {
            self.relieve(turn, false);
        }
    }

    /// Returns whether a connection must not be read from because memory is short.
    pub(crate) fn is_low_on_memory(&self, index: u32) -> bool {
        self.memory.is_low.get()
            && self.tables.borrow_mut().conns.entry(index).flags.any(ConnFlags::LOW_MEMORY)
    }

    /// Reduces the memory in use, as far as this worker is responsible.
    fn relieve(&self, turn: &mut Turn<'_>, has_grown: bool) {
        let budget = &self.memory;
        let pool = &*budget.pool;
        budget.adjust_grant(budget.used(turn));
        let mut holders = self.holders(turn);
        if pool.is_over() {
            pool.is_exhausted.store(true, Ordering::Relaxed);
            let used = budget.used(turn);
            let excess = pool.taken() - pool.limit / 10 * 9;
            let spare = used.saturating_sub(pool.limit / 10 * 9 / pool.worker_count);
            self.evict(turn, &mut holders, excess.min(spare));
            budget.adjust_grant(budget.used(turn));
            if has_grown && pool.is_over() {
                pool.wake_others(&self.worker);
            }
        }
        self.pause_largest(turn, holders);
        // The search visits every connection, so it is repeated only after more memory is used.
        budget.search_again_at.set(budget.used(turn) + pool.limit / 32);
    }

    /// Returns the connections that hold memory, the largest first.
    fn holders(&self, turn: &mut Turn<'_>) -> Vec<MemoryHolder> {
        let tables = &mut *self.tables.borrow_mut();
        let mut holders = Vec::new();
        for index in 0..tables.conns.slots() {
            let Some(entry) = tables.conns.get_mut(index) else { continue };
            let Ok(mut stream) = turn.stream(entry.stream) else { continue };
            let partial = entry.partial_bytes as usize;
            let held = tables.held.get(&index).map_or(0, Vec::capacity);
            let topics = tables.topics.memory(entry.subscriptions);
            let waiting = stream.memory() + partial + held + tables.backlogs.memory(index);
            if waiting + topics > 0 {
                holders.push(MemoryHolder { waiting, topics, index });
            }
        }
        holders.sort_unstable_by_key(|holder| Reverse(holder.bytes()));
        holders
    }

    /// Evicts the largest connections until this many bytes are free.
    fn evict(&self, turn: &mut Turn<'_>, holders: &mut Vec<MemoryHolder>, bytes: usize) {
        let mut freed = 0;
        let mut count = 0;
        for holder in holders.iter().take_while(|_| bytes > 0) {
            if freed >= bytes {
                break;
            }
            freed += holder.bytes();
            count += 1;
            self.begin_closing(holder.index, CloseReason::Evicted);
            let tables = &mut *self.tables.borrow_mut();
            self.stats.evicted.add(1);
            self.stats.evicted_for_memory.add(1);
            tables.drop_waiting(self, holder.index);
            tables.leave_topics(self, holder.index);
            // The memory of partly received data is freed with the connection, in the next turn.
            let partial_bytes =
                core::mem::take(&mut tables.conns.entry(holder.index).partial_bytes);
            self.memory.record_change(partial_bytes as usize, 0);
            if let Ok(mut stream) = turn.stream(tables.conns.entry(holder.index).stream) {
                stream.discard();
            }
        }
        holders.drain(..count);
    }

    /// Pauses reading from the connections that hold the most, until the others together hold at
    /// most four fifths of this worker's share. The others continue. A connection is never paused
    /// for its topics alone: that would free nothing, and hide the end of the connection.
    fn pause_largest(&self, turn: &mut Turn<'_>, mut holders: Vec<MemoryHolder>) {
        holders.retain(|holder| holder.waiting > 0);
        holders.sort_unstable_by_key(|holder| Reverse(holder.waiting));
        let budget = &self.memory;
        let pool = &*budget.pool;
        let mut tables = self.tables.borrow_mut();
        let mut left = if pool.taken() > pool.pause_threshold() { budget.used(turn) } else { 0 };
        let mut paused = Vec::new();
        for holder in holders {
            if left <= pool.pause_threshold() / pool.worker_count {
                break;
            }
            left -= holder.waiting.min(left);
            paused.push(holder.index);
        }
        paused.sort_unstable();
        let was_short = budget.is_low.replace(!paused.is_empty());
        if !was_short && paused.is_empty() {
            return;
        }
        for index in 0..tables.conns.slots() {
            let Some(entry) = tables.conns.get_mut(index) else { continue };
            let (is_paused, must_pause) =
                (entry.flags.any(ConnFlags::LOW_MEMORY), paused.binary_search(&index).is_ok());
            let must_pause = must_pause && entry.flags.takes_messages();
            let Ok(mut stream) = turn.stream(entry.stream) else { continue };
            if must_pause && !is_paused {
                entry.flags.add(ConnFlags::LOW_MEMORY);
                self.stats.reading_paused.add(1);
                stream.pause();
            } else if is_paused && !must_pause {
                entry.flags.clear(ConnFlags::LOW_MEMORY);
                // Its idle time starts again.
                if !entry.flags.any(ConnFlags::CLOSING) {
                    entry.last_rx = self.tick.get();
                }
                stream.notify();
            }
        }
    }
}

impl Tables {
    /// Drops all data that waits for a connection outside its stream, in either direction.
    pub(crate) fn drop_waiting(&mut self, state: &ServiceState, index: u32) {
        state.remove_backlog(self, index);
        if let Some(held) = self.held.remove(&index) {
            state.memory.record_change(held.capacity(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_borrow_whole_chunks_and_give_them_back() {
        let pool = MemoryPool::new(128_000, 2);
        let (one, other) =
            (MemoryBudget::new(Arc::clone(&pool)), MemoryBudget::new(Arc::clone(&pool)));
        one.adjust_grant(1);
        assert_eq!((pool.chunk, pool.taken()), (1000, 1000));
        one.adjust_grant(100_500);
        other.adjust_grant(20_000);
        assert_eq!(pool.taken(), 121_000);
        assert!(pool.taken() > pool.pause_threshold() && !pool.is_over());
        other.adjust_grant(28_000);
        assert!(pool.is_over());
        // One spare chunk is kept.
        one.adjust_grant(50_000);
        assert_eq!(pool.taken(), 51_000 + 28_000);
        one.adjust_grant(50_900);
        assert_eq!(pool.taken(), 51_000 + 28_000);
        drop(one);
        assert_eq!(pool.taken(), 28_000);
    }

    #[test]
    fn what_is_reserved_ends_at_four_fifths() {
        let pool = MemoryPool::new(64_000, 1);
        let budget = MemoryBudget::new(Arc::clone(&pool));
        budget.adjust_grant(1);
        let count = (0..100).take_while(|_| budget.reserve(5000)).count();
        // 1000 bytes are a chunk.
        assert_eq!((count, pool.taken()), (10, 51_000));
        assert_eq!(budget.outside_streams.get(), 50_000);
        budget.release(5000);
        assert!(budget.reserve(5000) && !budget.reserve(5000) && budget.reserve(0));
        for _ in 0..10 {
            budget.release(5000);
        }
        assert_eq!((pool.taken(), budget.outside_streams.get()), (1000, 0));
    }

    #[test]
    fn a_budget_of_one_byte_is_enforced() {
        let pool = MemoryPool::new(1, 4);
        let budget = MemoryBudget::new(Arc::clone(&pool));
        budget.adjust_grant(2);
        assert!(pool.is_over());
    }
}
