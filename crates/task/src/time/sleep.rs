//! [`Sleep`]: a future that is ready at a deadline.

use core::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use windlass::TimerReason;

use crate::{
    budget::poll_proceed,
    handle::with_turn,
    time::{
        after, now, own_now,
        timers::{TimerId, Timers},
    },
};

/// A shorter span is probably over when the sleep is polled. A look at the clock is far cheaper
/// than a turn for a timer.
const FRESH_MIN: Duration = Duration::from_micros(1);

/// Waits for a time span, from now on.
///
/// A span of zero is ready at the first poll, without a turn of the reactor and without a look at
/// the clock. A span that does not
/// fit into an [`Instant`] counts as thirty years. The resolution is that of the reactor's timers
/// ([`timer_resolution`](windlass::Builder::timer_resolution)), one microsecond by default.
///
/// The call may be outside of an executor. The poll may not.
///
/// ```
/// use std::time::{Duration, Instant};
/// use windlass_task::{block_on, time::sleep};
///
/// let start = Instant::now();
/// block_on(sleep(Duration::from_millis(2)));
/// assert!(start.elapsed() >= Duration::from_millis(2));
/// ```
#[inline]
pub fn sleep(span: Duration) -> Sleep {
    if span.is_zero() {
        return Sleep { deadline: None, state: State::Elapsed };
    }
    let state = if span < FRESH_MIN { State::New } else { State::Fresh };
    Sleep { deadline: Some(from_now(span)), state }
}

fn from_now(span: Duration) -> Instant {
    after(now(), span)
}

/// Waits until an instant. If it has passed, the future is ready at the first poll.
///
/// ```
/// use std::time::Duration;
/// use windlass_task::{block_on, time::{now, sleep_until}};
///
/// block_on(async {
///     let deadline = now() + Duration::from_millis(1);
///     sleep_until(deadline).await;
///     assert!(now() >= deadline);
/// });
/// ```
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline: Some(deadline), state: State::New }
}

/// The future of [`sleep()`] and [`sleep_until`].
///
/// Its timer starts when it is first polled. It is `Unpin`, `Send` and `Sync`. After it was ready,
/// it stays ready until it is [`reset`](Self::reset).
///
/// It belongs to the executor that has polled it last. Dropping it there cancels the timer at once.
/// Dropping it elsewhere hands the timer back: the executor cancels it with the next timer that
/// starts, ends or fires, at the latest when it is due.
///
/// # Panics
/// A poll panics:
/// - on a thread that runs no executor
/// - if the executor's reactor has [`timers_max`](windlass::Builder::timers_max) timers
///
/// ```
/// use std::{future::poll_fn, pin::Pin, time::Duration};
/// use windlass_task::{block_on, time::{now, sleep}};
///
/// block_on(async {
///     let mut limit = sleep(Duration::from_secs(30));
///     for _request in 0..3 {
///         // A later deadline is one store.
///         limit.reset(now() + Duration::from_secs(30));
///         poll_fn(|context| {
///             assert!(Pin::new(&mut limit).poll(context).is_pending());
///             std::task::Poll::Ready(())
///         })
///         .await;
///     }
/// });
/// ```
#[must_use = "nothing happens before the future is polled"]
pub struct Sleep {
    /// `None` for a span of zero, which reads no clock. It is elapsed from the start.
    deadline: Option<Instant>,
    state: State,
}

enum State {
    /// The deadline was computed from the time at which the sleep was made. So it has hardly passed
    /// yet, and the first poll reads no clock.
    Fresh,
    New,
    Armed(Armed),
    Elapsed,
}

/// A timer of the reactor that wakes.
struct Armed {
    timers: Arc<Timers>,
    /// Its deadline is never later than that of the sleep, except where a reset could not reach the
    /// reactor.
    timer: TimerId,
    waker: WakerId,
}

/// Tells wakers apart. The waker itself is in the timer, and alive until the timer fires. So the
/// addresses are not used again before that.
#[derive(Clone, Copy, PartialEq, Eq)]
struct WakerId {
    data: usize,
    vtable: usize,
}

impl WakerId {
    /// That of no waker, because a table has an address.
    const NONE: Self = Self { data: 0, vtable: 0 };

    fn of(waker: &Waker) -> Self {
        let vtable: *const _ = waker.vtable();
        Self { data: waker.data().addr(), vtable: vtable.addr() }
    }
}

impl Armed {
    /// Whether the timer has not fired, and will wake this waker in time.
    #[inline]
    fn holds(&self, deadline: Option<Instant>, waker: &Waker) -> bool {
        self.timers.are_current()
            && !self.timers.may_have_fired(self.timer.deadline_ns)
            && self.waker == WakerId::of(waker)
            && deadline.is_some_and(|deadline| {
                self.timers.since_epoch_ns(deadline) >= self.timer.deadline_ns
            })
    }
}

