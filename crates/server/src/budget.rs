//! The memory budget over all connections: [`Options::memory_max`](crate::Options::memory_max).
//!
//! 1. A worker counts its own bytes, in plain cells. They are the memory that its reactor's streams
//!    hold for waiting bytes ([`Turn::stream_memory`]), and the memory that this crate holds beside
//!    them ([`Budget::beside`]): held input, partly received messages and frames, messages in the
//!    backlog. Shared bytes count once per worker.
//! 2. All workers borrow from one [`Pool`], in chunks. A worker that needs no further chunk touches
//!    no shared state. It runs this code only when data of its own has begun to wait, and on the
//!    beat.
//! 3. Above four fifths of the budget, the connections that hold the most are not read from. Above
//!    all of it, the largest are evicted until a tenth is free. Requests get status 503 until a
//!    beat finds the pool below its limit.
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

use crate::{
    CloseReason,
    hall::{Books, Hall},
    inbox::Board,
    roster::Flags,
};

/// Maximum number of bytes that a worker borrows at once.
const CHUNK_MAX: usize = 1 << 20;

/// State that the workers of a server share.
#[derive(Debug)]
pub(crate) struct Pool {
    limit: usize,
    workers: usize,
    chunk: usize,
    /// Bytes borrowed. This value and the next protect no other data, so relaxed accesses suffice.
    taken: AtomicUsize,
    /// Requests get status 503.
    is_exhausted: AtomicBool,
    /// Used to wake the other workers.
    boards: OnceLock<Vec<Arc<Board>>>,
}

impl Pool {
    pub(crate) fn new(limit: usize, workers: usize) -> Arc<Self> {
        let chunk = (limit / (64 * workers)).clamp(1, CHUNK_MAX);
        let (taken, is_exhausted) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { limit, workers, chunk, taken, is_exhausted, boards: OnceLock::new() })
    }

    /// Sets how the workers are woken. Called once.
    pub(crate) fn set_boards(&self, boards: Vec<Arc<Board>>) {
        let _ = self.boards.set(boards);
    }

    fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Number of bytes that may be taken before reading pauses.
    fn calm(&self) -> usize {
        self.limit / 5 * 4
    }

    fn is_over(&self) -> bool {
        self.taken() > self.limit
    }

    fn wake_others(&self, own: &Arc<Board>) {
        for board in self.boards.get().into_iter().flatten() {
            if !Arc::ptr_eq(board, own) {
                board.wake();
            }
        }
    }
}

/// One worker's part of the budget.
pub(crate) struct Budget {
    pool: Arc<Pool>,
    granted: Cell<usize>,
    /// Bytes that this crate holds, beside those of the streams.
    beside: Rc<Cell<usize>>,
    /// Data has begun to wait in a place where memory could not be checked at once.
    pub(crate) has_grown: Cell<bool>,
    /// Connections are not read from.
    is_short: Cell<bool>,
    /// Number of bytes in use from which the largest connections are searched for again in this
    /// beat.
    next: Cell<usize>,
    most: Cell<usize>,
}

impl Budget {
    pub(crate) fn new(pool: Arc<Pool>) -> Self {
        Self {
            pool,
            granted: Cell::new(0),
            beside: Rc::default(),
            has_grown: Cell::new(false),
            is_short: Cell::new(false),
            next: Cell::new(0),
            most: Cell::new(0),
        }
    }

    /// Returns the counter for memory outside the streams, for the code that adds to it.
    pub(crate) fn beside(&self) -> &Rc<Cell<usize>> {
        &self.beside
    }

    /// Notes that memory was allocated or freed.
    pub(crate) fn change(&self, before: usize, after: usize) {
        self.beside.set((self.beside.get() + after).saturating_sub(before));
    }

