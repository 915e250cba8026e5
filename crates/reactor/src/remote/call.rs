//! One call: the state shared by the queue, the loop and the caller.
//!
//! # The protocol of this module
//!
//! 1. A call is `Queued` until the loop takes its job (`Running`), the caller takes it back
//!    (`Withdrawn`), or the queue is closed (`Closed`). The side that changes the state under the
//!    lock gets the job, so the job either runs or is returned, never both.
//! 2. The answer is stored when the job has returned or panicked. If the caller has left
//!    (`Withdrawn`), the answer is dropped on the loop's thread.
//! 3. No user code runs under the lock: jobs and answers are moved out before they run or are
//!    dropped.

use core::{
    hint, mem,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll, Waker},
};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use windlass_flow::panics::{Panics, discard_panic};

use super::CallError;
use crate::Turn;

/// How long a caller spins for the answer of a loop that polls busily before it sleeps. That loop
/// answers sooner; sleeping and waking up cost more. For a loop that sleeps, spinning makes a round
/// trip slower, because the two threads are often on one processor.
const SPIN_MAX: Duration = Duration::from_micros(4);

/// A job that the loop runs for another thread.
pub(super) trait Job: Send + 'static {
    type Output: Send + 'static;
    fn run(self, turn: Turn<'_>) -> Self::Output;
}

type CallOutcome<J> = Result<<J as Job>::Output, Box<dyn Any + Send>>;

enum CallState<J: Job> {
    Queued(J),
    Running,
    Answered(CallOutcome<J>),
    /// The queue was closed before the loop took the job.
    Closed(J),
    /// The caller has taken the job or the answer, or has abandoned the call.
    Withdrawn,
}

struct CallInner<J: Job> {
    state: CallState<J>,
    /// The waker of the task that waits for the answer.
    waker: Option<Waker>,
    /// A thread sleeps until the answer comes.
    is_awaited: bool,
}

/// One call, shared by the queue and the caller.
pub(super) struct Call<J: Job> {
    inner: Mutex<CallInner<J>>,
    /// Wakes a thread that waits for the answer.
    answered: Condvar,
    /// Set when the call is answered or closed, for a caller that spins.
    has_ended: AtomicBool,
}

