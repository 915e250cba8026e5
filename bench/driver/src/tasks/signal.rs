//! A signal from other threads to a task, the same for all runtimes: only their wakers differ.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use super::{AN_HOUR, Runtime};
use crate::measured::{Error, Unsupported};
use crate::protocol::Case;
use crate::wakeup::{LoopSubject, Waker};

/// Wakes the task that waits for it.
#[derive(Clone, Debug, Default)]
pub struct Signal(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_set: AtomicBool,
    waker: Mutex<Option<std::task::Waker>>,
}

impl Signal {
    /// Sets the signal and wakes the task.
    #[inline]
    pub fn set(&self) {
        self.0.is_set.store(true, Ordering::SeqCst);
        let waker = self.0.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = &*waker {
            waker.wake_by_ref();
        }
    }

    /// Waits for the signal, and resets it.
    pub async fn wait(&self) {
        poll_fn(|context| self.poll(context)).await;
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let taken = || self.0.is_set.swap(false, Ordering::SeqCst);
        if taken() {
            return Poll::Ready(());
        }
        {
            let mut waker = self.0.waker.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *waker {
                Some(waker) if waker.will_wake(context.waker()) => {}
                other => *other = Some(context.waker().clone()),
            }
        }
        // A set before the waker was stored has found none.
        if taken() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Waker for Signal {
    #[inline]
    fn wake(&self) {
        self.set();
    }
}

/// A task that waits for a [`Signal`], on a runtime of its own.
pub struct TaskLoop<R, const LIVE_TIMERS: usize> {
    runtime: R,
    signal: Signal,
    live_timers: Vec<Pin<Box<dyn Future<Output = ()>>>>,
}

impl<R, const LIVE_TIMERS: usize> std::fmt::Debug for TaskLoop<R, LIVE_TIMERS> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskLoop").field("signal", &self.signal).finish_non_exhaustive()
    }
}

impl<R: Runtime, const LIVE_TIMERS: usize> LoopSubject for TaskLoop<R, LIVE_TIMERS> {
    type Waker = Signal;

    fn new(backend: &str, spin: Duration) -> Result<Self, Error> {
        if !spin.is_zero() {
            return Err(Unsupported("executors do not spin before they sleep").into());
        }
        let mut runtime = R::new(backend, &Case::TaskRoundTrip { live_timers: LIVE_TIMERS })?;
        let live_timers = started::<R>(&mut runtime, LIVE_TIMERS);
        Ok(Self { runtime, signal: Signal::default(), live_timers })
    }

    fn waker(&self) -> Signal {
        self.signal.clone()
    }

    fn run(&mut self, handler: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        let signal = self.signal.clone();
        self.runtime.block_on(async {
            loop {
                signal.wait().await;
                if !handler() {
                    return Ok(());
                }
            }
        })
    }
}

impl<R, const LIVE_TIMERS: usize> Drop for TaskLoop<R, LIVE_TIMERS> {
    fn drop(&mut self) {
        // Before their runtime.
        self.live_timers.clear();
    }
}

/// Starts sleeps of an hour. They are polled once, which is what starts them.
pub(crate) fn started<R: Runtime>(
    runtime: &mut R,
    count: usize,
) -> Vec<Pin<Box<dyn Future<Output = ()>>>> {
    runtime.block_on(async {
        let mut sleeps: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::with_capacity(count);
        for _ in 0..count {
            let mut sleep: Pin<Box<dyn Future<Output = ()>>> = Box::pin(R::sleep(AN_HOUR));
            let mut context = Context::from_waker(std::task::Waker::noop());
            assert!(sleep.as_mut().poll(&mut context).is_pending(), "it is due in an hour");
            sleeps.push(sleep);
        }
        sleeps
    })
}