    /// Returns whether new requests must be rejected.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.pool.is_exhausted.load(Ordering::Relaxed)
    }

    fn used(&self, turn: &mut Turn<'_>) -> usize {
        turn.stream_memory() + self.beside.get()
    }

    /// Borrows memory for the used bytes in whole chunks, and returns the surplus.
    fn settle(&self, used: usize) {
        let (chunk, granted) = (self.pool.chunk, self.granted.get());
        let wanted = used.div_ceil(chunk) * chunk;
        // One spare chunk is kept, so that small changes do not borrow each time.
        if wanted > granted {
            self.pool.taken.fetch_add(wanted - granted, Ordering::Relaxed);
        } else if granted > wanted + chunk {
            self.pool.taken.fetch_sub(granted - wanted - chunk, Ordering::Relaxed);
        }
        self.granted.set(granted.clamp(wanted, wanted + chunk));
        self.most.set(self.most.get().max(used));
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.pool.taken.fetch_sub(self.granted.get(), Ordering::Relaxed);
    }
}

/// A connection that holds memory.
struct Holder {
    bytes: usize,
    member: u32,
}

impl Hall {
    /// Checks memory after more data has begun to wait. Must be called while no books are borrowed.
    #[cold]
    #[inline(never)]
    pub(crate) fn look_at_memory(&self, turn: &mut Turn<'_>) {
        let budget = &self.budget;
        budget.has_grown.set(false);
        let used = budget.used(turn);
        if used > budget.granted.get() {
            budget.settle(used);
        }
        if budget.pool.taken() > budget.pool.calm() && used >= budget.next.get() {
            self.relieve(turn, true);
        }
    }

    /// Checks memory on the beat.
    pub(crate) fn settle_memory(&self, turn: &mut Turn<'_>) {
        let budget = &self.budget;
        let used = budget.used(turn);
        budget.settle(used);
        self.stats.memory.set(used as u64);
        self.stats.memory_most.set(budget.most.get() as u64);
        budget.next.set(0);
        if !budget.pool.is_over() {
            budget.pool.is_exhausted.store(false, Ordering::Relaxed);
        }
        if budget.pool.taken() > budget.pool.calm() || budget.is_short.get() {
            self.relieve(turn, false);
        }
    }

    /// Checks this worker's memory because another worker may need it.
    pub(crate) fn help_others(&self, turn: &mut Turn<'_>) {
        if self.budget.pool.is_over() {
            self.relieve(turn, false);
        }
    }

    /// Returns whether a connection must not be read from because memory is short.
    pub(crate) fn is_short(&self, member: u32) -> bool {
        self.budget.is_short.get()
            && self.books.borrow_mut().roster.at(member).flags.any(Flags::SHORT)
    }

    /// Reduces the memory in use, as far as this worker is responsible.
    fn relieve(&self, turn: &mut Turn<'_>, has_grown: bool) {
        let budget = &self.budget;
        let pool = &*budget.pool;
        budget.settle(budget.used(turn));
        let mut holders = self.holders(turn);
        if pool.is_over() {
            pool.is_exhausted.store(true, Ordering::Relaxed);
            let used = budget.used(turn);
            let excess = pool.taken() - pool.limit / 10 * 9;
            let spare = used.saturating_sub(pool.limit / 10 * 9 / pool.workers);
            self.evict(turn, &mut holders, excess.min(spare));
            budget.settle(budget.used(turn));
            if has_grown && pool.is_over() {
                pool.wake_others(&self.board);
            }
        }
        self.pause_largest(turn, &holders);
        // The search visits every connection, so it is repeated only after more memory is used.
        budget.next.set(budget.used(turn) + pool.limit / 32);
    }

    /// Returns the connections that hold memory, the largest first.
    fn holders(&self, turn: &mut Turn<'_>) -> Vec<Holder> {
        let books = &mut *self.books.borrow_mut();
        let mut holders = Vec::new();
        for index in 0..books.roster.places() {
            let Some(member) = books.roster.taken(index) else { continue };
            let Ok(mut stream) = turn.stream(member.stream) else { continue };
            let pieces = member.in_pieces as usize;
            let held = books.held.get(&index).map_or(0, Vec::capacity);
            let bytes = stream.memory() + pieces + held + books.sides.memory(index);
            if bytes > 0 {
                holders.push(Holder { bytes, member: index });
            }
        }
        holders.sort_unstable_by_key(|holder| Reverse(holder.bytes));
        holders
    }

