//! A call: what waits in the queue for the loop, and for the answer at the other end.
//!
//! # The protocol of this module
//!
//! 1. A call is `Queued` until the loop takes its job out (`Running`), its caller does
//!    (`Withdrawn`), or the queue is given up (`Closed`). Whoever changes the state under the lock
//!    has the job: it runs, or comes back, and never both.
//! 2. The answer is written when the job has returned or panicked, unless the caller has left
//!    (`Withdrawn`): then it is dropped on the loop's thread.
//! 3. No code of the user's runs under the lock: jobs and answers are moved out of it before they
//!    run or are dropped.

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

/// How long a caller looks for the answer of a loop that polls busily before it sleeps. That loop
/// answers in a microsecond; a sleep and its end cost several. Where the loop does not poll,
/// spinning made a round trip four times slower (10 µs for 2.4, two processors, 2026-11): the two
/// are often on one processor.
const SPIN_MAX: Duration = Duration::from_micros(4);

/// What the loop does for another thread.
pub(super) trait Job: Send + 'static {
    type Output: Send + 'static;
    fn run(self, turn: Turn<'_>) -> Self::Output;
}

type Outcome<J> = Result<<J as Job>::Output, Box<dyn Any + Send>>;

enum State<J: Job> {
    Queued(J),
    Running,
    Answered(Outcome<J>),
    /// The queue was given up before the loop came to it.
    Closed(J),
    /// The caller has taken the job or the answer, or does not want it any more.
    Withdrawn,
}

struct Inner<J: Job> {
    state: State<J>,
    /// Of the task that waits for the answer.
    waker: Option<Waker>,
    /// A thread sleeps until the answer comes.
    is_awaited: bool,
}

/// One call, shared by the queue and the caller.
pub(super) struct Call<J: Job> {
    inner: Mutex<Inner<J>>,
    /// Where a thread waits for the answer.
    answered: Condvar,
    /// It is answered or closed: for a caller that spins.
    has_ended: AtomicBool,
}

impl<J: Job> Call<J> {
    pub(super) fn new(job: J) -> Arc<Self> {
        let inner = Inner { state: State::Queued(job), waker: None, is_awaited: false };
        Arc::new(Self {
            inner: Mutex::new(inner),
            answered: Condvar::new(),
            has_ended: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner<J>> {
        // Nothing panics under the lock (protocol 3), so a poisoned one is whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what there is to take out of an ended call.
    fn take_answer(inner: &mut Inner<J>) -> Option<Result<J::Output, CallError<J>>> {
        match mem::replace(&mut inner.state, State::Withdrawn) {
            State::Answered(Ok(output)) => Some(Ok(output)),
            State::Answered(Err(load)) => Some(Err(CallError::Panicked(load))),
            State::Closed(job) => Some(Err(CallError::Closed(job))),
            unfinished => {
                inner.state = unfinished;
                None
            }
        }
    }

    /// Looks for the answer for a while, before [`wait`](Self::wait) does.
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

    /// Waits for the answer until the deadline; `None`: however long it takes.
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
                    return Err(CallError::TimedOut(job));
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

    /// The caller leaves before the answer has come: with the job, if it has not begun.
    fn take_job(inner: &mut Inner<J>) -> Option<J> {
        match mem::replace(&mut inner.state, State::Withdrawn) {
            State::Queued(job) | State::Closed(job) => Some(job),
            State::Running | State::Withdrawn | State::Answered(_) => None,
        }
    }

    /// The answer, or the waker waits for it.
    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<Result<J::Output, CallError<J>>> {
        if let Some(answer) = Self::take_answer(&mut self.lock()) {
            return Poll::Ready(answer);
        }
        let mut spare = Some(context.waker().clone());
        let mut inner = self.lock();
        let is_pending = matches!(inner.state, State::Queued(_) | State::Running);
        if is_pending {
            mem::swap(&mut inner.waker, &mut spare);
        }
        drop(inner);
        // It may panic: the answer is not in this frame yet, or the panic would take it along.
        drop(spare);
        if is_pending {
            return Poll::Pending;
        }
        // Nobody but the caller takes an answer that has come.
        Self::take_answer(&mut self.lock()).map_or(Poll::Pending, Poll::Ready)
    }

    /// The job back, after the queue has refused it.
    pub(super) fn take_back(&self) -> Option<J> {
        Self::take_job(&mut self.lock())
    }

    /// The caller does not want the answer any more. A job that has not begun never will.
    pub(super) fn abandon(&self) {
        let mut inner = self.lock();
        let (state, waker) = (mem::replace(&mut inner.state, State::Withdrawn), inner.waker.take());
        drop(inner);
        // One by one: both may panic.
        let mut panics = Panics::default();
        panics.catch(|| drop(state));
        panics.catch(|| drop(waker));
        panics.resume();
    }

    /// Writes the answer and wakes the caller, who may have left: then it is dropped here (protocol
    /// 2).
    fn answer(&self, outcome: Outcome<J>) {
        let mut inner = self.lock();
        if let State::Running = inner.state {
            inner.state = State::Answered(outcome);
            self.wake_caller(inner);
        } else {
            drop(inner);
            harmless(|| drop(outcome));
        }
    }

    fn wake_caller(&self, mut inner: MutexGuard<'_, Inner<J>>) {
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

/// Runs the caller's code on the loop's thread. Its panic harms nobody here.
pub(super) fn harmless(run: impl FnOnce()) {
    discard_panic(catch_unwind(AssertUnwindSafe(run)));
}

/// A call as the queue has it, its types erased.
trait AnyCall: Send + Sync {
    fn run(&self, turn: Turn<'_>);
    fn close(&self);
}

impl<J: Job> AnyCall for Call<J> {
    fn run(&self, turn: Turn<'_>) {
        let mut inner = self.lock();
        let job = match mem::replace(&mut inner.state, State::Running) {
            State::Queued(job) => job,
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
        match mem::replace(&mut inner.state, State::Withdrawn) {
            State::Queued(job) => {
                inner.state = State::Closed(job);
                self.wake_caller(inner);
            }
            other => inner.state = other,
        }
    }
}

/// A call's place in the queue. Dropping it unrun answers the caller with [`CallError::Closed`].
pub(super) struct Place(Arc<dyn AnyCall>);

impl Place {
    pub(super) fn new<J: Job>(call: &Arc<Call<J>>) -> Self {
        Self(Arc::clone(call) as Arc<dyn AnyCall>)
    }

    pub(super) fn run(self, turn: Turn<'_>) {
        self.0.run(turn);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.close();
    }
}
