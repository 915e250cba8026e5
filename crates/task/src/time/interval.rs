//! [`Interval`]: one tick after another.

use core::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll, ready},
};
use std::time::{Duration, Instant};

use crate::time::{Sleep, after, now, sleep_until};

/// A tick that is later than this is missed, or than a period if that is shorter.
const LATE: Duration = Duration::from_millis(5);

/// Ticks with a period. The first tick is at once.
///
/// # Panics
/// If the period is zero.
///
/// ```
/// use std::time::Duration;
/// use windlass_task::{block_on, time::{interval, now}};
///
/// block_on(async {
///     let start = now();
///     let mut interval = interval(Duration::from_millis(1));
///     for _ in 0..3 {
///         interval.tick().await;
///     }
///     assert!(now() - start >= Duration::from_millis(2));
/// });
/// ```
#[track_caller]
pub fn interval(period: Duration) -> Interval {
    interval_at(now(), period)
}

/// Ticks with a period. The first tick is at `start`.
///
/// # Panics
/// If the period is zero.
///
/// ```
/// use std::time::Duration;
/// use windlass_task::{block_on, time::{interval_at, now}};
///
/// block_on(async {
///     let start = now() + Duration::from_millis(1);
///     let mut interval = interval_at(start, Duration::from_millis(2));
///     assert_eq!(interval.tick().await, start);
///     assert_eq!(interval.tick().await, start + Duration::from_millis(2));
/// });
/// ```
#[track_caller]
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(period > Duration::ZERO, "the period of an interval is zero; it must be longer");
    Interval { sleep: sleep_until(start), period, missed: MissedTickBehavior::Burst }
}

/// When the ticks come that follow a missed one.
///
/// A tick is missed if it is taken later than 5 ms after its time, or than one period if that is
/// shorter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissedTickBehavior {
    /// At once, until all are made up for. Then at the multiples of the period as before.
    #[default]
    Burst,
    /// One period after the late tick was taken, and so on from there.
    Delay,
    /// At the next multiple of the period, counted from the start. Those in between are left out.
    Skip,
}

impl MissedTickBehavior {
    fn next(self, due: Instant, now: Instant, period: Duration) -> Instant {
        match self {
            Self::Burst => after(due, period),
            Self::Delay => after(now, period),
            Self::Skip => {
                let late = now.saturating_duration_since(due);
                let rest_ns = late.as_nanos() % period.as_nanos();
                // The rest is less than the period, and both fit if the sum does.
                let rest = Duration::new(
                    u64::try_from(rest_ns / 1_000_000_000).unwrap_or(u64::MAX),
                    u32::try_from(rest_ns % 1_000_000_000).unwrap_or(0),
                );
                after(now, period - rest)
            }
        }
    }
}

/// A stream of ticks, from [`interval()`] and [`interval_at`].
///
/// It is `Unpin`, `Send` and `Sync`, as a [`Sleep`]. An interval that nobody polls does nothing.
#[derive(Debug)]
#[must_use = "nothing happens before a tick is awaited"]
pub struct Interval {
    sleep: Sleep,
    period: Duration,
    missed: MissedTickBehavior,
}

impl Interval {
    /// Waits for the next tick. Returns the time at which it was due.
    ///
    /// A call that is dropped loses no tick.
    ///
    /// # Panics
    /// As a [`Sleep`].
    pub async fn tick(&mut self) -> Instant {
        poll_fn(|context| self.poll_tick(context)).await
    }

    /// As [`tick`](Self::tick), for futures that are made by hand.
    ///
    /// # Panics
    /// As a [`Sleep`].
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Instant> {
        ready!(Pin::new(&mut self.sleep).poll(context));
        let due = self.sleep.deadline();
        let now = now();
        let is_missed = now.saturating_duration_since(due) > LATE.min(self.period);
        let behavior = if is_missed { self.missed } else { MissedTickBehavior::Burst };
        self.sleep.reset(behavior.next(due, now, self.period));
        Poll::Ready(due)
    }

    /// The next tick is one period from now.
    pub fn reset(&mut self) {
        self.sleep.reset(after(now(), self.period));
    }

    /// The next tick is now: the next poll is ready.
    pub fn reset_immediately(&mut self) {
        self.sleep.reset(now());
    }

    /// The next tick is a time span from now.
    pub fn reset_after(&mut self, span: Duration) {
        self.sleep.reset(after(now(), span));
    }

    /// The next tick is at an instant.
    pub fn reset_at(&mut self, deadline: Instant) {
        self.sleep.reset(deadline);
    }

    /// The time between two ticks.
    #[must_use]
    pub fn period(&self) -> Duration {
        self.period
    }

    /// When the ticks come that follow a missed one. Default: [`MissedTickBehavior::Burst`].
    #[must_use]
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        self.missed
    }

    /// Sets when the ticks come that follow a missed one.
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        self.missed = behavior;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_tick_after_a_missed_one() {
        let due = Instant::now();
        let ms = Duration::from_millis;
        let cases = [(0, 10, 10, 10), (9, 10, 19, 10), (10, 10, 20, 20), (25, 10, 35, 30)];
        for (late, burst, delay, skip) in cases {
            let next = |behavior: MissedTickBehavior| behavior.next(due, due + ms(late), ms(10));
            assert_eq!(next(MissedTickBehavior::Burst), due + ms(burst));
            assert_eq!(next(MissedTickBehavior::Delay), due + ms(delay));
            assert_eq!(next(MissedTickBehavior::Skip), due + ms(skip));
        }
        let far = MissedTickBehavior::Skip.next(due, due + Duration::from_secs(5), Duration::MAX);
        assert!(far > due + Duration::from_secs(1 << 29));
    }
}
