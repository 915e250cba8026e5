//! Looks at the clock: whether a timer is due, and how long a wait may last for the next.

use std::time::{Duration, Instant};

use crate::{
    Key, Reactor, Tick,
    api::inline_call::InlineTimer,
    kernel::Kernel,
    time::{
        timers::{Due, Ended},
        timing::Timing,
    },
};

/// What a short turn needs to know of the timers.
pub(crate) enum TimerState {
    /// None is due for so many nanoseconds.
    NoneFor(u64),
    /// One is due. The reading of the clock is the turn's time.
    Due,
    /// The turn needs all steps: no timer waits, or the clock is custom. Such a clock may differ
    /// from the kernel's, and its time must be read again after the wait.
    Unclear,
}

impl Timing {
    /// Finds out whether a timer is due, with one reading of the clock.
    #[inline(always)]
    pub(crate) fn look_at_timers(&mut self) -> TimerState {
        if self.time.is_custom() {
            return TimerState::Unclear;
        }
        let now = self.time.read_ns();
        let bound = self.timers.bound_ns();
        if bound > now { TimerState::NoneFor(bound - now) } else { self.ask_for_timer(now) }
    }

    /// The same where the wheel must be asked.
    #[inline(never)]
    fn ask_for_timer(&mut self, now: u64) -> TimerState {
        match self.timers.next_deadline_after_advance(now) {
            Some(next) if next <= now => {
                self.time.begin_turn(now);
                TimerState::Due
            }
            Some(next) => TimerState::NoneFor(next - now),
            None => TimerState::Unclear,
        }
    }

    /// The time until the next timer is due, after the wheel has advanced to now.
    pub(crate) fn until_next_timer(&mut self) -> Option<Duration> {
        let now = self.time.read_ns();
        let next = self.timers.next_deadline_after_advance(now)?;
        Some(Duration::from_nanos(next.saturating_sub(now)))
    }

    /// A turn has looked at the clock in vain. After some of them the alarm is armed.
    #[inline(always)]
    pub(crate) fn note_look(&mut self, kernel: &mut Kernel, until_timer_ns: u64) {
        if self.alarm.counts_look() {
            self.arm_alarm(kernel, until_timer_ns);
        }
    }

    /// A timer fires, or a batch was full, so the alarm is not armed soon.
    #[inline]
    pub(crate) fn put_off_alarm(&mut self) {
        self.alarm.count_again();
    }

    /// Whether timers wait. If not, none can become due in this turn (rule 9).
    pub(crate) fn has_waiting(&self) -> bool {
        self.timers.waiting() > 0
    }

    /// Whether a timer may be due by the turn's time.
    pub(crate) fn may_be_due(&mut self) -> bool {
        let now = self.time.turn_ns();
        self.timers.may_be_due(now)
    }

    /// Whether a timer is due now, for a wait that has ended. True if that cannot be known, because
    /// the clock is custom.
    pub(crate) fn may_be_due_now(&mut self) -> bool {
        self.time.is_custom() || self.until_next_timer() == Some(Duration::ZERO)
    }

    #[inline]
    pub(crate) fn turn_ns(&mut self) -> u64 {
        self.time.turn_ns()
    }

    /// Discards the turn's reading of the clock.
    #[inline]
    pub(crate) fn end_turn(&mut self) {
        self.time.end_turn();
    }

    /// Takes the next timer that is due out of the wheel. Its handler is returned to
    /// [`settle`](Self::settle).
    #[inline]
    pub(crate) fn take_due(&mut self, now_ns: u64) -> Option<(Tick, InlineTimer<Reactor>)> {
        let Some(Due { key, call, deadline_ns, missed }) = self.timers.take_due(now_ns) else {
            self.timers.none_left();
            return None;
        };
        Some((Tick { key, deadline: self.time.instant(deadline_ns), missed }, call))
    }

    /// Whether no other timer is due, as far as that is known without a search.
    #[inline]
    pub(crate) fn is_quiet(&mut self, now_ns: u64) -> bool {
        let is_quiet = self.timers.is_quiet(now_ns);
        if is_quiet {
            self.timers.none_left();
        }
        is_quiet
    }

    /// Whether a timer is due.
    pub(crate) fn is_due(&mut self, now_ns: u64) -> bool {
        self.timers.next_deadline_after_advance(now_ns).is_some_and(|next| next <= now_ns)
    }

    /// The handler of a timer has returned or panicked. Reschedules the timer, or returns what is
    /// left of it.
    #[inline]
    pub(crate) fn settle(
        &mut self,
        key: Key,
        call: InlineTimer<Reactor>,
    ) -> Option<Ended<Reactor>> {
        self.timers.settle(key, call)
    }

    /// The time until a moment by the reactor's clock.
    pub(crate) fn until(&mut self, moment: Instant) -> Duration {
        let now = self.time.read_ns();
        Duration::from_nanos(self.time.since_epoch_ns(moment).saturating_sub(now))
    }
}
