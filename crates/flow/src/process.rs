//! [`ForkGeneration`]: tells a child of fork(2) from the process that made something.
//! [`ForkGuard`]: tells a child with one load. [`PerProcess`]: a value of each process.
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
//! 4. The pointer of a [`PerProcess`] is null, or that of a box that was given up and is never
//!    freed.

#![allow(unsafe_code, reason = "a page of memory that is read; boxes that live for ever")]

mod page;

use core::{
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

pub use page::ForkGuard;
use page::WipedPage;

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

/// A value of each process, which the first use makes. A child of fork(2) makes one of its own, and
/// leaves that of its parent as it was.
///
/// No use waits for another thread, as that of a [`OnceLock`](std::sync::OnceLock) does: a thread
/// that makes the value at the time of a fork never goes on in the child. Of threads that make it
/// at once, all but one drop theirs.
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
/// use windlass_flow::process::PerProcess;
///
/// static CALLS: PerProcess<AtomicU32> = PerProcess::new();
///
/// CALLS.get().fetch_add(1, Relaxed);
/// assert_eq!(CALLS.get().load(Relaxed), 1, "in a child it would be 0");
/// ```
#[derive(Debug)]
pub struct PerProcess<T: 'static>(AtomicPtr<OfProcess<T>>);

#[derive(Debug)]
struct OfProcess<T> {
    process: ForkGeneration,
    value: T,
}

impl<T> PerProcess<T> {
    /// Without a value.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// The value of this process. It is never dropped.
    pub fn get(&self) -> &'static T {
        let mut found = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: the pointer is null or points to a box that lives for ever (rule 4), and any
            // thread may use it (the bounds of this impl).
            match unsafe { found.as_ref() } {
                Some(entry) if entry.process.is_current() => return &entry.value,
                _ => {}
            }
            let process = ForkGeneration::current();
            let own = Box::into_raw(Box::new(OfProcess { process, value: T::default() }));
            match self.0.compare_exchange(found, own, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => found = own,
                Err(other) => {
                    // SAFETY: it was a box above, and no other code knows it.
                    drop(unsafe { Box::from_raw(own) });
                    found = other;
                }
            }
        }
    }
}

/// Maps the page.
#[cold]
#[inline(never)]
fn first() -> u64 {
    let page = WipedPage::leak().map_or((&raw const NO_PAGE).cast_mut(), NonNull::as_ptr);
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

#[cfg(test)]
mod tests {
    use std::{cell::Cell, sync::Barrier};

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

    static STARTED: Barrier = Barrier::new(2);
    static LATE: Barrier = Barrier::new(2);
    thread_local! {
        static WAITS: Cell<bool> = const { Cell::new(false) };
    }

    struct Value(AtomicU64);

    impl Default for Value {
        fn default() -> Self {
            if WAITS.get() {
                STARTED.wait();
                LATE.wait();
            }
            Self(AtomicU64::new(5))
        }
    }

    /// As in a child of fork(2), in which the other thread never goes on.
    #[test]
    fn a_value_of_the_process_is_made_beside_a_thread_that_makes_it() {
        static VALUE: PerProcess<Value> = PerProcess::new();
        let other = std::thread::spawn(|| {
            WAITS.set(true);
            ptr::from_ref(VALUE.get()).addr()
        });
        STARTED.wait();
        let own = VALUE.get();
        own.0.store(6, Ordering::Relaxed);
        LATE.wait();
        assert_eq!(other.join().unwrap(), ptr::from_ref(own).addr(), "there is one");
        assert_eq!(VALUE.get().0.load(Ordering::Relaxed), 6);
    }

    #[test]
    fn a_child_has_a_value_of_its_own() {
        static VALUE: PerProcess<Value> = PerProcess::new();
        let mut parents = OfProcess { process: ForkGeneration::foreign(), value: Value::default() };
        // It outlives its use, which ends with the next call.
        VALUE.0.store(&raw mut parents, Ordering::Release);
        let own = VALUE.get();
        assert!(!ptr::eq(own, &raw const parents.value));
        assert!(ptr::eq(own, VALUE.get()));
    }

    #[test]
    fn without_a_page_the_process_id_decides() {
        assert_eq!(next(&NO_PAGE), next(&NO_PAGE));
        assert_eq!(next(&NO_PAGE) & !IS_ID, u64::from(std::process::id()));
    }
}
