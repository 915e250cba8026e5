//! Decides when queued replies are submitted while a turn still runs handlers, so that they do not
//! wait for a long turn.
//!
//! Reading the clock costs as much as the bookkeeping of a small message. So it is read only after
//! several handlers, or after each one if they are slow.

use rustix::time::{ClockId, clock_gettime};

/// Queued replies are submitted after this many handlers, at the next check. It equals the number
/// of completions that the kernel delivers in one call. A turn of that many submits its replies
/// with the wait.
const HANDLED_MAX: u32 = super::waits::AT_ONCE as u32;

/// Queued replies are submitted after this time, beside which a call costs little.
const WAITED_MAX_NS: u64 = 100_000;

/// The maximum number of handlers between two clock readings.
const STRIDE_MAX: u32 = 5;

pub(super) struct Pace {
    /// The number of handlers until the next check.
    left: u32,
    stride: u32,
    /// The number of handlers since replies were last submitted.
    handled: u32,
    /// The time when replies were last submitted in this turn, or else of the first clock reading,
    /// in nanoseconds. Zero before it.
    since: u64,
    /// The number of handlers since then.
    timed: u32,
}

impl Pace {
    pub(super) const fn new() -> Self {
        Self { left: STRIDE_MAX, stride: STRIDE_MAX, handled: 0, since: 0, timed: 0 }
    }

    /// A wait begins, which submits the queue. Its duration is unknown.
    #[inline]
    pub(super) fn begin(&mut self) {
        (self.left, self.handled, self.since) = (self.stride, 0, 0);
    }

    /// Whether to check if queued replies are due. Called before each handler.
    #[inline]
    pub(super) fn looks(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// No replies are queued now.
    pub(super) fn skip(&mut self) {
        self.left = self.stride;
    }

    /// Whether queued replies must be submitted now, by the [time](now) in nanoseconds.
    #[inline(always)]
    pub(super) fn is_due(&mut self, now: u64) -> bool {
        self.handled += self.stride;
        let has_waited = if self.since == 0 {
            // The handlers of the last turn were slow.
            self.stride == 1
        } else {
            self.timed += self.stride;
            let elapsed = now.saturating_sub(self.since);
            self.stride = stride(elapsed, self.timed);
            elapsed >= WAITED_MAX_NS
        };
        // The handler that this check precedes counts, and has not run yet.
        let is_due = has_waited || self.handled > HANDLED_MAX;
        if is_due || self.since == 0 {
            (self.since, self.timed) = (now, 0);
        }
        if is_due {
            self.handled = 0;
        }
        self.left = self.stride;
        is_due
    }
}

/// The time in nanoseconds by a clock that never goes back. Not zero.
#[inline(always)]
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.unsigned_abs()).max(1)
}

/// The number of handlers until the next clock reading, if `count` of them took `elapsed`
/// nanoseconds: as many as fit into the time that a reply may wait.
#[inline]
fn stride(elapsed: u64, count: u32) -> u32 {
    let budget = WAITED_MAX_NS * u64::from(count);
    // A few products are faster than two divisions.
    (2..=STRIDE_MAX).rev().find(|n| elapsed.saturating_mul(u64::from(*n)) <= budget).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn as_many_are_handled_between_two_clock_readings_as_fit_into_the_time() {
        for (elapsed, count, expected) in [
            (0, 1, STRIDE_MAX),
            (20_000, 1, STRIDE_MAX),
            (20_001, 1, 4),
            (80_000, 4, STRIDE_MAX),
            (33_333, 1, 3),
            (50_000, 1, 2),
            (50_001, 1, 1),
            (u64::MAX, 1, 1),
        ] {
            assert_eq!(stride(elapsed, count), expected, "{elapsed} ns for {count}");
        }
    }

    /// Simulates a turn of `count` completions that take `each` to handle. Returns how many were
    /// handled at each submission of replies.
    fn turn(pace: &mut Pace, count: u32, each: Duration) -> Vec<u32> {
        let (start, each) = (now(), u64::try_from(each.as_nanos()).unwrap());
        pace.begin();
        (0..count)
            .filter(|done| pace.looks() && pace.is_due(start + u64::from(*done) * each))
            .collect()
    }

    #[test]
    fn quick_handlers_answers_go_by_the_call_and_the_clock_is_rarely_looked_at() {
        let mut pace = Pace::new();
        for _ in 0..3 {
            // As many as the kernel delivers in one call: they go with the wait.
            assert_eq!(turn(&mut pace, HANDLED_MAX, Duration::from_micros(2)), []);
            assert_eq!(turn(&mut pace, 64, Duration::from_micros(2)), [24, 49]);
        }
    }

    #[test]
    fn slow_handlers_answers_go_after_each_and_again_together_when_they_are_quick() {
        let mut pace = Pace::new();
        let slow = Duration::from_micros(200);
        // At first nothing is known about the handlers.
        assert_eq!(turn(&mut pace, 12, slow), [9, 10, 11]);
        assert_eq!(turn(&mut pace, 6, slow), [0, 1, 2, 3, 4, 5]);
        let quick = turn(&mut pace, 64, Duration::from_micros(2));
        assert!(quick.len() <= 6, "{quick:?}");
        assert_eq!(turn(&mut pace, 40, Duration::from_micros(2)), [24]);
    }

    #[test]
    fn no_answer_waits_much_longer_than_it_may() {
        let mut pace = Pace::new();
        let each = Duration::from_micros(40);
        turn(&mut pace, 100, each);
        let submitted = turn(&mut pace, 100, each);
        assert!(submitted.windows(2).all(|two| two[1] - two[0] <= 4), "{submitted:?}");
    }
}
