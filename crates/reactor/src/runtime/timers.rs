//! Timers in the loop: how long a wait may last for them, and firing those that are due.

use std::{io, time::Duration};

use rustix::io::Errno;

use crate::{
    Key, Reactor, Tick, Turn,
    api::inline_timer::InlineTimer,
    cell::NO_GROUP,
    runtime::{run_loop::TurnGuard, timing::Timing},
    time::timers::Due,
};

/// What a short turn needs to know of the timers.
pub(super) enum TimerState {
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
    pub(super) fn look_at_timers(&mut self) -> TimerState {
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
    pub(super) fn until_next_timer(&mut self) -> Option<Duration> {
        let now = self.time.read_ns();
        let next = self.timers.next_deadline_after_advance(now)?;
        Some(Duration::from_nanos(next.saturating_sub(now)))
    }
}

impl Reactor {
    /// A short turn in which timers are due. Its wait does not block, and its time has been read.
    #[inline(never)]
    pub(super) fn run_timer_turn(&mut self) -> io::Result<usize> {
        match self.fetch_at_once() {
            Ok(count) => Ok(self.finish_timer_turn(count)),
            Err(Errno::INTR) => self.run_full_turn(Some(Duration::ZERO)),
            Err(errno) => {
                self.timing.time.end_turn();
                // In a child of fork(2) the error is another one.
                self.kernel.check_owner()?;
                Err(errno.into())
            }
        }
    }

    /// The rest of a short turn whose wait has ended for a timer, without events.
    #[inline(never)]
    pub(super) fn after_wait_for_timer(&mut self) -> io::Result<usize> {
        match self.timing.look_at_timers() {
            TimerState::Due => Ok(self.finish_timer_turn(0)),
            // The timer was cancelled or reset, so the wait goes on.
            TimerState::NoneFor(_) | TimerState::Unclear => self.run_full_turn(None),
        }
    }

    /// The rest of a short turn whose only event was the alarm. The turn has been counted.
    #[inline(never)]
    pub(super) fn after_alarm(&mut self, at_once: bool) -> io::Result<usize> {
        self.kernel.counters().turns -= 1;
        match self.timing.look_at_timers() {
            TimerState::Due => Ok(self.finish_timer_turn(0)),
            // As above.
            TimerState::NoneFor(_) | TimerState::Unclear => {
                self.run_full_turn(at_once.then_some(Duration::ZERO))
            }
        }
    }

    /// The steps of a short turn after the wait: events, then due timers.
    fn finish_timer_turn(&mut self, count: usize) -> usize {
        self.kernel.counters().turns += 1;
        self.kernel.counters().events += count as u64;
        // Set until they have fired. If anything panics before that, they come first in the next
        // turn (rule 8).
        self.turn.timers_left = true;
        let guard = TurnGuard { reactor: self, counted: true };
        if count > 0 {
            guard.reactor.run_events();
        }
        guard.reactor.kernel.set_calling(true);
        guard.reactor.fire_timers();
        guard.finish_short(count)
    }

    /// Fires due timers, up to the limit of one turn. `timers_left` is set if one may be due, so
    /// that the others fire in the next turn if one panics (rule 8).
    pub(super) fn fire_timers(&mut self) {
        self.timing.alarm.count_again();
        let now = self.timing.time.turn_ns();
        for _ in 0..self.limits.timers_per_turn {
            let Some(due) = self.timing.timers.take_due(now) else {
                self.turn.timers_left = false;
                self.timing.timers.none_left();
                return;
            };
            self.fire(due);
            if self.timing.timers.is_quiet(now) {
                self.turn.timers_left = false;
                self.timing.timers.none_left();
                return;
            }
        }
        self.turn.timers_left =
            self.timing.timers.next_deadline_after_advance(now).is_some_and(|t| t <= now);
    }

    fn fire(&mut self, due: Due<Self>) {
        let Due { key, call, deadline_ns, missed } = due;
        self.kernel.counters().timers_fired += 1;
        let tick = Tick { key, deadline: self.timing.time.instant(deadline_ns), missed };
        let mut firing = Firing { reactor: self, key, call: Some(call) };
        let Firing { reactor, call: Some(call), .. } = &mut firing else {
            return;
        };
        reactor.timed(|reactor| call.fire(tick, Turn::new(reactor)));
        drop(firing);
    }
}

/// A timer whose handler runs. Its drop reschedules or removes the timer, even after a panic.
struct Firing<'r> {
    reactor: &'r mut Reactor,
    key: Key,
    call: Option<InlineTimer<Reactor>>,
}

impl Drop for Firing<'_> {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let reactor = &mut *self.reactor;
        let Some(ended) = reactor.timing.timers.settle(self.key, call) else {
            return;
        };
        if ended.group != NO_GROUP {
            reactor.groups.leave(&reactor.kernel, ended.group, self.key);
        }
        if let Some(call) = ended.call {
            reactor.kernel.drop_timer(call);
        }
    }
}
