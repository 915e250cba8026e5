//! What this thread runs at the moment: an executor, its turn, and the budget of a poll.
//!
//! The variables have no destructor. So they can be read until the thread's very end, also in the
//! destructors of other thread-local variables.

use core::{cell::Cell, ptr};

use crate::task::shared::Shared;

pub(crate) struct CurrentThread {
    /// The executor that runs on this thread, or null. It lives until this is reset.
    executor: Cell<*const Shared>,
    /// The executor's turn, or null: `handle` says what it points to.
    pub(crate) turn: Cell<*mut ()>,
    /// Operations that the running poll may still do.
    pub(crate) budget: Cell<u32>,
    /// A poll is running, and `budget` holds.
    pub(crate) is_polling: Cell<bool>,
}

impl CurrentThread {
    #[allow(clippy::missing_const_for_fn, reason = "it is const where loom is not used")]
    const fn new() -> Self {
        Self {
            executor: Cell::new(ptr::null()),
            turn: Cell::new(ptr::null_mut()),
            budget: Cell::new(0),
            is_polling: Cell::new(false),
        }
    }
}

#[cfg(not(loom))]
std::thread_local! {
    static CURRENT: CurrentThread = const { CurrentThread::new() };
}

#[cfg(loom)]
loom::thread_local! {
    static CURRENT: CurrentThread = CurrentThread::new();
}

/// Reads the variables of this thread.
#[inline(always)]
pub(crate) fn with<T>(read: impl FnOnce(&CurrentThread) -> T) -> T {
    // It cannot fail, because there is no destructor.
    CURRENT.with(read)
}

/// Whether this thread runs this executor.
#[inline(always)]
pub(crate) fn is(shared: *const Shared) -> bool {
    with(|current| ptr::eq(current.executor.get(), shared))
}

/// The executor that this thread runs, or null.
#[inline(always)]
pub(crate) fn executor() -> *const Shared {
    with(|current| current.executor.get())
}

/// Makes an executor the current one, until it is dropped. The variables are then as before.
pub(crate) struct Entered {
    before: *const Shared,
    turn: *mut (),
    is_polling: bool,
    budget: u32,
}

impl Entered {
    pub(crate) fn new(shared: *const Shared) -> Self {
        with(|current| Self {
            before: current.executor.replace(shared),
            turn: current.turn.replace(ptr::null_mut()),
            is_polling: current.is_polling.replace(false),
            budget: current.budget.get(),
        })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        with(|current| {
            current.executor.set(self.before);
            current.turn.set(self.turn);
            current.is_polling.set(self.is_polling);
            current.budget.set(self.budget);
        });
    }
}
