//! The memory budget over all connections: [`Options::memory_max`](crate::Options::memory_max).
//!
//! 1. A worker counts its own bytes, in plain cells. They are the memory that its reactor's streams
//!    hold for waiting bytes ([`Turn::stream_memory`]), and the memory that this crate holds beside
//!    them ([`MemoryBudget::outside_streams`]): held input, partly received messages and frames,
//!    messages in the backlog, topics, TLS handshakes. Shared bytes count once per worker.
//! 2. All workers borrow from one [`MemoryPool`], in chunks. A worker that needs no further chunk
//!    touches no shared state. It runs this code only when data of its own has begun to wait, when
//!    a connection subscribes, and on each timer event of the timeouts.
//! 3. Above its high watermark the connections that hold the most are not read from. Above all of
//!    it, the largest are evicted until a tenth is free. Requests get status 503 until a timer
//!    event finds the pool below its limit.
//! 4. The worker that takes the pool above its limit searches at once. A worker evicts only while
//!    it holds more than nine tenths of its share. If that does not help, other workers hold more
//!    than their shares, and are woken. Until they have run, the pool may exceed its limit by a
//!    tolerance. Beyond that each worker evicts at least as much as it has itself added, whatever
//!    its share is. A worker below its share that adds nothing evicts nobody: another one holds
//!    what is too much, also after the limit was lowered.
//! 5. A worker checks after each step: a pass, a message to one connection, or a publication. So
//!    what it holds beyond rule 4 is what one step adds. Within a publication, which may reach many
//!    receivers, [`MemoryBudget::is_spent`] keeps that small.

