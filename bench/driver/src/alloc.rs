//! The global allocator of every measured program, which counts allocations.
#![allow(unsafe_code, reason = "a global allocator is an unsafe trait by nature")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering::Relaxed};

/// Forwards to the system's allocator, and counts as [`CountMode`] says.
#[derive(Debug)]
struct CountingAllocator;

/// How allocations are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CountMode {
    /// By a plain load and store, for a single thread. An atomic addition would slow the peers that
    /// allocate per event.
    OneThread,
    /// By atomic additions, for any number of threads. Too slow for timed slices.
    AnyThread,
    /// Not at all, for timed slices of several threads, which would contend for the counter's cache
    /// line.
    Not,
}

/// Unit tests run on several threads, where plain stores could make the counts smaller.
static MODE: AtomicU8 =
    AtomicU8::new(if cfg!(test) { CountMode::AnyThread } else { CountMode::OneThread } as u8);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The counts so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocCounts {
    /// Number of allocations and reallocations.
    pub allocations: u64,
    /// Bytes allocated and not freed, without the allocator's own overhead.
    pub live_bytes: i64,
}

/// Returns the current counts.
pub fn counts() -> AllocCounts {
    AllocCounts { allocations: ALLOCATIONS.load(Relaxed), live_bytes: LIVE_BYTES.load(Relaxed) }
}

/// Returns the address of the number of allocations, for another process to read.
pub(crate) fn address() -> u64 {
    ALLOCATIONS.as_ptr().addr() as u64
}

/// Counts an allocation by C++.
pub fn count_one() {
    note(0, 1);
}

/// Changes the count mode until the returned value is dropped.
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

/// Restores the previous count mode.
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
        // The counts are those of the process.
        if !windlass_testkit::own_process::is_own_process(
            "alloc::tests::a_box_is_one_allocation_of_its_size",
        ) {
            return;
        }
        let before = super::counts();
        let kept = std::hint::black_box(Box::new([0_u8; 4096]));
        let after = super::counts();
        assert_eq!(after.allocations - before.allocations, 1);
        assert_eq!(after.live_bytes - before.live_bytes, 4096);
        drop(kept);
    }
}
