//! Generations of keys, drawn for the whole process.
//!
//! A key consists of an index and a 32-bit generation. An index stands for one slot in each table
//! of each reactor. The 2^32 generations of an index are divided into ranges of 256. Each range is
//! drawn once in the lifetime of the process. Therefore a key never names a second registration, in
//! any reactor.
//!
//! 1. Indices are grouped in blocks. Each block counts the ranges that were drawn for it.
//! 2. A new slot draws a range and shares it with the new slots of its block. Their indices differ,
//!    so their keys differ.
//! 3. A slot that has used up its range draws another one for itself.
//! 4. When a block has no range left, its slots are retired one by one, and new tables leave the
//!    block empty.

use core::{
    fmt,
    sync::atomic::{AtomicU32, Ordering},
};
use std::sync::OnceLock;

/// The number of generations drawn at a time.
const RANGE: u32 = 256;

/// The number of ranges of a block: all 32-bit generations.
const RANGES: u32 = 1 << 24;

/// The number of indices in a block. A count of four bytes costs each registration an eighth of a
/// byte.
pub(crate) const BLOCK: u32 = 32;

/// Blocks in the first segment of the counts. Each later segment has twice as many.
const FIRST: u32 = 32;

/// Enough for all indices of 30 bits.
const SEGMENTS: usize = 21;

/// The first range that is drawn. Not zero, so that small numbers are not keys.
const SALT: u32 = 0x5e_ed01;

/// The counts of drawn ranges, by block. They grow with the largest table.
pub(crate) struct Generations {
    segments: [OnceLock<Box<[AtomicU32]>>; SEGMENTS],
}

/// The generations of this process.
pub(crate) static PROCESS: Generations = Generations::new();

impl fmt::Debug for Generations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generations").finish_non_exhaustive()
    }
}

impl Generations {
    pub(crate) const fn new() -> Self {
        Self { segments: [const { OnceLock::new() }; SEGMENTS] }
    }

    /// Draws a range for the block of an index and returns its first generation. `None` if the
    /// block has none left.
    pub(crate) fn draw(&self, index: u32) -> Option<u32> {
        // Relaxed is enough: threads share only the count itself.
        let drawn = self.count(index).fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < RANGES).then_some(count.wrapping_add(1))
        });
        drawn.ok().map(|count| (count ^ SALT) * RANGE)
    }

    /// Whether a generation begins a range. The generation before it was the last of its range, so
    /// a new range must be drawn.
    pub(crate) const fn begins_range(generation: u32) -> bool {
        generation % RANGE == 0
    }

    /// Behaves as if all ranges of an index had been drawn.
    #[cfg(test)]
    pub(crate) fn use_up(&self, index: u32) {
        self.count(index).store(RANGES, Ordering::Relaxed);
    }

    fn count(&self, index: u32) -> &AtomicU32 {
        let place = index / BLOCK + FIRST;
        let segment = place.ilog2() - FIRST.ilog2();
        let len = FIRST << segment;
        let counts = self.segments[segment as usize]
            .get_or_init(|| (0..len).map(|_| AtomicU32::new(0)).collect());
        &counts[(place - len) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::key::MAX_INDEX;

    #[test]
    fn each_range_of_a_block_is_drawn_once_and_then_there_is_none() {
        let generations = Generations::new();
        let first = generations.draw(5).unwrap();
        let last = generations.draw(6).unwrap();
        assert!(
            first != last && first % RANGE == 0 && last % RANGE == 0,
            "5 and 6 are of one block"
        );
        assert_eq!(
            generations.draw(5 + BLOCK),
            Some(first),
            "and the next block has ranges of its own"
        );
        let left = if cfg!(miri) { 10 } else { 1 << 16 };
        generations.count(7).store(RANGES - left, Ordering::Relaxed);
        let mut drawn: Vec<u32> = std::iter::from_fn(|| generations.draw(7)).collect();
        assert_eq!(drawn.len(), left as usize);
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), left as usize);
        assert_eq!((generations.draw(0), generations.draw(31)), (None, None));
    }

    #[test]
    fn each_block_has_a_count() {
        let generations = Generations::new();
        let blocks = [0, 1, 31, 32, 33, 95, 96, 1000];
        for block in blocks {
            generations.count(block * BLOCK).store(block + 1, Ordering::Relaxed);
        }
        for block in blocks {
            let last = block * BLOCK + BLOCK - 1;
            assert_eq!(generations.count(last).load(Ordering::Relaxed), block + 1, "{block}");
        }
        let place = MAX_INDEX / BLOCK + FIRST;
        assert!(((place.ilog2() - FIRST.ilog2()) as usize) < SEGMENTS);
    }

    #[test]
    fn threads_draw_different_ranges() {
        let generations = Generations::new();
        let count = if cfg!(miri) { 20 } else { 10_000 };
        let draw = || (0..count).map(|_| generations.draw(0).unwrap()).collect::<Vec<_>>();
        let mut drawn = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(draw)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 3 * count);
    }
}
