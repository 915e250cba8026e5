//! Gives memory back to the kernel when a load has gone.
//!
//! glibc keeps what was freed for the next allocation, unless it is at the end of its heap. Output
//! that has waited for slow clients is freed in pieces of 16 KiB all over it: hundreds of megabytes
//! may stay resident with nobody connected. malloc_trim(3) gives all of it back. It holds the
//! allocator's locks meanwhile, so it is called when a load has gone, and seldom. Other libraries
//! than glibc have nothing of the kind, and nothing is done.

#![allow(unsafe_code, reason = "malloc_trim of libc")]

use std::{fs::File, os::unix::fs::FileExt as _};

/// The bytes that it is called for.
const WORTH: u64 = 8 << 20;
/// The memory in use does not grow for so many looks before it is called. A look comes every
/// second.
const QUIET_LOOKS: u32 = 3;
/// It is called no more often than once in so many looks.
const LOOKS_APART: u32 = 10;
/// Memory in use that grows by less is quiet.
const NOISE: u64 = 1 << 20;

/// Says when to.
#[derive(Debug)]
pub(crate) struct Trimmer {
    /// What proc_pid_statm(5) describes, open from the beginning: so no file is opened while the
    /// server serves. None where there is no such file.
    statm: Option<File>,
    /// The least that was resident since it was called last.
    least: u64,
    /// What was resident at the last look.
    last: u64,
    /// The greatest load since it was called last.
    peak: u64,
    quiet: u32,
    looks: u32,
}

impl Trimmer {
    pub(crate) fn new() -> Self {
        Self {
            statm: File::open("/proc/self/statm").ok(),
            least: u64::MAX,
            last: 0,
            peak: 0,
            quiet: 0,
            looks: LOOKS_APART,
        }
    }

    /// A look: what is resident, and how much load there is, as the number of bytes that it may
    /// hold. True when memory should be given back.
    fn look(&mut self, resident: u64, load: u64) -> bool {
        self.looks = self.looks.saturating_add(1);
        self.quiet = if resident <= self.last.saturating_add(NOISE) {
            self.quiet.saturating_add(1)
        } else {
            0
        };
        self.last = resident;
        self.least = self.least.min(resident);
        self.peak = self.peak.max(load);
        let has_gone = self.peak - load > WORTH.max(self.peak / 2);
        let has_grown = resident > self.least.saturating_add(2 * WORTH);
        if self.quiet < QUIET_LOOKS || self.looks < LOOKS_APART || !(has_gone || has_grown) {
            return false;
        }
        (self.looks, self.peak, self.least) = (0, load, u64::MAX);
        true
    }

    /// What is resident; `None` where it cannot be read.
    fn resident(&self) -> Option<u64> {
        let mut text = [0; 128];
        let len = self.statm.as_ref()?.read_at(&mut text, 0).ok()?;
        let pages: u64 = str::from_utf8(&text[..len]).ok()?.split(' ').nth(1)?.parse().ok()?;
        Some(pages * rustix::param::page_size() as u64)
    }

    /// Looks, and gives memory back if it is time to.
    pub(crate) fn trim_if_due(&mut self, load: u64) {
        let Some(before) = self.resident() else { return };
        if self.look(before, load) {
            malloc_trim();
            self.last = self.resident().unwrap_or(before);
            tracing::debug!(before, after = self.last, "gave memory back");
        }
    }
}

#[cfg(target_env = "gnu")]
fn malloc_trim() {
    // SAFETY: it may be called at any time, from any thread (malloc_trim(3)), and gives back only
    // what is free.
    let _ = unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn malloc_trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Looks, each with what is resident and the load in mebibytes, until it is time; says how many
    /// it took.
    fn looks(trimmer: &mut Trimmer, resident: u64, load: u64) -> Option<u32> {
        (1..=60).find(|_| trimmer.look(resident * MIB, load * MIB))
    }

    #[test]
    fn a_load_that_has_gone_is_time_once_and_soon() {
        let mut trimmer = Trimmer::new();
        assert_eq!(looks(&mut trimmer, 10, 0), None, "idle");
        for more in 0..100 {
            assert!(!trimmer.look((10 + 5 * more) * MIB, 5 * more * MIB), "it grows");
        }
        assert_eq!(looks(&mut trimmer, 505, 0), Some(3));
        assert_eq!(looks(&mut trimmer, 12, 0), None);
    }

    #[test]
    fn a_load_that_stays_is_time_once() {
        let mut trimmer = Trimmer::new();
        assert!(!trimmer.look(10 * MIB, 0));
        assert_eq!(
            looks(&mut trimmer, 500, 400),
            Some(4),
            "it may be that not all of it is in use"
        );
        assert_eq!(looks(&mut trimmer, 500, 400), None, "but it was");
        // A load in the same memory that comes and goes.
        assert_eq!(looks(&mut trimmer, 500, 100), Some(1));
        assert_eq!(looks(&mut trimmer, 100, 100), None);
    }

    #[test]
    fn it_is_not_time_again_at_once() {
        let mut trimmer = Trimmer::new();
        assert!(!trimmer.look(100 * MIB, 90 * MIB));
        assert_eq!(looks(&mut trimmer, 100, 40), Some(3));
        assert_eq!(looks(&mut trimmer, 60, 0), Some(LOOKS_APART));
    }

    #[test]
    fn it_works_here() {
        let trimmer = Trimmer::new();
        let before = trimmer.resident().expect("proc is mounted");
        assert!(before > 100 << 10);
        malloc_trim();
        assert!(trimmer.resident().is_some());
    }
}
