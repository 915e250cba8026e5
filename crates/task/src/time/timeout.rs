//! [`timeout()`]: a future with a time limit.

#![allow(unsafe_code, reason = "a future is pinned inside of the future that limits it")]

use core::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use std::{
    io,
    time::{Duration, Instant},
};

use crate::{
    budget::{has_remaining, poll_proceed},
    time::{Sleep, sleep, sleep_until},
};

/// Limits the time of a future. The span begins when the future is first pending.
///
/// The future is polled first, so one that is ready at once starts no timer and reads no clock.
/// When the time is over, the result is [`Elapsed`]. The future is cancelled by dropping the
/// `TimeoutFuture`, which `.await` does.
///
/// A limit of zero lets the future be polled once.
///
/// ```
/// use std::{future::pending, time::Duration};
/// use windlass_task::{block_on, time::timeout};
///
/// block_on(async {
///     let limit = Duration::from_millis(1);
///     assert_eq!(timeout(limit, async { 5 }).await, Ok(5));
///     assert!(timeout(limit, pending::<()>()).await.is_err());
/// });
/// ```
pub fn timeout<F: Future>(span: Duration, future: F) -> TimeoutFuture<F> {
    TimeoutFuture { future, limit: Limit::After(span) }
}

/// Limits the time of a future: as [`timeout()`], until an instant.
///
/// ```
/// use std::{future::pending, time::Duration};
/// use windlass_task::{block_on, time::{now, timeout_at}};
///
/// block_on(async {
///     let deadline = now() + Duration::from_millis(1);
///     assert!(timeout_at(deadline, pending::<()>()).await.is_err());
/// });
/// ```
pub fn timeout_at<F: Future>(deadline: Instant, future: F) -> TimeoutFuture<F> {
    TimeoutFuture { future, limit: Limit::Sleep(sleep_until(deadline)) }
}

/// The future of [`timeout()`] and [`timeout_at`].
///
/// Each poll looks at the clock. So it holds for a future that uses up the budget of each poll, and
/// for one beside it. It does not end a poll of its future: one that loops over futures of other
/// crates needs [`budget::consume`](crate::budget::consume).
///
/// # Panics
/// As a [`Sleep`], when it is polled and the inner future is pending.
#[must_use = "nothing happens before the future is polled"]
pub struct TimeoutFuture<F> {
    /// Pinned with the whole.
    future: F,
    limit: Limit,
}

enum Limit {
    /// From the first pending poll on.
    After(Duration),
    Sleep(Sleep),
}

impl Limit {
    /// Whether the future was not pending yet.
    fn is_new(&self) -> bool {
        match self {
            Self::After(_) => true,
            Self::Sleep(sleep) => sleep.is_new(),
        }
    }

    fn sleep(&mut self) -> &mut Sleep {
        if let Self::After(span) = *self {
            *self = Self::Sleep(sleep(span));
        }
        match self {
            Self::Sleep(sleep) => sleep,
            Self::After(_) => unreachable!("it was replaced above"),
        }
    }
}

impl<F> TimeoutFuture<F> {
    /// The future inside.
    pub fn get_ref(&self) -> &F {
        &self.future
    }

    /// The future inside. It can be moved only if it is `Unpin`, or was not polled yet.
    pub fn get_mut(&mut self) -> &mut F {
        &mut self.future
    }

    /// The future inside, without the limit.
    pub fn into_inner(self) -> F {
        self.future
    }

    fn project(self: Pin<&mut Self>) -> (Pin<&mut F>, &mut Limit) {
        // SAFETY: the future is not moved out of the reference: it is pinned again right below. The
        // other field is not pinned, and is `Unpin`.
        let this = unsafe { self.get_unchecked_mut() };
        // SAFETY: the whole is pinned, and with it the future, which is never moved afterwards. The
        // whole has no destructor of its own, and is `Unpin` only if the future is.
        let future = unsafe { Pin::new_unchecked(&mut this.future) };
        (future, &mut this.limit)
    }
}

impl<F: Future> Future for TimeoutFuture<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (future, limit) = self.project();
        let had_budget = has_remaining();
        if let Poll::Ready(output) = future.poll(context) {
            return Poll::Ready(Ok(output));
        }
        let is_new = limit.is_new();
        ready!(limit.sleep().poll_by_clock(context));
        // The budget may be used up in every poll, by the future or by another one of the task. So
        // the limit does not depend on it. But a loop of limits that are over at once counts them.
        if has_remaining() || (is_new && !had_budget) {
            ready!(poll_proceed(context)).made_progress();
        }
        Poll::Ready(Err(Elapsed(())))
    }
}

impl<F> fmt::Debug for TimeoutFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("TimeoutFuture");
        match &self.limit {
            Limit::After(span) => debug.field("span", span),
            Limit::Sleep(sleep) => debug.field("deadline", &sleep.deadline()),
        };
        debug.finish_non_exhaustive()
    }
}

/// The time of a [`timeout()`] was over before its future was ready.
///
/// As an [`io::Error`], its kind is [`TimedOut`](io::ErrorKind::TimedOut).
///
/// ```
/// use std::{future::pending, io, time::Duration};
/// use windlass_task::{block_on, time::timeout};
///
/// async fn answer() -> io::Result<u32> {
///     timeout(Duration::from_millis(1), pending::<io::Result<u32>>()).await?
/// }
/// assert_eq!(block_on(answer()).unwrap_err().kind(), io::ErrorKind::TimedOut);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed(());

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the operation has timed out")
    }
}

impl core::error::Error for Elapsed {}

impl From<Elapsed> for io::Error {
    fn from(elapsed: Elapsed) -> Self {
        Self::new(io::ErrorKind::TimedOut, elapsed)
    }
}
