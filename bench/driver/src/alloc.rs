//! A global allocator that counts, in every measured program.
#![allow(unsafe_code, reason = "a global allocator is an unsafe trait by nature")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering::Relaxed};

/// Counts what it forwards to the system's allocator, as [`CountMode`] says.
#[derive(Debug)]
struct CountingAllocator;

/// How allocations are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CountMode {
    /// By a plain load and store rather than by an atomic addition, which is right while one thread
    /// works: an addition with a lock prefix would weigh on the peers that allocate per event.
    OneThread,
    /// By atomic additions: right for any number of threads, and too dear to be timed.
    AnyThread,
    /// Not at all, for the timed slices of many threads: a line that all of them write would be
    /// what is measured.
    Not,
}

static MODE: AtomicU8 = AtomicU8::new(CountMode::OneThread as u8);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// What has been allocated so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocCounts {
    /// Calls that may have taken new memory: allocations and reallocations.
    pub allocations: u64,
    /// Bytes asked for and not yet given back (without the allocator's own overhead).
    pub live_bytes: i64,
}

/// The state of the counters now.
pub fn counts() -> AllocCounts {
    AllocCounts { allocations: ALLOCATIONS.load(Relaxed), live_bytes: LIVE_BYTES.load(Relaxed) }
}

/// Where the number of allocations is in memory, for another process to read.
pub(crate) fn address() -> u64 {
    ALLOCATIONS.as_ptr().addr() as u64
}

/// Counts an allocation that was made otherwise, by C++.
pub fn count_one() {
    note(0, 1);
}

/// Counts in another way until the returned value is dropped.
#[must_use]
pub(crate) fn counting(mode: CountMode) -> CountModeGuard {
    CountModeGuard(MODE.swap(mode as u8, Relaxed))
}

fn note(bytes: i64, allocations: u64) {
    let mode = MODE.load(Relaxed);
    if mode == CountMode::OneThread as u8 {
        LIVE_BYTES.store(LIVE_BYTES.load(Relaxed) + bytes, Relaxed);
        ALLOCATIONS.store(ALLOCATIONS.load(Relaxed) + allocations, Relaxed);
    } else if mode == CountMode::AnyThread as u8 {
        LIVE_BYTES.fetch_add(bytes, Relaxed);
        ALLOCATIONS.fetch_add(allocations, Relaxed);
    }
}

/// Restores the way of counting that was before.
#[derive(Debug)]
pub(crate) struct CountModeGuard(u8);

impl Drop for CountModeGuard {
    fn drop(&mut self) {
        MODE.store(self.0, Relaxed);
    }
}

// SAFETY: every method forwards to `System` with the arguments it was given and returns what
// `System` returned, so the contract of `GlobalAlloc` holds as far as `System` keeps it.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64, 1);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is `System`'s too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        note(-(layout.size() as i64), 0);
        // SAFETY: the block came from `System` with this layout, for all ours do.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64, 1);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size as i64 - layout.size() as i64, 1);
        // SAFETY: the block came from `System` with this layout, and the caller vouches for the
        // size.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_box_is_one_allocation_of_its_size() {
        // Other tests allocate on their own threads, so this asks only for lower bounds.
        let before = super::counts();
        let kept = std::hint::black_box(Box::new([0_u8; 4096]));
        assert!(super::counts().allocations > before.allocations);
        drop(kept);
    }
}
