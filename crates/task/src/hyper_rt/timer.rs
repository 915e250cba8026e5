//! [`WindlassTimer`].

use core::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use std::{
    sync::{Arc, Mutex, TryLockError},
    time::{Duration, Instant},
};

use crate::time::{self, Sleep};

/// The timer that hyper's builders take.
///
/// hyper makes a sleep for the head of each request, and drops it when the head is there. A timer
/// keeps the last sleep that was dropped, with its place in the reactor, and uses it again. So the
/// time limit of the next head is a store. The sleep that is kept wakes its task once in vain when
/// its time comes.
///
/// Make one for each connection, because a sleep that another task used must be started again.
/// Clones share the sleep that is kept.
///
/// Deadlines are those of [`crate::time::now`], also with a paused clock.
///
/// ```
/// use std::time::Duration;
/// use hyper::rt::Timer as _;
/// use windlass_task::{block_on, rt::WindlassTimer};
///
/// block_on(async {
///     let timer = WindlassTimer::new();
///     let start = timer.now();
///     timer.sleep(Duration::from_millis(2)).await;
///     assert!(timer.now() - start >= Duration::from_millis(2));
/// });
/// ```
///
/// # Panics
/// The futures panic as a [`Sleep`] does: on a thread that runs no executor.
#[derive(Clone, Default)]
pub struct WindlassTimer {
    kept: Kept,
}

/// The sleep that is used again. The lock is never waited for.
type Kept = Arc<Mutex<Option<Sleep>>>;

impl WindlassTimer {
    /// A timer that keeps no sleep yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl hyper::rt::Timer for WindlassTimer {
    fn sleep(&self, span: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        self.boxed(time::sleep(span))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        let sleep = match take(&self.kept) {
            Some(mut sleep) => {
                sleep.reset(deadline);
                sleep
            }
            None => time::sleep_until(deadline),
        };
        self.boxed(sleep)
    }

    fn now(&self) -> Instant {
        time::now()
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn hyper::rt::Sleep>>, deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<HyperSleep>() {
            Some(sleep) => {
                if let Some(sleep) = &mut sleep.get_mut().sleep {
                    sleep.reset(deadline);
                }
            }
            None => *sleep = self.sleep_until(deadline),
        }
    }
}

impl WindlassTimer {
    fn boxed(&self, sleep: Sleep) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(HyperSleep { sleep: Some(sleep), kept: Arc::clone(&self.kept) })
    }
}

fn take(kept: &Kept) -> Option<Sleep> {
    match kept.try_lock() {
        Ok(mut kept) => kept.take(),
        // Another thread uses a clone just now.
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().take(),
    }
}

impl fmt::Debug for WindlassTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindlassTimer").finish_non_exhaustive()
    }
}

/// A sleep that returns to its timer.
struct HyperSleep {
    /// `None` only in the destructor.
    sleep: Option<Sleep>,
    kept: Kept,
}

impl hyper::rt::Sleep for HyperSleep {}

impl Future for HyperSleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.sleep {
            Some(sleep) => Pin::new(sleep).poll(context),
            None => Poll::Ready(()),
        }
    }
}

impl Drop for HyperSleep {
    fn drop(&mut self) {
        let Some(sleep) = self.sleep.take().filter(Sleep::is_waiting) else { return };
        // The last user is this sleep: the timer and its clones are gone.
        if Arc::strong_count(&self.kept) == 1 {
            return;
        }
        // Another one is kept already, or another thread has the lock: the sleep ends here. It is
        // dropped after the lock is released.
        let _ends = match self.kept.try_lock() {
            Ok(mut kept) if kept.is_none() => kept.replace(sleep),
            _ => Some(sleep),
        };
    }
}
