//! What the tests that need a process of their own look at: its descriptors and its memory.

use windlass_testkit::alloc::Counting;
pub(crate) use windlass_testkit::{
    alloc::{bytes as live_bytes, peak_of},
    own_process::is_own_process,
};

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

#[global_allocator]
static ALLOCATOR: Counting = Counting;
