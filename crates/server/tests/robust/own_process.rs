//! Tests that need a process of their own: for its limits, its descriptors, its memory.

use windlass_testkit::alloc::Counting;
pub(crate) use windlass_testkit::alloc::{bytes as live_bytes, peak_of};

use std::process::Command;

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

#[global_allocator]
static ALLOCATOR: Counting = Counting;