    /// Evicts the largest connections until this many bytes are free.
    fn evict(&self, turn: &mut Turn<'_>, holders: &mut Vec<Holder>, bytes: usize) {
        let mut freed = 0;
        let mut count = 0;
        for holder in holders.iter().take_while(|_| bytes > 0) {
            if freed >= bytes {
                break;
            }
            freed += holder.bytes;
            count += 1;
            self.begin_closing(holder.member, CloseReason::Evicted);
            let books = &mut *self.books.borrow_mut();
            self.stats.evicted.add(1);
            self.stats.evicted_for_memory.add(1);
            books.drop_waiting(self, holder.member);
            // The memory of partly received data is freed with the connection, in the next turn.
            let in_pieces = core::mem::take(&mut books.roster.at(holder.member).in_pieces);
            self.budget.change(in_pieces as usize, 0);
            if let Ok(mut stream) = turn.stream(books.roster.at(holder.member).stream) {
                stream.discard();
            }
        }
        holders.drain(..count);
    }

    /// Pauses reading from the connections that hold the most, until the others together hold at
    /// most four fifths of this worker's share. The others continue.
    fn pause_largest(&self, turn: &mut Turn<'_>, holders: &[Holder]) {
        let budget = &self.budget;
        let pool = &*budget.pool;
        let mut books = self.books.borrow_mut();
        let mut left = if pool.taken() > pool.calm() { budget.used(turn) } else { 0 };
        let mut paused = Vec::new();
        for holder in holders {
            if left <= pool.calm() / pool.workers {
                break;
            }
            left -= holder.bytes.min(left);
            paused.push(holder.member);
        }
        paused.sort_unstable();
        let was_short = budget.is_short.replace(!paused.is_empty());
        if !was_short && paused.is_empty() {
            return;
        }
        for index in 0..books.roster.places() {
            let Some(member) = books.roster.taken(index) else { continue };
            let (is_paused, is_to_be) =
                (member.flags.any(Flags::SHORT), paused.binary_search(&index).is_ok());
            let is_to_be = is_to_be && member.flags.takes_messages();
            let Ok(mut stream) = turn.stream(member.stream) else { continue };
            if is_to_be && !is_paused {
                member.flags.add(Flags::SHORT);
                self.stats.reading_paused.add(1);
                stream.pause();
            } else if is_paused && !is_to_be {
                member.flags.clear(Flags::SHORT);
                // Its idle time starts again.
                if !member.flags.any(Flags::CLOSING) {
                    member.heard = self.tick.get();
                }
                stream.notify();
            }
        }
    }
}

impl Books {
    /// Drops all data that waits for a connection outside its stream, in either direction.
    pub(crate) fn drop_waiting(&mut self, hall: &Hall, member: u32) {
        hall.remove_side(self, member);
        if let Some(held) = self.held.remove(&member) {
            hall.budget.change(held.capacity(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_borrow_whole_chunks_and_give_them_back() {
        let pool = Pool::new(128_000, 2);
        let (one, other) = (Budget::new(Arc::clone(&pool)), Budget::new(Arc::clone(&pool)));
        one.settle(1);
        assert_eq!((pool.chunk, pool.taken()), (1000, 1000));
        one.settle(100_500);
        other.settle(20_000);
        assert_eq!(pool.taken(), 121_000);
        assert!(pool.taken() > pool.calm() && !pool.is_over());
        other.settle(28_000);
        assert!(pool.is_over());
        // One spare chunk is kept.
        one.settle(50_000);
        assert_eq!(pool.taken(), 51_000 + 28_000);
        one.settle(50_900);
        assert_eq!(pool.taken(), 51_000 + 28_000);
        drop(one);
        assert_eq!(pool.taken(), 28_000);
    }

    #[test]
    fn a_tiny_budget_is_one_all_the_same() {
        let pool = Pool::new(1, 4);
        let budget = Budget::new(Arc::clone(&pool));
        budget.settle(2);
        assert!(pool.is_over());
    }
}
