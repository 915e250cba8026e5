//! Timers in the loop: how long a wait may last for them, and firing those that are due.

use std::time::Duration;

use rustix::time::Timespec;

use crate::{
    Key, Reactor, Tick, Turn,
    api::inline_timer::InlineTimer,
    cell::NO_GROUP,
    runtime::run_loop::WAIT_MAX,
    time::{clock::timespec, timers::Due},
};

impl Reactor {
    /// The time until the next timer may be due, at most [`WAIT_MAX`]. `None` if one may be due, if
    /// none waits, or if the clock is custom: such a clock may differ from the kernel's, and its
    /// time must be read again after the wait.
    #[inline]
    pub(super) fn until_timer_if_none_is_due(&mut self) -> Option<Timespec> {
        if self.time.is_custom() {
            return None;
        }
        let next = self.timers.next_deadline()?;
        let now = self.time.read_ns();
        if next <= now {
            return None;
        }
        Some(timespec(Duration::from_nanos(next - now).min(WAIT_MAX)))
    }

    /// The time until the next timer is due, after the wheel has advanced to now.
    pub(super) fn until_next_timer(&mut self) -> Option<Duration> {
        let now = self.time.read_ns();
        let next = self.timers.next_deadline_after_advance(now)?;
        Some(Duration::from_nanos(next.saturating_sub(now)))
    }

    /// Fires due timers, up to the limit of one turn.
    pub(super) fn fire_timers(&mut self) {
        let now = self.time.turn_ns();
        for _ in 0..self.limits.timers_per_turn {
            // If a timer panics, the other due timers fire in the next turn (rule 8).
            self.timers_left = true;
            let Some(due) = self.timers.take_due(now) else {
                self.timers_left = false;
                return;
            };
            self.fire(due);
        }
        self.timers_left = self.timers.may_be_due(now);
    }

    fn fire(&mut self, due: Due<Self>) {
        let Due { key, call, deadline_ns, missed } = due;
        self.counters.timers_fired += 1;
        let tick = Tick { key, deadline: self.time.instant(deadline_ns), missed };
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
        let Some(ended) = reactor.timers.settle(self.key, call) else {
            return;
        };
        if ended.group != NO_GROUP {
            reactor.leave_group(ended.group, self.key);
        }
        if let Some(call) = ended.call {
            reactor.drop_timer(call);
        }
    }
}
