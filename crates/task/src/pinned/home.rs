//! The way home of values that are dropped on other threads.
//!
//! A task of the executor waits for them: its waker may be used on any thread. It starts with the
//! executor's first [`Pinned`](crate::Pinned).

use core::{
    cell::OnceCell,
    future::poll_fn,
    mem::{self, ManuallyDrop},
    pin::Pin,
    task::{Context, Poll, Waker},
};
use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
};

use windlass_flow::panics::discard_panic;

use crate::{handle::Handle, process::OwnProcess};

/// So many values are dropped in one poll of the task.
const DROPS_PER_POLL: usize = 64;

/// The list of one executor.
pub(super) struct Home {
    process: OwnProcess,
    returned: Mutex<Returned>,
}

#[derive(Default)]
struct Returned {
    /// The executor has ended (protocol 4).
    is_closed: bool,
    /// At most one entry for each `Pinned` that was made.
    values: VecDeque<Away>,
    waker: Option<Waker>,
}

/// The box of a value that waits for its home thread. Dropping this type leaks the value, so that a
/// list which is dropped elsewhere does not run its destructor (protocol 3).
struct Away(ManuallyDrop<Pin<Box<dyn AnyValue>>>);

// SAFETY: the value is dropped by `end_alone`, which only the home thread calls. On other threads
// the box is moved, which does not touch the value.
unsafe impl Send for Away {}

impl Away {
    /// Drops the value. For the home thread. There is nobody to report a panic to, and the other
    /// values must be dropped.
    fn end_alone(self) {
        let value = ManuallyDrop::into_inner(self.0);
        discard_panic(catch_unwind(AssertUnwindSafe(|| drop(value))));
    }
}

trait AnyValue {}
impl<T> AnyValue for T {}

/// The executor's reference, which stays on its thread. Dropping it at the executor's end closes
/// the list.
#[derive(Default)]
struct LocalHome(OnceCell<Arc<Home>>);

impl Drop for LocalHome {
    fn drop(&mut self) {
        let Some(home) = self.0.get() else { return };
        let mut returned = if home.is_own_process() {
            home.returned()
        } else {
            // A child of fork(2): a thread of the parent may have had the lock, for ever. The
            // values are then leaked.
            match home.returned.try_lock() {
                Ok(returned) => returned,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            }
        };
        returned.is_closed = true;
        let values = mem::take(&mut returned.values);
        drop(returned);
        for value in values {
            value.end_alone();
        }
    }
}

impl Home {
    /// The list of the executor that this thread runs.
    #[track_caller]
    pub(super) fn current() -> Arc<Self> {
        let handle = Handle::expect_current();
        let local = handle.extension::<LocalHome>();
        if let Some(home) = local.0.get() {
            return Arc::clone(home);
        }
        Arc::clone(local.0.get_or_init(|| Self::start(&handle)))
    }

    #[cold]
    fn start(handle: &Handle) -> Arc<Self> {
        let home = Arc::new(Self { process: OwnProcess::new(), returned: Mutex::default() });
        let receiver = Arc::clone(&home);
        handle.owner().spawn_detached(poll_fn(move |context| receiver.poll_returned(context)));
        home
    }

    fn is_own_process(&self) -> bool {
        self.process.is_current()
    }

    /// Nothing that may panic runs under the lock.
    fn returned(&self) -> MutexGuard<'_, Returned> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a value that was dropped on another thread (protocol 3).
    #[cold]
    pub(super) fn give_back<T: 'static>(&self, value: Pin<Box<T>>) {
        let value = Away(ManuallyDrop::new(value));
        if !self.is_own_process() {
            // A child of fork(2), which has no copy of the home thread.
            return;
        }
        let mut returned = self.returned();
        if returned.is_closed {
            return;
        }
        returned.values.push_back(value);
        let waker = returned.waker.take();
        drop(returned);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Drops the values that were handed back. It runs on the home thread, in a task.
    fn poll_returned(&self, context: &Context<'_>) -> Poll<()> {
        if !self.is_own_process() {
            // A task that has forked, in the child: the rest of the turn runs there, too. A thread
            // of the parent may have had the lock, for ever.
            return Poll::Pending;
        }
        for _ in 0..DROPS_PER_POLL {
            let mut returned = self.returned();
            let Some(value) = returned.values.pop_front() else {
                let before = returned.waker.replace(context.waker().clone());
                drop(returned);
                drop(before);
                return Poll::Pending;
            };
            drop(returned);
            value.end_alone();
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the check, this test hangs.
    #[test]
    fn a_child_does_not_wait_for_a_lock_of_its_parent() {
        let home = Home { process: OwnProcess::foreign(), returned: Mutex::default() };
        let _for_ever = home.returned();
        assert!(home.poll_returned(&Context::from_waker(Waker::noop())).is_pending());
    }
}
