//! The request to stop, from any thread to one worker.

use core::task::Waker;
use std::{
    rc::Rc,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::fd::waiters::{ListedWaiter, Waiters};

/// A request to stop, with a deadline or without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StopRequest {
    pub(super) is_made: bool,
    pub(super) deadline: Option<Instant>,
}

/// Where other threads leave the request, and the supervisor its waker.
#[derive(Default)]
pub(super) struct StopSignal(Mutex<(StopRequest, Option<Waker>)>);

impl StopSignal {
    /// Requests a stop. Of two deadlines, the earlier one holds.
    pub(super) fn request(&self, deadline: Option<Instant>) {
        let mut state = self.lock();
        state.0.is_made = true;
        state.0.deadline = match (state.0.deadline, deadline) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let waker = state.1.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The request so far. The waker, which is that of a task, is woken by the next one.
    pub(super) fn poll(&self, waker: &Waker) -> StopRequest {
        let mut state = self.lock();
        state.1 = Some(waker.clone());
        state.0
    }

    /// No user code runs under the lock: wakers are those of tasks.
    fn lock(&self) -> MutexGuard<'_, (StopRequest, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The futures of one worker that wait for its stop.
#[derive(Clone, Default)]
pub(super) struct StopWaiters(Rc<(core::cell::Cell<bool>, Waiters)>);

impl StopWaiters {
    pub(super) fn is_set(&self) -> bool {
        self.0.0.get()
    }

    pub(super) fn set(&self) {
        if !self.0.0.replace(true) {
            self.0.1.wake_all();
        }
    }

    pub(super) async fn wait(&self) {
        let waiter = ListedWaiter::new(&self.0.1);
        core::future::poll_fn(|context| {
            if self.is_set() {
                return core::task::Poll::Ready(());
            }
            waiter.set(context.waker());
            core::task::Poll::Pending
        })
        .await;
    }
}