use core::{cell::Cell, cmp::Reverse};
use std::{
    rc::Rc,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use windlass::Turn;

use crate::{
    api::Counters,
    mailbox::WorkerHandle,
    metrics::PoolFigures,
    table::{ConnFlags, ConnTable},
};

/// Maximum number of bytes that a worker borrows at once.
const CHUNK_MAX: usize = 1 << 20;

/// State that the workers of a server share.
#[derive(Debug)]
pub(crate) struct MemoryPool {
    /// This value and the next two protect no other data, so relaxed accesses suffice.
    limit: AtomicUsize,
    worker_count: usize,
    /// Number of bytes that one step of a worker may add: the buffer of one receiver.
    step_max: usize,
    /// Bytes borrowed.
    taken: AtomicUsize,
    /// Requests get status 503.
    is_exhausted: AtomicBool,
    /// Used to wake the other workers.
    workers: OnceLock<Vec<Arc<WorkerHandle>>>,
}

impl MemoryPool {
    pub(crate) fn new(limit: usize, worker_count: usize, step_max: usize) -> Arc<Self> {
        let (limit, taken) = (AtomicUsize::new(limit), AtomicUsize::new(0));
        let (is_exhausted, workers) = (AtomicBool::new(false), OnceLock::new());
        Arc::new(Self { limit, worker_count, step_max, taken, is_exhausted, workers })
    }

    fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. The workers notice it when they next count.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Number of bytes that a worker borrows at once.
    fn chunk(&self) -> usize {
        (self.limit() / (64 * self.worker_count)).clamp(1, CHUNK_MAX)
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
        self.limit() / 5 * 4
    }

    fn is_over(&self) -> bool {
        self.taken() > self.limit()
    }

    /// Number of bytes that a worker must have added to be searched beyond the tolerance. Each
    /// search visits all connections.
    fn growth_min(&self) -> usize {
        self.step_max / 8
    }

    /// Number of bytes taken beyond the limit and the tolerance. The tolerance and
    /// [`growth_min`](Self::growth_min) are one step for each worker.
    fn intolerable(&self) -> usize {
        let tolerance = (self.step_max - self.growth_min()).saturating_mul(self.worker_count);
        self.taken().saturating_sub(self.limit().saturating_add(tolerance))
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
    has_grown: Cell<bool>,
    /// Some connections are not read from, because memory is low.
    is_low: Cell<bool>,
    /// Number of bytes in use from which the largest connections are searched for again before the
    /// next timer event.
    search_again_at: Cell<usize>,
    /// Number of bytes in use that the last check has accepted. It is at most what is granted, so
    /// all workers together are within the limit and the tolerance, unless the limit was lowered.
    checked: Cell<usize>,
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
            checked: Cell::new(0),
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
    /// nothing, if more of the budget would be in use than its high watermark.
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
        self.set_granted(self.granted.get() - back);
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
            limit: self.pool.limit() as u64,
            borrowed: self.pool.taken() as u64,
            is_exhausted: self.is_exhausted(),
        }
    }

    pub(crate) fn used(&self, turn: &mut Turn<'_>) -> usize {
        turn.stream_memory() + self.outside_streams.get()
    }

    /// Borrows memory for the used bytes in whole chunks, and returns the surplus.
    fn adjust_grant(&self, used: usize) {
        let (chunk, granted) = (self.pool.chunk(), self.granted.get());
        let wanted = used.div_ceil(chunk) * chunk;
        // One spare chunk is kept, so that small changes do not borrow each time.
        if wanted > granted {
            self.pool.taken.fetch_add(wanted - granted, Ordering::Relaxed);
        } else if granted > wanted + chunk {
            self.pool.taken.fetch_sub(granted - wanted - chunk, Ordering::Relaxed);
        }
        self.set_granted(granted.clamp(wanted, wanted + chunk));
        self.peak.set(self.peak.get().max(used));
    }

    fn set_granted(&self, granted: usize) {
        self.granted.set(granted);
        self.checked.set(self.checked.get().min(granted));
    }

    /// Returns how many bytes this worker has added since its last check, if they are enough for a
    /// search.
    fn growth(&self, used: usize) -> usize {
        let growth = used.saturating_sub(self.checked.get());
        if growth < self.pool.growth_min() { 0 } else { growth }
    }

    /// Accepts the bytes in use. Beyond the tolerance, too few for a search are not accepted, so
    /// that they add up.
    fn end_check(&self, used: usize) {
        let has_shrunk = used < self.checked.get();
        if has_shrunk || self.growth(used) > 0 || self.pool.intolerable() == 0 {
            self.checked.set(used);
        }
    }

    /// Notes that more data has begun to wait where memory cannot be checked at once.
    pub(crate) fn note_growth(&self) {
        self.has_grown.set(true);
    }

    /// Returns whether more data has begun to wait since the last check.
    #[inline]
    pub(crate) fn has_grown(&self) -> bool {
        self.has_grown.get()
    }

    /// Counts the memory in use after more data has begun to wait. Returns true if some of it must
    /// be freed.
    pub(crate) fn check(&self, turn: &mut Turn<'_>) -> bool {
        self.has_grown.set(false);
        self.check_used(self.used(turn))
    }

    fn check_used(&self, used: usize) -> bool {
        let was_over = self.is_over();
        if used > self.granted.get() {
            self.adjust_grant(used);
        }
        let must_search = !was_over && self.is_over() || self.must_search(used);
        if !must_search {
            self.end_check(used);
        }
        must_search
    }

    /// Returns whether the largest connections must be searched for before the next timer event.
    fn must_search(&self, used: usize) -> bool {
        let has_grown = self.growth(used) > 0 && self.pool.intolerable() > 0;
        self.must_pause() && (used >= self.search_again_at.get() || has_grown)
    }

    /// Returns whether the budget is used up, by more than one step since the last check.
    pub(crate) fn is_spent(&self, turn: &mut Turn<'_>) -> bool {
        self.is_spent_with(self.used(turn))
    }

    fn is_spent_with(&self, used: usize) -> bool {
        let since_check = used.saturating_sub(self.checked.get());
        let ungranted = used.saturating_sub(self.granted.get());
        let taken = self.pool.taken().saturating_add(ungranted);
        since_check > self.pool.step_max && taken > self.pool.limit()
    }

    /// Counts the memory in use on the timer event of the timeouts. Returns true if some of it must
    /// be freed, or if connections must be read from again.
    pub(crate) fn update(&self, turn: &mut Turn<'_>, stats: &Counters) -> bool {
        let used = self.used(turn);
        self.adjust_grant(used);
        stats.memory.set(used as u64);
        stats.memory_most.set(self.peak.get() as u64);
        self.search_again_at.set(0);
        if !self.is_over() {
            self.pool.is_exhausted.store(false, Ordering::Relaxed);
        }
        let must_search = self.must_pause() || self.is_low.get();
        if !must_search {
            self.end_check(used);
        }
        must_search
    }

    /// More than the budget is in use.
    pub(crate) fn is_over(&self) -> bool {
        self.pool.is_over()
    }

    /// Connections that hold the most must not be read from.
    fn must_pause(&self) -> bool {
        self.pool.taken() > self.pool.pause_threshold()
    }

    /// Counts the memory in use.
    pub(crate) fn settle(&self, turn: &mut Turn<'_>) {
        self.adjust_grant(self.used(turn));
    }

    /// Returns how much this worker must free by evictions, if more than the budget is in use.
    pub(crate) fn excess(&self, turn: &mut Turn<'_>) -> Option<usize> {
        self.excess_of(self.used(turn))
    }

    fn excess_of(&self, used: usize) -> Option<usize> {
        let pool = &*self.pool;
        if !pool.is_over() {
            return None;
        }
        pool.is_exhausted.store(true, Ordering::Relaxed);
        let wanted = pool.limit() / 10 * 9;
        // The limit may have been raised just now.
        let excess = pool.taken().saturating_sub(wanted);
        let spare = used.saturating_sub(wanted / pool.worker_count);
        Some(excess.min(spare.max(pool.intolerable().min(self.growth(used)))))
    }

    /// Wakes the other workers if they hold more than their shares.
    pub(crate) fn wake_others_if_over(&self, own: &Arc<WorkerHandle>) {
        if self.is_over() {
            self.pool.wake_others(own);
        }
    }

    /// Pauses reading from the connections that hold the most, until the others together hold no
    /// more than the high watermark of this worker's share. The others continue. A connection is
    /// never paused for its topics alone: that would free nothing, and hide the end of the
    /// connection. If topics alone are above the watermark, none is paused: it would be for as long
    /// as they exist. Then evictions decide.
    pub(crate) fn pause_largest(
        &self,
        mut holders: Vec<MemoryHolder>,
        conns: &mut ConnTable,
        turn: &mut Turn<'_>,
        stats: &Counters,
        tick: u32,
    ) {
        holders.retain(|holder| holder.waiting > 0);
        holders.sort_unstable_by_key(|holder| Reverse(holder.waiting));
        let pool = &*self.pool;
        let threshold = pool.pause_threshold() / pool.worker_count;
        let mut left = if self.must_pause() { self.used(turn) } else { 0 };
        let mut paused = Vec::new();
        for holder in holders {
            if left <= threshold {
                break;
            }
            left -= holder.waiting.min(left);
            paused.push(holder.index);
        }
        if left > threshold {
            paused.clear();
        }
        paused.sort_unstable();
        let was_short = self.is_low.replace(!paused.is_empty());
        if !was_short && paused.is_empty() {
            return;
        }
        for index in 0..conns.slots() {
            let Some(entry) = conns.get_mut(index) else { continue };
            let (is_paused, must_pause) =
                (entry.flags.any(ConnFlags::LOW_MEMORY), paused.binary_search(&index).is_ok());
            let must_pause = must_pause && entry.flags.takes_messages();
            let Ok(mut stream) = turn.stream(entry.stream) else { continue };
            if must_pause && !is_paused {
                entry.flags.add(ConnFlags::LOW_MEMORY);
                stats.reading_paused.add(1);
                stream.pause();
            } else if is_paused && !must_pause {
                entry.read_again(ConnFlags::LOW_MEMORY, tick);
                stream.notify();
            }
        }
    }

    /// The largest connections were searched for. Every connection was visited, so this is repeated
    /// only after more memory is used: a part of the limit, or beyond the tolerance a part of a
    /// step.
    pub(crate) fn end_search(&self, turn: &mut Turn<'_>) {
        let used = self.used(turn);
        self.end_check(used);
        self.search_again_at.set(used + self.pool.limit() / 32);
    }
}

