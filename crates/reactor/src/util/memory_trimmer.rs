//! [`MemoryTrimmer`]: returns memory to the kernel after a load has ended.
//!
//! glibc keeps freed memory for later allocations, unless it is at the end of the heap. Output that
//! has waited for slow clients is freed in pieces of 16 KiB all over the heap. Hundreds of
//! megabytes may stay resident without any connection. malloc_trim(3) returns all of it. It holds
//! the allocator's locks meanwhile, so it is called rarely, and only after a load has ended. C
//! libraries other than glibc have no such function, and there this module does nothing.

#![allow(unsafe_code, reason = "malloc_trim of libc")]

use std::{fs::File, os::unix::fs::FileExt as _, time::Duration};

/// Minimum number of bytes that make a call worthwhile.
const TRIM_MIN: u64 = 8 << 20;
/// Number of consecutive checks without growth of memory that must precede a call.
const QUIET_CHECKS: u32 = 3;
/// Minimum number of checks between two calls.
const CHECKS_BETWEEN_TRIMS: u32 = 10;
/// Growth below this does not count.
const GROWTH_NOISE: u64 = 1 << 20;

/// Returns memory of the process to the kernel after a load has ended.
///
/// The C library keeps freed memory for later allocations. glibc returns it when it is asked
/// (malloc_trim(3)), and that works on the memory of the whole process. So a process needs one
/// trimmer. With other C libraries it does nothing.
///
/// ```
/// use std::{cell::RefCell, time::Duration};
/// use windlass::{MemoryTrimmer, Reactor, Turn};
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let trimmer = RefCell::new(MemoryTrimmer::new());
/// let connections = || 0;
/// reactor.every(MemoryTrimmer::CHECK_PERIOD, move |_: Turn<'_>| {
///     // A mebibyte for each connection.
///     trimmer.borrow_mut().trim_if_due(connections() << 20);
/// })?;
/// # reactor.after(Duration::ZERO, |mut turn: Turn<'_>| turn.stop())?;
/// reactor.run()
/// # }
/// ```
#[doc(alias = "malloc_trim")]
#[derive(Debug)]
pub struct MemoryTrimmer {
    /// The file of proc_pid_statm(5), opened at start, so that no file is opened while serving.
    /// `None` if it does not exist.
    statm: Option<File>,
    /// The minimum of resident memory since the last call.
    resident_min: u64,
    /// The resident memory at the last check.
    resident_last: u64,
    /// The maximum load since the last call.
    load_max: u64,
    quiet: u32,
    checks: u32,
}

impl Default for MemoryTrimmer {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryTrimmer {
    /// The time between two calls of [`trim_if_due`](Self::trim_if_due).
    pub const CHECK_PERIOD: Duration = Duration::from_secs(1);

    /// Opens `/proc/self/statm`, and notes how much is resident. Where that is not possible, the
    /// trimmer does nothing.
    #[must_use]
    pub fn new() -> Self {
        let mut trimmer = Self::without_resident();
        // A load that has come and gone before the first check is noticed by its memory.
        trimmer.resident_min = trimmer.resident().unwrap_or(u64::MAX);
        trimmer
    }

    fn without_resident() -> Self {
        Self {
            statm: File::open("/proc/self/statm").ok(),
            resident_min: u64::MAX,
            resident_last: 0,
            load_max: 0,
            quiet: 0,
            checks: CHECKS_BETWEEN_TRIMS,
        }
    }

    /// Records a check: the resident memory, and the load as the number of bytes that it may use.
    /// Returns true when memory should be returned.
    fn should_trim(&mut self, resident: u64, load: u64) -> bool {
        self.checks = self.checks.saturating_add(1);
        self.quiet = if resident <= self.resident_last.saturating_add(GROWTH_NOISE) {
            self.quiet.saturating_add(1)
        } else {
            0
        };
        self.resident_last = resident;
        self.resident_min = self.resident_min.min(resident);
        self.load_max = self.load_max.max(load);
        let has_gone = self.load_max - load > TRIM_MIN.max(self.load_max / 2);
        let has_grown = resident > self.resident_min.saturating_add(2 * TRIM_MIN);
        if self.quiet < QUIET_CHECKS
            || self.checks < CHECKS_BETWEEN_TRIMS
            || !(has_gone || has_grown)
        {
            return false;
        }
        (self.checks, self.load_max, self.resident_min) = (0, load, u64::MAX);
        true
    }

