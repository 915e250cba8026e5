//! [`OwnProcess`]: tells a child of fork(2) from the process that made something.

#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use windlass_flow::process::ForkGeneration;

/// The process that has made something. A child of fork(2) has a copy of it, with the same sockets
/// and with locks as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnProcess(ForkGeneration);

impl Default for OwnProcess {
    fn default() -> Self {
        Self::new()
    }
}

impl OwnProcess {
    pub(crate) fn new() -> Self {
        Self(ForkGeneration::current())
    }

    pub(crate) fn is_current(self) -> bool {
        self.0.is_current()
    }

    /// Locks, for a destructor, something that this process has made. `None` if it is a child of
    /// fork(2), and a thread of the parent held the lock: it is never released in the child. No
    /// code that may panic runs under the lock.
    #[cfg(not(loom))]
    pub(crate) fn lock<T>(self, mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
        match mutex.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if !self.is_current() => None,
            Err(TryLockError::WouldBlock) => {
                Some(mutex.lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }

    /// A process that is not this one.
    #[cfg(test)]
    #[cfg_attr(loom, allow(dead_code, reason = "the models have one process"))]
    pub(crate) fn foreign() -> Self {
        Self(ForkGeneration::foreign())
    }
}
