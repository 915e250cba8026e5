//! Timers in the loop: the turns in which one is due, and firing those that are.

use std::{io, time::Duration};

use rustix::io::Errno;

use crate::{
    Key, Reactor, Tick, Turn, api::inline_call::InlineTimer, cell::NO_GROUP,
    runtime::run_loop::TurnGuard, time::timing::looks::TimerState,
};

impl Reactor {
    /// A short turn in which timers are due. Its wait does not block, and its time has been read.
    #[inline(never)]
    pub(super) fn run_timer_turn(&mut self) -> io::Result<usize> {
        match self.fetch_at_once() {
            Ok(count) => Ok(self.finish_timer_turn(count)),
            Err(Errno::INTR) => self.run_full_turn(Some(Duration::ZERO)),
            Err(errno) => {
                self.timing.end_turn();
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
        self.turn.set_timers_left(true);
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
        self.timing.put_off_alarm();
        let now = self.timing.turn_ns();
        for _ in 0..self.limits.timers_per_turn {
            let Some((tick, call)) = self.timing.take_due(now) else {
                return self.turn.set_timers_left(false);
            };
            self.fire(tick, call);
            if self.timing.is_quiet(now) {
                return self.turn.set_timers_left(false);
            }
        }
        let is_due = self.timing.is_due(now);
        self.turn.set_timers_left(is_due);
    }

    fn fire(&mut self, tick: Tick, call: InlineTimer<Self>) {
        self.kernel.counters().timers_fired += 1;
        let mut firing = Firing { reactor: self, key: tick.key, call: Some(call) };
        let Firing { reactor, call: Some(call), .. } = &mut firing else {
            return;
        };
        reactor.timed(Some(tick.key), |reactor| call.fire(tick, Turn::new(reactor)));
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
        let Some(ended) = reactor.timing.settle(self.key, call) else {
            return;
        };
        if ended.group != NO_GROUP {
            reactor.groups.leave(ended.group, self.key, reactor.kernel.self_deleted());
        }
        if let Some(call) = ended.call {
            reactor.kernel.drop_timer(call);
        }
    }
}
