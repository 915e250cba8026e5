//! Tests that need a process of their own: for its limits, its descriptors, its memory.

#![allow(unsafe_code, reason = "a global allocator is unsafe to implement")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
};

const CHILD_VARIABLE: &str = "WINDLASS_ROBUST_CHILD";

/// A test calls this first, with its module and its name. In the parent it runs the test again in a
/// child, checks that the child has passed, and returns `false`. In the child it returns `true`,
/// and the test continues.
pub(crate) fn is_own_process(test: &str) -> bool {
    if std::env::var_os(CHILD_VARIABLE).is_some_and(|name| name == *test) {
        return true;
    }
    let output = Command::new(std::env::current_exe().expect("it runs"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD_VARIABLE, test)
        .output()
        .expect("it can be started again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{test} in its own process: {:?}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

/// Number of open descriptors of the process.
pub(crate) fn descriptors() -> usize {
    // One of them belongs to the directory that is being read.
    std::fs::read_dir("/proc/self/fd").expect("proc is mounted").count() - 1
}

/// Resident memory of the process in bytes, as the kernel counts it.
pub(crate) fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("it says how much is resident");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
}

/// Memory of the process in bytes. Under AddressSanitizer these are the allocated bytes, because
/// its shadow memory and its quarantine of freed blocks are resident too. `cargo xtask ci` sets the
/// variable.
pub(crate) fn used() -> usize {
    if std::env::var_os("WINDLASS_SANITIZED").is_some() { live_bytes() } else { resident() }
}

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Number of allocated bytes. Useful only in a process of its own.
pub(crate) fn live_bytes() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// Returns how far the allocated bytes rose above their initial number while the closure ran.
pub(crate) fn peak_of(run: impl FnOnce()) -> usize {
    let before = live_bytes();
    PEAK.store(before, Ordering::Relaxed);
    run();
    PEAK.load(Ordering::Relaxed) - before
}

fn more(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

fn less(bytes: usize) {
    LIVE.fetch_sub(bytes, Ordering::Relaxed);
}

struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

// SAFETY: every call is passed on to the system's allocator unchanged. Counting neither allocates
// nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is that of
        // `System::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        less(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`; the block came from
        // `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        more(size);
        less(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`; the block came from
        // `System`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
