//! An allocator that counts, for each thread and for the process.
//!
//! A test program installs it: `#[global_allocator] static ALLOCATOR: Counting = Counting;`

#![allow(unsafe_code, reason = "a global allocator is unsafe to implement")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

std::thread_local! {
    static THREAD_CALLS: Cell<usize> = const { Cell::new(0) };
    static THREAD_BYTES: Cell<isize> = const { Cell::new(0) };
    static THREAD_BYTES_MAX: Cell<isize> = const { Cell::new(0) };
}

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static BYTES_MAX: AtomicUsize = AtomicUsize::new(0);

/// The number of allocations and of reallocations by this thread.
#[must_use]
pub fn calls_of_thread() -> usize {
    THREAD_CALLS.get()
}

/// The bytes that this thread has allocated, less those that it has freed.
#[must_use]
pub fn bytes_of_thread() -> isize {
    THREAD_BYTES.get()
}

/// The number of allocations and of reallocations by all threads.
#[must_use]
pub fn calls() -> usize {
    CALLS.load(Ordering::Relaxed)
}

/// The allocated bytes of all threads.
#[must_use]
pub fn bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}

/// How far [`bytes`] rose above their initial number while the closure ran.
pub fn peak_of(run: impl FnOnce()) -> usize {
    let before = bytes();
    BYTES_MAX.store(before, Ordering::Relaxed);
    run();
    BYTES_MAX.load(Ordering::Relaxed) - before
}

/// How far [`bytes_of_thread`] rose above its initial number while the closure ran.
pub fn peak_of_thread(run: impl FnOnce()) -> usize {
    let before = bytes_of_thread();
    THREAD_BYTES_MAX.set(before);
    run();
    (THREAD_BYTES_MAX.get() - before).cast_unsigned()
}

/// A size as a difference. No allocation is larger than `isize::MAX` (`Layout`).
#[must_use]
pub const fn signed(size: usize) -> isize {
    size.cast_signed()
}

fn count_call() {
    THREAD_CALLS.set(THREAD_CALLS.get() + 1);
    CALLS.fetch_add(1, Ordering::Relaxed);
}

fn count_more(size: usize) {
    let of_thread = THREAD_BYTES.get() + signed(size);
    THREAD_BYTES.set(of_thread);
    THREAD_BYTES_MAX.set(THREAD_BYTES_MAX.get().max(of_thread));
    let bytes = BYTES.fetch_add(size, Ordering::Relaxed) + size;
    BYTES_MAX.fetch_max(bytes, Ordering::Relaxed);
}

fn count_less(size: usize) {
    THREAD_BYTES.set(THREAD_BYTES.get() - signed(size));
    BYTES.fetch_sub(size, Ordering::Relaxed);
}

/// The system's allocator, with counts.
pub struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator. Counting neither allocates
// nor unwinds: the cells of a thread are initialised at compile time and have no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_call();
        count_more(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is that of
        // `System::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count_less(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`; the block came from
        // `System`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_call();
        count_more(size);
        count_less(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`; the block came from
        // `System`.
        unsafe { System.realloc(memory, layout, size) }
    }
}
