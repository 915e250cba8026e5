//! Threads and tasks that wait for room in a mailbox (rules 4 and 5 of the mailbox).

use core::{mem, task::Waker};
use std::{sync::PoisonError, time::Duration};

use crate::{
    panics::Panics,
    sync::{AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, fence},
};

/// The threads and tasks that wait.
pub(super) struct Room {
    waiters: Mutex<Waiters>,
    /// Threads wait here.
    freed: Condvar,
    /// The number of waiters. It changes only under the lock.
    waiting: AtomicUsize,
}

struct Waiters {
    threads: usize,
    /// In ascending order of tickets.
    tasks: Vec<(u64, Waker)>,
    next_ticket: u64,
}

/// A thread that waits. It holds the lock, except during [`wait`](Self::wait).
pub(super) struct WaitingThread<'r> {
    room: &'r Room,
    /// `None` only during a wait.
    waiters: Option<MutexGuard<'r, Waiters>>,
}

impl Room {
    pub(super) fn new() -> Self {
        let waiters = Waiters { threads: 0, tasks: Vec::new(), next_ticket: 0 };
        Self { waiters: Mutex::new(waiters), freed: Condvar::new(), waiting: AtomicUsize::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Waiters> {
        // No code panics under the lock, so a poisoned lock guards consistent data.
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the number of waiters. The caller then looks for room once more (rule 4).
    fn count(&self, waiters: &Waiters) {
        self.waiting.store(waiters.threads + waiters.tasks.len(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Registers this thread, which then looks for room again before it waits.
    pub(super) fn register_thread(&self) -> WaitingThread<'_> {
        let mut waiters = self.lock();
        waiters.threads += 1;
        self.count(&waiters);
        WaitingThread { room: self, waiters: Some(waiters) }
    }

    /// Registers the waker of a task, which then looks for room again before it waits. Returns its
    /// ticket.
    pub(super) fn register_task(&self, waker: Waker) -> u64 {
        let mut waiters = self.lock();
        let ticket = waiters.next_ticket;
        waiters.next_ticket += 1;
        waiters.tasks.push((ticket, waker));
        self.count(&waiters);
        ticket
    }

    /// Removes a waker, unless it was woken. The caller drops it.
    pub(super) fn unregister_task(&self, ticket: u64) -> Option<Waker> {
        let mut waiters = self.lock();
        let place = waiters.tasks.binary_search_by_key(&ticket, |(number, _)| *number).ok()?;
        let (_, waker) = waiters.tasks.remove(place);
        self.count(&waiters);
        Some(waker)
    }

    /// Wakes all waiters, if there are any, after room was given back.
    #[inline]
    pub(super) fn announce(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.announce_all();
        }
    }

    /// Wakes all waiters. A waker that panics does not prevent the other wake-ups.
    #[cold]
    pub(super) fn announce_all(&self) {
        let mut waiters = self.lock();
        let tasks = mem::take(&mut waiters.tasks);
        let has_threads = waiters.threads > 0;
        self.count(&waiters);
        drop(waiters);
        if has_threads {
            self.freed.notify_all();
        }
        let mut panics = Panics::default();
        for (_, waker) in tasks {
            panics.catch(|| waker.wake());
        }
        panics.resume();
    }
}

impl WaitingThread<'_> {
    /// Sleeps until room is announced, or until the timeout (`None`: no timeout).
    pub(super) fn wait(&mut self, timeout: Option<Duration>) {
        let Some(waiters) = self.waiters.take() else { return };
        let freed = &self.room.freed;
        self.waiters = Some(match timeout {
            None => freed.wait(waiters).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                freed.wait_timeout(waiters, timeout).unwrap_or_else(PoisonError::into_inner).0
            }
        });
    }
}

impl Drop for WaitingThread<'_> {
    fn drop(&mut self) {
        if let Some(mut waiters) = self.waiters.take() {
            waiters.threads -= 1;
            self.room.count(&waiters);
        }
    }
}
