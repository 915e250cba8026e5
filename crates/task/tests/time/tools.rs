//! Executors, and what tests look at.

use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use windlass_task::{Executor, with_turn, yield_now};

use crate::scenarios::Build;

pub(crate) fn executor(build: Build) -> Executor {
    Executor::builder().reactor(build()).build().unwrap()
}

/// Runs a future on an executor of its own.
pub(crate) fn run<F: Future>(build: Build, future: F) -> F::Output {
    executor(build).block_on(future)
}

/// The same with a paused clock.
pub(crate) fn run_paused<F: Future>(build: Build, future: F) -> F::Output {
    Executor::builder().reactor(build()).paused_clock(true).build().unwrap().block_on(future)
}

pub(crate) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// The number of the reactor's timers.
pub(crate) fn timers() -> usize {
    with_turn(|turn| turn.stats().timers).unwrap()
}

/// The number of turns.
pub(crate) fn turns() -> u64 {
    with_turn(|turn| turn.stats().turns).unwrap()
}

/// Lets the reactor have two turns.
pub(crate) async fn two_turns() {
    let end = turns() + 2;
    while turns() < end {
        yield_now().await;
    }
}

pub(crate) fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// Polls a future once, with the waker of the task.
pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

/// Polls a future at most `count` times, each in a poll of the task, and drops it.
pub(crate) async fn at_most<F: Future>(count: usize, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut polls = 0;
    poll_fn(|context| {
        if polls == count {
            return Poll::Ready(None);
        }
        polls += 1;
        let poll = future.as_mut().poll(context).map(Some);
        if poll.is_pending() && polls == count { Poll::Ready(None) } else { poll }
    })
    .await
}

/// Notes in which order things happen.
#[derive(Clone, Default)]
pub(crate) struct Log<T>(Rc<RefCell<Vec<T>>>);

impl<T> Log<T> {
    pub(crate) fn new() -> Self {
        Self(Rc::new(RefCell::new(Vec::new())))
    }

    pub(crate) fn add(&self, entry: T) {
        self.0.borrow_mut().push(entry);
    }

    pub(crate) fn take(&self) -> Vec<T> {
        self.0.take()
    }
}
