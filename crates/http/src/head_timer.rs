//! [`HeadTimer`]: hyper's timer for one connection.

use core::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use windlass_task::time::{self, Sleep};

use crate::idle::Idle;

/// As [`WindlassTimer`](windlass_task::rt::WindlassTimer) it keeps the last sleep. It also tells
/// when hyper begins to wait for a head, and when it has waited for long.
pub(crate) struct HeadTimer(pub(crate) Arc<Idle>);

impl hyper::rt::Timer for HeadTimer {
    fn sleep(&self, span: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        self.sleep_until(time::sleep(span).deadline())
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        let idle = &self.0;
        let mut times = idle.times();
        let (mut deadline, mut first) = (deadline, deadline);
        if deadline == times.now + idle.header_timeout {
            if core::mem::take(&mut times.is_kept) {
                deadline = deadline.min(times.deadline);
            }
            times.deadline = deadline;
            first = match times.now.checked_add(idle.buffers_timeout) {
                Some(due) => due.min(deadline),
                None => deadline,
            };
            idle.waits();
        } else {
            idle.busy();
        }
        let sleep = match times.sleep.take() {
            Some(mut sleep) => {
                sleep.reset(first);
                sleep
            }
            None => time::sleep_until(first),
        };
        drop(times);
        Box::pin(HeadSleep { sleep: Some(sleep), deadline, idle: Arc::clone(idle) })
    }

    fn now(&self) -> Instant {
        let now = time::now();
        self.0.times().now = now;
        now
    }
}

/// A sleep that returns to its timer.
struct HeadSleep {
    /// `None` only in the destructor. Its deadline may be an earlier one.
    sleep: Option<Sleep>,
    deadline: Instant,
    idle: Arc<Idle>,
}

impl hyper::rt::Sleep for HeadSleep {}

impl Future for HeadSleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { sleep, deadline, idle } = &mut *self;
        let Some(sleep) = sleep else { return Poll::Ready(()) };
        loop {
            ready!(Pin::new(&mut *sleep).poll(context));
            if sleep.deadline() >= *deadline {
                return Poll::Ready(());
            }
            idle.is_now_due();
            sleep.reset(*deadline);
        }
    }
}

impl Drop for HeadSleep {
    fn drop(&mut self) {
        let before = self.sleep.take().and_then(|sleep| self.idle.times().sleep.replace(sleep));
        // It ends after the lock is released.
        drop(before);
    }
}
