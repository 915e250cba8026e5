//! How a thread sleeps until one side of the counter has changed: rules 4 and 5 of
//! [`counter`](super).

use std::time::{Duration, Instant};

use crate::{
    sync::{AtomicU32, Ordering},
    sys::{Futex, Scope},
};

/// The waiters of one side. It lies in the page.
#[derive(Debug)]
#[repr(C)]
pub(super) struct WaitList {
    /// Not zero if a thread may be asleep. A stale mark costs one wake without effect.
    waiting: AtomicU32,
    wakes: Futex,
}

impl WaitList {
    pub(super) fn new() -> Self {
        Self { waiting: AtomicU32::new(0), wakes: Futex::new() }
    }

    /// Announces that the caller is about to sleep. The caller must look at the word again with
    /// [`look_again`](super::page::Page::look_again) before it does. Pass the returned number to
    /// [`sleep`](Self::sleep).
    pub(super) fn enlist(&self) -> u32 {
        let seen = self.wakes.seen();
        self.waiting.swap(1, Ordering::AcqRel);
        seen
    }

    /// Whether a thread may be asleep.
    #[cfg(all(test, not(loom)))]
    pub(super) fn is_marked(&self) -> bool {
        self.waiting.load(Ordering::Acquire) != 0
    }

    /// Sleeps unless a wake has come since `seen`. False if the whole time has passed. May return
    /// early.
    pub(super) fn sleep(&self, seen: u32, scope: Scope, timeout: Option<Duration>) -> bool {
        self.wakes.wait(seen, scope, timeout)
    }

    /// Wakes all sleeping threads. Without any, it costs one load.
    #[inline]
    pub(super) fn wake(&self, scope: Scope) {
        if self.waiting.load(Ordering::Acquire) != 0 {
            self.wake_all(scope);
        }
    }

    #[cold]
    fn wake_all(&self, scope: Scope) {
        if self.waiting.swap(0, Ordering::AcqRel) != 0 {
            self.wakes.wake_all(scope);
        }
    }
}

/// The end of a wait; `None` means no deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    pub(super) const NEVER: Self = Self(None);

    /// A time beyond the clock's range means no deadline.
    pub(super) fn after(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    /// The remaining time; `None` means no timeout.
    pub(super) fn left(self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }
}