    /// Returns the resident memory; `None` if it cannot be read.
    fn resident(&self) -> Option<u64> {
        let mut text = [0; 128];
        let len = self.statm.as_ref()?.read_at(&mut text, 0).ok()?;
        let pages: u64 =
            core::str::from_utf8(&text[..len]).ok()?.split(' ').nth(1)?.parse().ok()?;
        Some(pages * rustix::param::page_size() as u64)
    }

    /// Returns memory to the kernel if the load has ended: if less than half of its maximum is
    /// left, or if the process has grown by 16 MiB, and it has not grown for three calls. That is
    /// at most every tenth call. It takes the allocator's locks, for milliseconds if there is much
    /// to return.
    ///
    /// `load` is the number of bytes that the work of the moment may use, as an estimate. Returns
    /// the resident memory before and after, in bytes, if memory was returned.
    pub fn trim_if_due(&mut self, load: u64) -> Option<(u64, u64)> {
        let before = self.resident()?;
        if !self.should_trim(before, load) {
            return None;
        }
        malloc_trim();
        self.resident_last = self.resident().unwrap_or(before);
        // The same between two checks.
        self.resident_min = self.resident_last;
        Some((before, self.resident_last))
    }
}

#[cfg(all(target_env = "gnu", not(miri)))]
fn malloc_trim() {
    // SAFETY: malloc_trim(3) may be called at any time and from any thread, and releases only
    // memory that is free.
    let _ = unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_env = "gnu", not(miri))))]
fn malloc_trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Repeats a check with this resident memory and load, in mebibytes, until memory should be
    /// returned. Returns the number of checks.
    fn checks_until_trim(trimmer: &mut MemoryTrimmer, resident: u64, load: u64) -> Option<u32> {
        (1..=60).find(|_| trimmer.should_trim(resident * MIB, load * MIB))
    }

    #[test]
    fn a_load_that_has_gone_is_time_once_and_soon() {
        let mut trimmer = MemoryTrimmer::without_resident();
        assert_eq!(checks_until_trim(&mut trimmer, 10, 0), None, "idle");
        for more in 0..100 {
            assert!(!trimmer.should_trim((10 + 5 * more) * MIB, 5 * more * MIB), "it grows");
        }
        assert_eq!(checks_until_trim(&mut trimmer, 505, 0), Some(3));
        assert_eq!(checks_until_trim(&mut trimmer, 12, 0), None);
    }

    #[test]
    fn a_load_that_stays_is_time_once() {
        let mut trimmer = MemoryTrimmer::without_resident();
        assert!(!trimmer.should_trim(10 * MIB, 0));
        assert_eq!(
            checks_until_trim(&mut trimmer, 500, 400),
            Some(4),
            "it may be that not all of it is in use"
        );
        assert_eq!(checks_until_trim(&mut trimmer, 500, 400), None, "but it was");
        // A load that comes and goes within the same memory.
        assert_eq!(checks_until_trim(&mut trimmer, 500, 100), Some(1));
        assert_eq!(checks_until_trim(&mut trimmer, 100, 100), None);
    }

    #[test]
    fn a_load_that_came_and_went_between_two_checks_is_time() {
        let mut trimmer = MemoryTrimmer::without_resident();
        trimmer.resident_min = 10 * MIB;
        assert_eq!(checks_until_trim(&mut trimmer, 160, 0), Some(4));
        trimmer.resident_min = 12 * MIB;
        assert_eq!(checks_until_trim(&mut trimmer, 160, 0), Some(CHECKS_BETWEEN_TRIMS));
    }

    #[test]
    fn it_is_not_time_again_at_once() {
        let mut trimmer = MemoryTrimmer::without_resident();
        assert!(!trimmer.should_trim(100 * MIB, 90 * MIB));
        assert_eq!(checks_until_trim(&mut trimmer, 100, 40), Some(3));
        assert_eq!(checks_until_trim(&mut trimmer, 60, 0), Some(CHECKS_BETWEEN_TRIMS));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    fn it_works_here() {
        let mut trimmer = MemoryTrimmer::new();
        assert!((100 << 10..u64::MAX).contains(&trimmer.resident_min), "proc is mounted");
        trimmer.load_max = 100 * MIB;
        let trimmed = (0..60).find_map(|_| trimmer.trim_if_due(0));
        let (_, after) = trimmed.expect("the load has gone");
        assert_eq!(trimmer.resident_min, after, "growth counts from here");
    }
}
