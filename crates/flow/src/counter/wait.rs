//! How a thread sleeps until a side of the counter has changed: rules 4 and 5 of
//! [`counter`](super).

use std::time::{Duration, Instant};

use crate::{
    sync::{AtomicU32, Ordering},
    sys::{Futex, Scope},
};

/// Those who wait for one side. Lies in the page.
#[derive(Debug)]
#[repr(C)]
pub(super) struct WaitList {
    /// Not zero when somebody may sleep. A stale one costs a wake for nobody.
    waiting: AtomicU32,
    wakes: Futex,
}

impl WaitList {
    pub(super) fn new() -> Self {
        Self { waiting: AtomicU32::new(0), wakes: Futex::new() }
    }

    /// The caller is about to sleep. It must look at the word once more, by
    /// [`look_again`](super::page::Page::look_again), before it does; the number is for
    /// [`sleep`](Self::sleep).
    pub(super) fn enlist(&self) -> u32 {
        let seen = self.wakes.seen();
        self.waiting.swap(1, Ordering::AcqRel);
        seen
    }

    /// Whether somebody may sleep.
    #[cfg(all(test, not(loom)))]
    pub(super) fn is_marked(&self) -> bool {
        self.waiting.load(Ordering::Acquire) != 0
    }

    /// False when the whole time has passed. May return early.
    pub(super) fn sleep(&self, seen: u32, scope: Scope, timeout: Option<Duration>) -> bool {
        self.wakes.wait(seen, scope, timeout)
    }

    /// Wakes everybody who sleeps; one load when nobody does.
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

/// When a wait is over; of `None`, never.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    pub(super) const NEVER: Self = Self(None);

    /// Beyond the clock's end is never.
    pub(super) fn after(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    /// How long to wait still; `None` is for ever.
    pub(super) fn left(self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }
}