impl Drop for MemoryBudget {
    fn drop(&mut self) {
        self.pool.taken.fetch_sub(self.granted.get(), Ordering::Relaxed);
    }
}

/// A connection that holds memory.
pub(crate) struct MemoryHolder {
    /// Bytes that wait, in either direction. They become less when the peer reads, or when it is
    /// not read from.
    pub(crate) waiting: usize,
    /// Bytes of its topics and subscriptions, which stay.
    pub(crate) topics: usize,
    pub(crate) index: u32,
}

impl MemoryHolder {
    pub(crate) fn bytes(&self) -> usize {
        self.waiting + self.topics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_borrow_whole_chunks_and_give_them_back() {
        let pool = MemoryPool::new(128_000, 2, 1000);
        let (one, other) =
            (MemoryBudget::new(Arc::clone(&pool)), MemoryBudget::new(Arc::clone(&pool)));
        one.adjust_grant(1);
        assert_eq!((pool.chunk(), pool.taken()), (1000, 1000));
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

    /// The chunk is 5000 bytes, a share 288 000, the tolerance 112 000, a search 8000.
    fn hog_and_other() -> (Arc<MemoryPool>, MemoryBudget, MemoryBudget) {
        let pool = MemoryPool::new(640_000, 2, 64_000);
        let (hog, other) = (MemoryBudget::new(Arc::clone(&pool)), MemoryBudget::new(pool.clone()));
        (pool, hog, other)
    }

    fn accept(budget: &MemoryBudget, used: usize) {
        budget.adjust_grant(used);
        budget.end_check(used);
    }

    #[test]
    fn a_worker_below_its_share_evicts_only_what_it_adds_beyond_the_tolerance() {
        let (pool, hog, other) = hog_and_other();
        accept(&hog, 640_000);
        assert_eq!(other.excess_of(0), None);
        accept(&other, 110_000);
        assert_eq!(other.excess_of(110_000), Some(0), "the hog was woken, and is about to evict");
        assert_eq!(hog.excess_of(640_000), Some(174_000));
        other.adjust_grant(120_000);
        assert_eq!(other.excess_of(120_000), Some(8000), "beyond the tolerance");
        other.adjust_grant(200_000);
        assert_eq!((pool.intolerable(), other.excess_of(200_000)), (88_000, Some(88_000)));
        // The hog adds more. What the other has added before is not to be freed for that.
        accept(&other, 110_000);
        accept(&hog, 800_000);
        other.adjust_grant(125_000);
        assert_eq!((pool.intolerable(), other.excess_of(125_000)), (173_000, Some(15_000)));
    }

    #[test]
    fn a_step_is_measured_from_the_last_check_although_more_is_granted() {
        let (_, hog, other) = hog_and_other();
        accept(&hog, 580_000);
        accept(&other, 60_000);
        accept(&other, 51_000);
        assert_eq!((other.granted.get(), other.checked.get()), (60_000, 51_000));
        assert!(!other.is_spent_with(51_000 + 64_000), "one step");
        assert!(other.is_spent_with(51_000 + 64_001));
        accept(&hog, 0);
        assert!(!other.is_spent_with(51_000 + 64_001), "the budget is not used up");
    }

    /// Which is that with the most, or wakes it.
    #[test]
    fn the_worker_that_exceeds_the_limit_searches_at_once() {
        let (_, hog, other) = hog_and_other();
        accept(&hog, 600_000);
        for budget in [&hog, &other] {
            // They have searched above four fifths, and add less than a part of the limit.
            budget.search_again_at.set(650_000);
        }
        assert!(!hog.check_used(630_000) && !other.check_used(10_000));
        assert!(other.check_used(11_000) && !hog.check_used(631_000), "once");
        other.adjust_grant(0);
        assert!(hog.check_used(641_000) && !hog.check_used(646_000));
        assert_eq!(hog.excess_of(646_000), Some(79_000));
    }

    #[test]
    fn a_lowered_limit_evicts_where_more_than_a_share_is_held() {
        let (pool, hog, other) = hog_and_other();
        accept(&hog, 600_000);
        accept(&other, 10_000);
        pool.set_limit(200_000);
        assert!(pool.intolerable() > 10_000);
        assert_eq!(other.excess_of(10_000), Some(0), "it adds nothing");
        assert_eq!(hog.excess_of(600_000), Some(430_000));
    }

    #[test]
    fn beyond_the_tolerance_small_additions_are_freed_when_they_are_enough_for_a_search() {
        let (pool, hog, other) = hog_and_other();
        accept(&other, 100_000);
        accept(&hog, 700_000);
        other.search_again_at.set(120_000);
        for used in (101_000..108_000).step_by(1000) {
            accept(&other, used);
            assert_eq!((other.must_search(used), other.excess_of(used)), (false, Some(0)));
        }
        other.adjust_grant(108_000);
        assert!(other.must_search(108_000) && other.must_search(120_000));
        assert_eq!(other.excess_of(108_000), Some(8000), "all of them");
        // What is given back counts as added when it is taken again.
        other.adjust_grant(50_000);
        other.adjust_grant(90_000);
        assert_eq!(other.growth(90_000), 35_000);
        // Below the tolerance all is accepted.
        pool.set_limit(1_000_000);
        accept(&other, 60_000);
        assert_eq!(other.checked.get(), 60_000);
    }

    #[test]
    fn what_is_reserved_ends_at_four_fifths() {
        let pool = MemoryPool::new(64_000, 1, 1000);
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
        let pool = MemoryPool::new(1, 4, 1000);
        let budget = MemoryBudget::new(Arc::clone(&pool));
        budget.adjust_grant(2);
        assert!(pool.is_over());
    }
}
