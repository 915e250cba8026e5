//! The threads that run blocking closures.
//!
//! 1. `Pool` is the executor's side. Its end closes the queue and drops what waits there.
//! 2. A closure that is queued is taken by an idle thread, or a thread is started for it while
//!    there are fewer than `threads_max`.
//! 3. A thread ends when it was idle for [`IDLE`], or when the pool is closed and the queue empty.

use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use windlass_flow::panics::discard_panic;

use crate::{blocking::call::Job, process::OwnProcess, task::shared::BlockingLimits};

/// An idle thread ends after this time.
const IDLE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Pool {
    shared: Arc<PoolShared>,
    /// The process that has the threads.
    process: OwnProcess,
}

#[derive(Default)]
struct PoolShared {
    state: Mutex<PoolState>,
    has_work: Condvar,
}

#[derive(Default)]
struct PoolState {
    queue: VecDeque<Arc<dyn Job>>,
    threads: usize,
    /// Threads that wait for work, or were told of some and do not run yet.
    idle: usize,
    is_closed: bool,
}

/// Why a closure was not queued.
pub(super) enum Rejected {
    Full,
    Thread(io::ErrorKind),
}

impl Pool {
    pub(super) fn push(&self, job: Arc<dyn Job>, limits: BlockingLimits) -> Result<(), Rejected> {
        let mut state = self.shared.lock();
        // Each idle thread is about to take one of the queue's first closures.
        let is_busy = state.queue.len() >= state.idle;
        let starts = is_busy && state.threads < limits.threads_max;
        if !starts && state.queue.len() >= state.idle + limits.queue_len_max {
            return Err(Rejected::Full);
        }
        state.queue.push_back(Arc::clone(&job));
        if !starts {
            drop(state);
            self.shared.has_work.notify_one();
            return Ok(());
        }
        // A new thread counts as idle until it takes a closure.
        state.threads += 1;
        state.idle += 1;
        drop(state);
        let shared = Arc::clone(&self.shared);
        let started =
            thread::Builder::new().name("windlass-blocking".into()).spawn(move || shared.run());
        match started {
            Ok(_) => Ok(()),
            Err(error) => self.without_thread(&job, &error),
        }
    }

    /// No thread was started. The closure stays in the queue if there is another one.
    #[cold]
    fn without_thread(&self, job: &Arc<dyn Job>, error: &io::Error) -> Result<(), Rejected> {
        let mut state = self.shared.lock();
        state.threads -= 1;
        state.idle -= 1;
        if state.threads > 0 {
            return Ok(());
        }
        state.queue.retain(|queued| !Arc::ptr_eq(queued, job));
        Err(Rejected::Thread(error.kind()))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // A child of fork(2) has none of the threads, and one of them may have held the lock.
            return;
        }
        let mut state = self.shared.lock();
        state.is_closed = true;
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        self.shared.has_work.notify_all();
        for job in queue {
            job.cancel();
        }
    }
}

impl PoolShared {
    /// No user code runs under the lock.
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One thread.
    fn run(&self) {
        while let Some(job) = self.next() {
            job.run();
            // The result is dropped here if there is no handle.
            discard_panic(catch_unwind(AssertUnwindSafe(|| drop(job))));
            self.lock().idle += 1;
        }
    }

    /// The next closure, for a thread that counts as idle. `None` if the thread ends.
    fn next(&self) -> Option<Arc<dyn Job>> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                state.idle -= 1;
                return Some(job);
            }
            let waited = if state.is_closed {
                true
            } else {
                let (guard, waited) =
                    self.has_work.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
                state = guard;
                waited.timed_out()
            };
            if waited && state.queue.is_empty() {
                state.threads -= 1;
                state.idle -= 1;
                return None;
            }
        }
    }
}