impl<J: Job> Call<J> {
    pub(super) fn new(job: J) -> Arc<Self> {
        let inner = CallInner { state: CallState::Queued(job), waker: None, is_awaited: false };
        Arc::new(Self {
            inner: Mutex::new(inner),
            answered: Condvar::new(),
            has_ended: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, CallInner<J>> {
        // No code under the lock panics (protocol 3), so the data of a poisoned lock is consistent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the answer out of an ended call, or the job out of a closed one.
    fn take_answer(inner: &mut CallInner<J>) -> Option<Result<J::Output, CallError<J>>> {
        match mem::replace(&mut inner.state, CallState::Withdrawn) {
            CallState::Answered(Ok(output)) => Some(Ok(output)),
            CallState::Answered(Err(load)) => Some(Err(CallError::Panicked(load.into()))),
            CallState::Closed(job) => Some(Err(CallError::Closed(job.into()))),
            unfinished => {
                inner.state = unfinished;
                None
            }
        }
    }

    /// Spins for the answer for a short time, before [`wait`](Self::wait).
    pub(super) fn spin(&self) {
        let start = Instant::now();
        while start.elapsed() < SPIN_MAX {
            for _ in 0..8 {
                if self.has_ended.load(Ordering::Acquire) {
                    return;
                }
                hint::spin_loop();
            }
        }
    }

    /// Waits for the answer until the deadline; `None`: without a limit.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Result<J::Output, CallError<J>> {
        let mut inner = self.lock();
        loop {
            if let Some(answer) = Self::take_answer(&mut inner) {
                return answer;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            inner.is_awaited = true;
            inner = match left {
                None => self.answered.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => {
                    let job = Self::take_job(&mut inner);
                    return Err(CallError::TimedOut(job.map(Into::into)));
                }
                Some(left) => {
                    self.answered
                        .wait_timeout(inner, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }

    /// The caller leaves before the answer has come, and takes the job back if it has not started.
    fn take_job(inner: &mut CallInner<J>) -> Option<J> {
        match mem::replace(&mut inner.state, CallState::Withdrawn) {
            CallState::Queued(job) | CallState::Closed(job) => Some(job),
            CallState::Running | CallState::Withdrawn | CallState::Answered(_) => None,
        }
    }

    /// Returns the answer, or stores the waker.
    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<Result<J::Output, CallError<J>>> {
        if let Some(answer) = Self::take_answer(&mut self.lock()) {
            return Poll::Ready(answer);
        }
        let mut spare = Some(context.waker().clone());
        let mut inner = self.lock();
        let is_pending = matches!(inner.state, CallState::Queued(_) | CallState::Running);
        if is_pending {
            mem::swap(&mut inner.waker, &mut spare);
        }
        drop(inner);
        // Dropping the spare waker may panic. The answer is not in this frame yet, so it would not
        // be lost.
        drop(spare);
        if is_pending {
            return Poll::Pending;
        }
        // Only the caller takes an answer that has come.
        Self::take_answer(&mut self.lock()).map_or(Poll::Pending, Poll::Ready)
    }

    /// Returns the job after the queue has rejected it.
    pub(super) fn take_back(&self) -> Option<J> {
        Self::take_job(&mut self.lock())
    }

    /// The caller abandons the call. A job that has not started never runs.
    pub(super) fn abandon(&self) {
        let mut inner = self.lock();
        let (state, waker) =
            (mem::replace(&mut inner.state, CallState::Withdrawn), inner.waker.take());
        drop(inner);
        // Dropped one by one, because each may panic.
        let mut panics = Panics::default();
        panics.catch(|| drop(state));
        panics.catch(|| drop(waker));
        panics.resume();
    }

    /// Stores the answer and wakes the caller. If the caller has left, the answer is dropped here
    /// (protocol 2).
    fn answer(&self, outcome: CallOutcome<J>) {
        let mut inner = self.lock();
        if let CallState::Running = inner.state {
            inner.state = CallState::Answered(outcome);
            self.wake_caller(inner);
        } else {
            drop(inner);
            harmless(|| drop(outcome));
        }
    }

    fn wake_caller(&self, mut inner: MutexGuard<'_, CallInner<J>>) {
        let waker = inner.waker.take();
        let is_awaited = inner.is_awaited;
        drop(inner);
        self.has_ended.store(true, Ordering::Release);
        if is_awaited {
            self.answered.notify_one();
        }
        if let Some(waker) = waker {
            harmless(|| waker.wake());
        }
    }
}

/// Runs the caller's code on the loop's thread and catches its panic.
pub(crate) fn harmless(run: impl FnOnce()) {
    discard_panic(catch_unwind(AssertUnwindSafe(run)));
}

/// A call in the queue, with its types erased.
trait AnyCall: Send + Sync {
    fn run(&self, turn: Turn<'_>);
    fn close(&self);
}

impl<J: Job> AnyCall for Call<J> {
    fn run(&self, turn: Turn<'_>) {
        let mut inner = self.lock();
        let job = match mem::replace(&mut inner.state, CallState::Running) {
            CallState::Queued(job) => job,
            other => {
                inner.state = other;
                return;
            }
        };
        drop(inner);
        let outcome = catch_unwind(AssertUnwindSafe(|| job.run(turn)));
        self.answer(outcome);
    }

    fn close(&self) {
        let mut inner = self.lock();
        match mem::replace(&mut inner.state, CallState::Withdrawn) {
            CallState::Queued(job) => {
                inner.state = CallState::Closed(job);
                self.wake_caller(inner);
            }
            other => inner.state = other,
        }
    }
}

/// A call's place in the queue. Dropping it before it has run answers the caller with
/// [`CallError::Closed`].
pub(crate) struct QueuedCall(Arc<dyn AnyCall>);

impl QueuedCall {
    pub(super) fn new<J: Job>(call: &Arc<Call<J>>) -> Self {
        Self(Arc::clone(call) as Arc<dyn AnyCall>)
    }

    pub(crate) fn run(self, turn: Turn<'_>) {
        self.0.run(turn);
    }
}

impl Drop for QueuedCall {
    fn drop(&mut self) {
        self.0.close();
    }
}
