//! tokio's timers.
//!
//! A timer of tokio starts when it is first polled, and is cancelled by being dropped. So `insert`
//! boxes a `Sleep` and polls it once, with a waker that counts. No task is spawned, so this is the
//! minimum cost of a timer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::time::Sleep;
use windlass_bench_driver::sleep::SleepSubject;
use windlass_bench_driver::source::Hits;
use windlass_bench_driver::timers::TimerSubject;
use windlass_bench_driver::{Error, Unsupported};

/// Wakers must be `Send`, but the driver's counters are not. So firings are counted here, and
/// `turn` adds them to the driver's counters.
#[derive(Default)]
struct Fired(AtomicU64);

impl Wake for Fired {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) struct Tokio {
    runtime: Runtime,
    fired: Arc<Fired>,
    waker: Waker,
    hits: Option<Hits>,
}

impl TimerSubject for Tokio {
    type Key = Pin<Box<Sleep>>;

    fn new(_backend: &str) -> Result<Self, Error> {
        let fired = Arc::new(Fired::default());
        let waker = Waker::from(Arc::clone(&fired));
        let runtime = Builder::new_current_thread().enable_time().build()?;
        Ok(Self { runtime, fired, waker, hits: None })
    }

    fn insert(&mut self, deadline: Instant, fired: Hits) -> Result<Self::Key, Error> {
        let _entered = self.runtime.enter();
        let mut sleep = Box::pin(tokio::time::sleep_until(deadline.into()));
        if self.hits.is_none() {
            self.hits = Some(fired);
        }
        match sleep.as_mut().poll(&mut Context::from_waker(&self.waker)) {
            Poll::Pending => Ok(sleep),
            Poll::Ready(()) => Err("the deadline has passed already".into()),
        }
    }

    fn every(&mut self, _period: Duration, _fired: Hits) -> Result<(), Error> {
        Err(Unsupported("tokio rounds every deadline up to a millisecond").into())
    }

    fn cancel(&mut self, key: Self::Key) -> Result<(), Error> {
        drop(key);
        Ok(())
    }

    fn reset(&mut self, key: &mut Self::Key, deadline: Instant) -> Result<(), Error> {
        key.as_mut().reset(deadline.into());
        Ok(())
    }

    fn turn(&mut self) -> Result<(), Error> {
        self.runtime.block_on(tokio::task::yield_now());
        let fired = self.fired.0.swap(0, Ordering::Relaxed);
        if let Some(hits) = &self.hits {
            (0..fired).for_each(|_| hits.add());
        }
        Ok(())
    }
}

impl SleepSubject for Tokio {
    fn new(backend: &str) -> Result<Self, Error> {
        <Self as TimerSubject>::new(backend)
    }

    fn sleep(&mut self, span: Duration) -> Result<(), Error> {
        self.runtime.block_on(async { tokio::time::sleep(span).await });
        Ok(())
    }
}
