//! Timers, for the limits of time.

use std::{
    future::Future,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use crate::transport::Transport;

/// A timer of a runtime. `TokioTimer` is tokio's, `AsyncIoTimer` async-io's,
/// and [`SleepTimer`] is made of any function that sleeps, such as that of windlass-task.
pub trait Timer: Unpin {
    /// The time since a moment that the timer chooses.
    fn now(&self) -> Duration;

    /// Waits until [`now`](Self::now) has reached `deadline`, and is never ready before. A later
    /// call replaces the deadline.
    fn poll_until(&mut self, context: &mut Context<'_>, deadline: Duration) -> Poll<()>;
}

/// A transport with a timer. The limits of time of [`Config`](crate::Config) need one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timed<S, T> {
    /// The transport.
    pub transport: S,
    timer: T,
}

impl<S: Transport, T: Timer> Timed<S, T> {
    /// Adds a timer.
    pub const fn new(transport: S, timer: T) -> Self {
        Self { transport, timer }
    }
}

impl<S: Transport, T: Timer> Transport for Timed<S, T> {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.transport.poll_read(context, buffer)
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.transport.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.transport.poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.transport.poll_flush(context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.transport.poll_shutdown(context)
    }

    fn now(&self) -> Option<Duration> {
        Some(self.timer.now())
    }

    fn poll_until(&mut self, context: &mut Context<'_>, deadline: Duration) -> Poll<()> {
        self.timer.poll_until(context, deadline)
    }
}

/// A timer made of two functions: one that tells the time, and one whose future sleeps.
///
/// ```
/// use std::time::{Duration, Instant};
/// use windlass_websocket::SleepTimer;
///
/// # mod runtime { pub(crate) async fn sleep(_: std::time::Duration) {} }
/// let start = Instant::now();
/// let timer = SleepTimer::new(move || start.elapsed(), |time| Box::pin(runtime::sleep(time)));
/// ```
#[derive(Debug)]
pub struct SleepTimer<N, F, P> {
    now: N,
    sleep: F,
    /// The deadline that is waited for.
    waiting: Option<(Duration, P)>,
}

impl<N, F, P> SleepTimer<N, F, P>
where
    N: Fn() -> Duration,
    F: FnMut(Duration) -> P,
    P: Future + Unpin,
{
    /// A timer of the functions `now` and `sleep`, which must go by the same clock.
    pub const fn new(now: N, sleep: F) -> Self {
        Self { now, sleep, waiting: None }
    }
}

impl<N, F, P> Timer for SleepTimer<N, F, P>
where
    N: Fn() -> Duration + Unpin,
    F: FnMut(Duration) -> P + Unpin,
    P: Future + Unpin,
{
    fn now(&self) -> Duration {
        (self.now)()
    }

    fn poll_until(&mut self, context: &mut Context<'_>, deadline: Duration) -> Poll<()> {
        loop {
            let now = (self.now)();
            if now >= deadline {
                self.waiting = None;
                return Poll::Ready(());
            }
            // A far deadline moves with every message. One sleep to an earlier one serves them all.
            let waiting = match &mut self.waiting {
                Some((until, sleep)) if *until <= deadline => sleep,
                place => &mut place.insert((deadline, (self.sleep)(deadline - now))).1,
            };
            if Pin::new(waiting).poll(context).is_pending() {
                return Poll::Pending;
            }
            self.waiting = None;
        }
    }
}

/// tokio's timer.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub struct TokioTimer {
    start: tokio::time::Instant,
    sleep: Option<Pin<Box<tokio::time::Sleep>>>,
}

#[cfg(feature = "tokio")]
impl TokioTimer {
    /// A timer of the current runtime.
    #[must_use]
    pub fn new() -> Self {
        Self { start: tokio::time::Instant::now(), sleep: None }
    }
}

#[cfg(feature = "tokio")]
impl Default for TokioTimer {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(feature = "tokio")]
impl Timer for TokioTimer {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn poll_until(&mut self, context: &mut Context<'_>, deadline: Duration) -> Poll<()> {
        let Some(deadline) = self.start.checked_add(deadline) else { return Poll::Pending };
        loop {
            // A far deadline moves with every message. One sleep to an earlier one serves them all.
            let sleep = match &mut self.sleep {
                Some(sleep) if sleep.deadline() <= deadline => sleep,
                place => place.insert(Box::pin(tokio::time::sleep_until(deadline))),
            };
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            let is_due = sleep.deadline() >= deadline || tokio::time::Instant::now() >= deadline;
            self.sleep = None;
            if is_due {
                return Poll::Ready(());
            }
        }
    }
}

/// async-io's timer.
#[cfg(feature = "async-io")]
#[derive(Debug)]
pub struct AsyncIoTimer {
    start: std::time::Instant,
    timer: Option<async_io::Timer>,
}

#[cfg(feature = "async-io")]
impl AsyncIoTimer {
    /// A timer.
    #[must_use]
    pub fn new() -> Self {
        Self { start: std::time::Instant::now(), timer: None }
    }
}

#[cfg(feature = "async-io")]
impl Default for AsyncIoTimer {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(feature = "async-io")]
impl Timer for AsyncIoTimer {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn poll_until(&mut self, context: &mut Context<'_>, deadline: Duration) -> Poll<()> {
        let Some(deadline) = self.start.checked_add(deadline) else { return Poll::Pending };
        if std::time::Instant::now() >= deadline {
            return Poll::Ready(());
        }
        let timer = self.timer.get_or_insert_with(async_io::Timer::never);
        timer.set_at(deadline);
        Pin::new(timer).poll(context).map(|_| ())
    }
}
