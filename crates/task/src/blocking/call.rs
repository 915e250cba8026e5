//! One closure on its way through the pool.
//!
//! 1. A call is queued, running, done or taken, under a lock. No user code runs under it.
//! 2. One thread takes the closure: a thread of the pool to run it, or the one that aborts it.
//! 3. The waker is taken with the step to done, and woken after it.

use core::{
    mem,
    task::{Poll, Waker},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard, PoisonError},
};

use windlass_flow::panics::discard_panic;

use crate::task::error::JoinError;

/// What the pool does with a call. Neither method panics.
pub(super) trait Job: Send + Sync {
    /// Runs the closure, unless it was taken.
    fn run(&self);
    /// Drops the closure, unless it was taken.
    fn cancel(&self);
}

/// What a handle does with a call.
pub(super) trait Output<T>: Send + Sync {
    fn poll_output(&self, waker: &Waker) -> Poll<Result<T, JoinError>>;
    fn abort(&self) -> bool;
    fn is_finished(&self) -> bool;
}

pub(super) struct Call<F, T>(Mutex<CallState<F, T>>);

struct CallState<F, T> {
    stage: Stage<F, T>,
    waker: Option<Waker>,
}

enum Stage<F, T> {
    Queued(F),
    Running,
    Done(Result<T, JoinError>),
    Taken,
}

impl<F, T> Call<F, T> {
    pub(super) fn new(closure: F) -> Self {
        Self(Mutex::new(CallState { stage: Stage::Queued(closure), waker: None }))
    }

    fn lock(&self) -> MutexGuard<'_, CallState<F, T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the closure if it has not started.
    pub(super) fn take_back(&self) -> Option<F> {
        let mut state = self.lock();
        match mem::replace(&mut state.stage, Stage::Running) {
            Stage::Queued(closure) => Some(closure),
            other => {
                state.stage = other;
                None
            }
        }
    }

    fn finish(&self, output: Result<T, JoinError>) {
        let mut state = self.lock();
        state.stage = Stage::Done(output);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            discard_panic(catch_unwind(AssertUnwindSafe(|| waker.wake())));
        }
    }

    /// Drops the closure if it has not started.
    fn withdraw(&self) -> bool {
        let Some(closure) = self.take_back() else { return false };
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(closure)));
        self.finish(Err(match dropped {
            Ok(()) => JoinError::Cancelled,
            Err(payload) => JoinError::panicked(payload),
        }));
        true
    }
}

impl<T: Send, F: FnOnce() -> T + Send> Job for Call<F, T> {
    fn run(&self) {
        let Some(closure) = self.take_back() else { return };
        self.finish(catch_unwind(AssertUnwindSafe(closure)).map_err(JoinError::panicked));
    }

    fn cancel(&self) {
        self.withdraw();
    }
}

impl<T: Send, F: Send> Output<T> for Call<F, T> {
    fn poll_output(&self, waker: &Waker) -> Poll<Result<T, JoinError>> {
        // Before the lock, because a clone is user code.
        let waker = waker.clone();
        let mut state = self.lock();
        match mem::replace(&mut state.stage, Stage::Taken) {
            Stage::Done(output) => {
                drop(state);
                Poll::Ready(output)
            }
            Stage::Taken => {
                drop(state);
                panic!("a `BlockingHandle` was polled after it was ready")
            }
            stage => {
                state.stage = stage;
                let old = state.waker.replace(waker);
                drop(state);
                drop(old);
                Poll::Pending
            }
        }
    }

    fn abort(&self) -> bool {
        self.withdraw()
    }

    fn is_finished(&self) -> bool {
        matches!(self.lock().stage, Stage::Done(_) | Stage::Taken)
    }
}
