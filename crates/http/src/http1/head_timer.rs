//! [`HeadTimer`]: hyper's timer for one connection. [`HeadLimit`]: what it measures.
//!
//! hyper makes a sleep for each head, and drops it when the head is there. So that sleep is a type
//! without a size, which takes no memory, and the connection's task has the timer:
//!
//! 1. hyper reads the clock and makes its sleep. That begins a wait ([`Idle`]).
//! 2. The task has one alarm, which is at the end of this wait or of an earlier one. So while the
//!    clock of step 1 is before the alarm, nothing has to be done, not even a poll.
//! 3. When the deadline has passed, the task polls hyper once more, and its sleep is ready in that
//!    poll alone ([`LATE`]).

use core::{
    cell::Cell,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use windlass_task::{
    Pinned, budget,
    rt::WindlassTimer,
    time::{self, Sleep, sleep_until},
};

use crate::http1::idle::Idle;

pub(crate) struct HeadTimer(pub(crate) Pinned<Rc<Idle>>);

impl hyper::rt::Timer for HeadTimer {
    fn sleep(&self, span: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        self.sleep_until(time::sleep(span).deadline())
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        if self.0.begins_wait(deadline) {
            // The head that was late has come in this poll. This one is not.
            LATE.set(false);
            return Box::pin(HeadSleep);
        }
        WindlassTimer::new().sleep_until(deadline)
    }

    fn now(&self) -> Instant {
        let now = time::now();
        self.0.set_now(now);
        now
    }
}

std::thread_local! {
    /// Whether the head of the connection that is being polled is late.
    static LATE: Cell<bool> = const { Cell::new(false) };
}

/// The sleep for a head.
struct HeadSleep;

impl hyper::rt::Sleep for HeadSleep {}

impl Future for HeadSleep {
    type Output = ();

    #[inline]
    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<()> {
        if LATE.get() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Polls a connection of hyper. A service may poll another connection inside of it, and may panic.
#[inline]
pub(crate) fn poll_with<T>(is_late: bool, poll: impl FnOnce() -> T) -> T {
    struct Restore(bool);

    impl Drop for Restore {
        #[inline]
        fn drop(&mut self) {
            LATE.set(self.0);
        }
    }

    let _restore = Restore(LATE.replace(is_late));
    poll()
}

/// The alarm of a connection's task.
pub(crate) struct HeadLimit {
    idle: Rc<Idle>,
    /// Its deadline is the alarm's time. It is changed to a later one only when it has fired.
    sleep: Option<Sleep>,
    /// The alarm's time, if it is not after the end of the next wait, whenever that begins.
    near: Option<Instant>,
}

impl HeadLimit {
    pub(crate) const fn new(idle: Rc<Idle>) -> Self {
        Self { idle, sleep: None, near: None }
    }

    /// Whether a head is late, once for each head. Call it after each poll of hyper.
    #[inline]
    pub(crate) fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        if !self.idle.is_waiting() {
            return false;
        }
        match (self.idle.has_begun(), self.near) {
            // The alarm has not fired, and will.
            (Some(clock), Some(alarm)) if clock < alarm => false,
            _ => self.is_over(context),
        }
    }

    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        loop {
            let due = self.idle.next_time();
            if self.poll_alarm(due, context).is_pending() {
                return false;
            }
            if self.idle.ends_stage() {
                return true;
            }
        }
    }

    /// Waits for the deadline of the head, without hyper.
    pub(crate) fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.poll_alarm(self.idle.deadline(), context)
    }

    fn poll_alarm(&mut self, due: Instant, context: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| sleep_until(due));
        if sleep.deadline() > due {
            sleep.reset(due);
        }
        while Pin::new(&mut *sleep).poll(context).is_ready() {
            if sleep.deadline() >= due {
                self.near = None;
                return Poll::Ready(());
            }
            sleep.reset(due);
        }
        // A poll without a budget is pending, too, and starts nothing.
        let is_near = self.idle.is_first_stage() && budget::has_remaining();
        self.near = is_near.then(|| sleep.deadline());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use core::future::poll_fn;

    use windlass_task::Executor;

    use super::*;

    /// As a request that comes in the same poll as the alarm.
    #[test]
    fn an_alarm_that_has_fired_is_set_again() {
        const HOUR: Duration = Duration::from_secs(3600);
        let mut executor = Executor::builder().paused_clock(true).build().unwrap();
        executor.block_on(async {
            let idle = Rc::new(Idle::new(HOUR, 2 * HOUR));
            let mut limit = HeadLimit::new(Rc::clone(&idle));
            let mut begin_at = |clock: Instant, context: &mut Context<'_>| {
                idle.set_now(clock);
                assert!(idle.begins_wait(clock + 2 * HOUR));
                assert!(!limit.is_late(context));
                let alarm = limit.sleep.as_ref().map(Sleep::deadline);
                assert_eq!(limit.near, alarm);
                idle.serves();
                assert!(!limit.is_late(context));
                Poll::Ready(alarm.unwrap())
            };
            let start = time::now();
            assert_eq!(poll_fn(|context| begin_at(start, context)).await, start + HOUR);
            let half = start + HOUR / 2;
            let kept = poll_fn(|context| begin_at(half, context)).await;
            assert_eq!(kept, start + HOUR, "it is early enough");
            // The alarm fires meanwhile.
            time::sleep(HOUR).await;
            let next = poll_fn(|context| begin_at(start + HOUR, context)).await;
            assert_eq!(next, start + 2 * HOUR);
        });
    }
}