impl Sleep {
    /// The time at which it is ready. For a span of zero, that is the time of this call.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline.unwrap_or_else(now)
    }

    /// Whether the deadline has passed, by the clock of this thread's executor.
    #[must_use]
    pub fn is_elapsed(&self) -> bool {
        matches!(self.state, State::Elapsed) || self.deadline() <= now()
    }

    /// Changes the deadline. A sleep that has been ready waits again, from its next poll on.
    ///
    /// A later deadline costs no more than a store: the timer stays where it is, and the sleep is
    /// polled once in vain when it fires. An earlier one moves the timer, and if it has passed, the
    /// next poll is ready. On another thread, and where there is no turn
    /// ([`with_turn`](crate::with_turn())), an earlier deadline takes effect with the next poll.
    pub fn reset(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
        match &mut self.state {
            State::Armed(armed) => {
                if armed.timers.since_epoch_ns(deadline) < armed.timer.deadline_ns {
                    if let Some(moved) = armed.timers.bring_forward(armed.timer, deadline) {
                        armed.timer = moved;
                        if deadline <= now() {
                            // The timer wakes whoever waits. A poll before that looks at the clock.
                            armed.waker = WakerId::NONE;
                        }
                    }
                }
            }
            state => *state = State::New,
        }
    }

    /// Whether a timer was started for it, which is not known to have fired.
    #[cfg(feature = "hyper")]
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Armed(_))
    }

    /// As a poll, without a look at the budget. It looks at the clock although the timer has not
    /// fired, because a task that does not return to the executor keeps it from firing.
    #[inline]
    pub(super) fn poll_by_clock(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &self.state {
            State::Armed(_) if self.deadline() <= now() => {
                self.disarm();
                Poll::Ready(())
            }
            _ => self.poll_elapsed(context),
        }
    }

    /// Whether it was not polled yet.
    pub(super) fn is_new(&self) -> bool {
        matches!(self.state, State::New | State::Fresh)
    }

    /// As a poll, without a look at the budget.
    #[inline]
    fn poll_elapsed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &self.state {
            State::Elapsed => Poll::Ready(()),
            State::Armed(armed) if armed.holds(self.deadline, context.waker()) => Poll::Pending,
            State::Armed(_) | State::New | State::Fresh => self.poll_clock(context),
        }
    }

    fn poll_clock(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let now = if matches!(self.state, State::Fresh) { own_now() } else { Some(now()) };
        let deadline = self.deadline();
        if now.is_some_and(|now| deadline <= now) {
            // Before the timer ends, which drops a waker.
            let state = mem::replace(&mut self.state, State::Elapsed);
            state.end();
            return Poll::Ready(());
        }
        self.arm(deadline, context.waker());
        Poll::Pending
    }

    fn disarm(&mut self) {
        mem::replace(&mut self.state, State::Elapsed).end();
    }

    fn arm(&mut self, deadline: Instant, waker: &Waker) {
        let Some(timers) = Timers::current() else {
            panic!(
                "a sleep was polled on a thread that runs no executor: poll it inside `block_on`"
            )
        };
        // The clone may be the user's code, so nothing has changed yet.
        let clone = waker.clone();
        // The clone may have another address than the waker. Only that of the clone stays in use.
        let id = WakerId::of(&clone);
        let old = match mem::replace(&mut self.state, State::New) {
            State::Armed(Armed { timers, timer, .. }) if timers.are_current() => Some(timer),
            state => {
                state.end();
                None
            }
        };
        let started = with_turn(|turn| timers.start(turn, deadline, clone, old));
        match started {
            Some(Ok(timer)) => {
                self.state = State::Armed(Armed { timers, timer, waker: id });
            }
            Some(Err(reason)) => out_of_timers(reason),
            None => {
                if let Some(old) = old {
                    timers.end(old);
                }
                // The next poll may find a turn.
                waker.wake_by_ref();
            }
        }
    }
}

#[cold]
fn out_of_timers(reason: TimerReason) -> ! {
    panic!(
        "cannot start the timer of a sleep: {reason}; raise `timers_max` of the reactor's builder"
    )
}

impl State {
    fn end(self) {
        if let Self::Armed(Armed { timers, timer, .. }) = self {
            timers.end(timer);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let proceed = ready!(poll_proceed(context));
        ready!(self.poll_elapsed(context));
        proceed.made_progress();
        Poll::Ready(())
    }
}

impl Drop for Sleep {
    #[inline]
    fn drop(&mut self) {
        if matches!(self.state, State::Armed(_)) {
            self.disarm();
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("deadline", &self.deadline()).finish_non_exhaustive()
    }
}
