//! [`ForkGeneration`]: tells a child of fork(2) from the process that made something.
//!
//! # Why this module may contain unsafe code
//!
//! A process ID does not tell them apart: a child in a PID namespace of its own may have the ID of
//! its parent. So the number of the generation is in a page that the kernel wipes in a child
//! (`MADV_WIPEONFORK`). The rules:
//!
//! 1. The page is mapped once and never unmapped. `PAGE` is null, or points to the page or to
//!    `NO_PAGE`, and keeps that value.
//! 2. The page consists of one atomic number, which is valid with any bits. Zero means that this
//!    process has no number yet.
//! 3. A new number is one more than `LAST`, which a child inherits. So it is none of its
//!    ancestors', and nothing else can have come to it by fork(2).

#![allow(unsafe_code, reason = "a page of memory, mapped and read")]

use core::{
    ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

/// Rule 1.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// Stands for a page where the kernel gives none: it is before 4.14, or has no memory. It stays
/// zero. Processes are then told apart by their IDs.
static NO_PAGE: AtomicU64 = AtomicU64::new(0);

/// Rule 3.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Marks the numbers that are process IDs.
const IS_ID: u64 = 1 << 63;

/// The process that has made something. A child of fork(2) has a copy of it, and is another
/// generation. So is a child of the child.
///
/// To read the current generation takes two loads and no system call. Processes that share their
/// memory, as after vfork(2), are one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkGeneration(u64);

impl ForkGeneration {
    /// That of this process.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        let page = PAGE.load(Ordering::Acquire);
        if page.is_null() {
            return Self(first());
        }
        // SAFETY: a pointer that is not null points to a number that lives for ever (rule 1).
        let page = unsafe { &*page };
        match page.load(Ordering::Relaxed) {
            0 => Self(next(page)),
            number => Self(number),
        }
    }

    /// Whether it is that of this process.
    #[inline]
    #[must_use]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }

    /// The generation of no process.
    #[must_use]
    pub const fn foreign() -> Self {
        Self(0)
    }
}

/// The number of a process that has none in this page.
#[cold]
#[inline(never)]
fn next(page: &AtomicU64) -> u64 {
    if ptr::eq(page, &raw const NO_PAGE) {
        return u64::from(std::process::id()) | IS_ID;
    }
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    // Another thread may be first.
    match page.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => number,
        Err(number) => number,
    }
}

/// Maps the page.
#[cold]
#[inline(never)]
fn first() -> u64 {
    let page = map().unwrap_or((&raw const NO_PAGE).cast_mut());
    // If another thread was first, one page stays mapped and unused.
    let page =
        match PAGE.compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => page,
            Err(earlier) => earlier,
        };
    // SAFETY: it points to the page that was mapped here or by another thread, or to the static
    // number. Both live for ever (rule 1).
    next(unsafe { &*page })
}

/// A page of zeros that the kernel wipes in a child.
#[cfg(not(miri))]
fn map() -> Option<*mut AtomicU64> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    const LENGTH: usize = 4096;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a mapping at an address that the kernel chooses replaces no other mapping.
    let page =
        unsafe { mmap_anonymous(ptr::null_mut(), LENGTH, protection, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the page was just mapped, and no other code knows it.
    if unsafe { madvise(page, LENGTH, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: the page is mapped, and nothing refers to it.
        let _ = unsafe { munmap(page, LENGTH) };
        return None;
    }
    Some(page.cast())
}

/// Miri has no fork(2) and no advice about memory.
#[cfg(miri)]
fn map() -> Option<*mut AtomicU64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_stays_the_same_on_all_threads() {
        let own = ForkGeneration::current();
        assert!(own.is_current() && !ForkGeneration::foreign().is_current());
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(ForkGeneration::current)).collect();
        assert!(threads.into_iter().all(|thread| thread.join().is_ok_and(|there| there == own)));
    }

    #[test]
    fn a_wiped_page_gets_a_new_number_once() {
        let page = AtomicU64::new(0);
        let own = next(&page);
        assert_eq!(page.load(Ordering::Relaxed), own);
        assert_eq!(next(&page), own, "another thread was first");
        page.store(0, Ordering::Relaxed);
        assert!(next(&page) > own);
    }

    #[test]
    fn without_a_page_the_process_id_decides() {
        assert_eq!(next(&NO_PAGE), next(&NO_PAGE));
        assert_eq!(next(&NO_PAGE) & !IS_ID, u64::from(std::process::id()));
    }
}
