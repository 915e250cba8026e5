//! What a turn asks of the reactor: [`ReactorOps`], and the deadlines of timers.

use std::time::Instant;

use crate::{
    AddError, DeferError, GroupError, GroupState, Interest, Key, ModifyError, NotFound, Reactor,
    Stats, Subscription, TimerError, TimerReason,
    api::{
        group::ErasedGroup,
        key::KeyKind,
        ops::{ReactorOps, Token},
        timer::{Deferred, Schedule, Timer},
    },
    cell::NO_GROUP,
    runtime::pending_work,
    time::clock::nanoseconds,
};

/// The kernel sets the coarse clock at least every 10 ms, so it is behind by less than this.
const COARSE_MARGIN_NS: u64 = 1_000_000_000;

impl Reactor {
    /// The turn's time; outside a turn, the current time.
    pub(crate) fn now_ns(&mut self) -> u64 {
        if !self.is_in_turn() {
            return self.time.read_ns();
        }
        // The end of the turn must discard the reading.
        self.pending_work |= pending_work::CLOCK;
        self.time.turn_ns()
    }

    /// The deadline of a timer, in the reactor's count. The clock is read, unless the deadline is
    /// far from now.
    fn deadline_of(&mut self, schedule: Schedule) -> u64 {
        let Schedule::At(moment) = schedule else {
            let now = self.now_ns();
            return self.deadline(now, schedule);
        };
        let deadline = self.time.since_epoch_ns(moment);
        if !self.is_in_turn() {
            let coarse = self.time.coarse_ns();
            if coarse.is_some_and(|now| deadline > now + COARSE_MARGIN_NS) {
                return deadline;
            }
        }
        let now = self.now_ns();
        self.bounded(now, deadline)
    }

    /// The same, given the current time.
    pub(crate) fn deadline(&self, now: u64, schedule: Schedule) -> u64 {
        let deadline = match schedule {
            Schedule::After(delay) | Schedule::Every(delay) => {
                now.saturating_add(nanoseconds(delay))
            }
            Schedule::At(moment) => self.time.since_epoch_ns(moment),
        };
        self.bounded(now, deadline)
    }

    /// A deadline that has passed is due at once. In a turn, every deadline lies after that turn's
    /// time (rule 9).
    fn bounded(&self, now: u64, deadline: u64) -> u64 {
        if self.is_in_turn() {
            deadline.max(now.saturating_add(1))
        } else if deadline <= now {
            self.timers.rounded_down(deadline)
        } else {
            deadline
        }
    }

    /// Starts a timer, given its deadline. The caller reads the clock, which may be custom, before
    /// any state changes.
    pub(crate) fn place_timer(
        &mut self,
        deadline_ns: u64,
        timer: Timer<Self>,
    ) -> Result<Key, TimerError<Timer<Self>>> {
        let period_ns = match timer.schedule {
            Schedule::Every(period) if period.is_zero() => {
                return Err(TimerError { reason: TimerReason::ZeroPeriod, handler: timer });
            }
            Schedule::Every(period) => nanoseconds(period),
            Schedule::After(_) | Schedule::At(_) => 0,
        };
        if self.timers.len() >= self.limits.timers_max {
            return Err(TimerError { reason: TimerReason::LimitReached, handler: timer });
        }
        let key = self.timers.start(timer.call, deadline_ns, period_ns, NO_GROUP);
        self.note_timers();
        Ok(key)
    }
}

impl ReactorOps for Reactor {
    fn add_cell(
        &mut self,
        subscription: Subscription<Self>,
    ) -> Result<Key, AddError<Subscription<Self>>> {
        // These are the only calls of user code, and they come before any state changes (rule 3).
        // Rule 6: each is called once.
        let (fd, interest) = (subscription.fd(), subscription.interest());
        match self.admit(subscription.cell(), fd, interest) {
            Ok(key) => {
                subscription.into_cell();
                Ok(key)
            }
            Err(reason) => Err(AddError::new(reason, subscription)),
        }
    }

    fn modify(&mut self, key: Key, interest: Interest) -> Result<(), ModifyError> {
        let cell = self.registry.get(key).ok_or(ModifyError::NotFound)?;
        self.change(cell, interest)
    }

    fn rearm(&mut self, key: Key) -> Result<(), ModifyError> {
        let cell = self.registry.get(key).ok_or(ModifyError::NotFound)?;
        self.change(cell, cell.interest())
    }

    fn delete(&mut self, key: Key) -> Result<(), NotFound> {
        let cell = self.registry.get(key).ok_or(NotFound)?;
        let mark = self.reclaim.waiting();
        self.deregister(cell);
        if cell.group() != NO_GROUP {
            self.leave_group(cell.group(), key);
        }
        self.drop_waiting_down_to(mark);
        Ok(())
    }

    fn add_group(
        &mut self,
        group: ErasedGroup<Self>,
    ) -> Result<(Key, Vec<Key>), GroupError<ErasedGroup<Self>>> {
        self.admit_group(group)
    }

    fn group_state(&mut self, group: Key) -> Option<GroupState> {
        self.group_state_of(group)
    }

    fn delete_group_erased(&mut self, group: Key) -> Result<(), NotFound> {
        self.deregister_group(group)
    }

    fn remove(&mut self, key: Key) -> Result<(), NotFound> {
        match key.kind() {
            KeyKind::Descriptor if self.registry.get(key).is_none() => self.remove_listener(key),
            KeyKind::Descriptor => ReactorOps::delete(self, key),
            KeyKind::Timer => ReactorOps::cancel(self, key),
            KeyKind::Group => self.deregister_group(key),
            KeyKind::Stream => self.stream(key).map(|mut stream| stream.close()),
        }
    }

    fn start_timer(&mut self, timer: Timer<Self>) -> Result<Key, TimerError<Timer<Self>>> {
        let deadline_ns = self.deadline_of(timer.schedule);
        self.place_timer(deadline_ns, timer)
    }

    fn cancel(&mut self, key: Key) -> Result<(), NotFound> {
        let ended = self.timers.remove(key).ok_or(NotFound)?;
        if ended.group != NO_GROUP {
            self.leave_group(ended.group, key);
        }
        // The call is `None` if the timer is running. It is then dropped after its handler has
        // returned (rule 1).
        if let Some(call) = ended.call {
            self.drop_timer(call);
        }
        if self.timers.len() == 0 {
            if self.is_in_turn() {
                self.pending_work &= !pending_work::TIMERS;
            } else {
                self.recompute_pending();
            }
        }
        Ok(())
    }

    fn reset_timer(&mut self, key: Key, schedule: Schedule) -> Result<(), NotFound> {
        let index = self.timers.find(key).ok_or(NotFound)?;
        let deadline_ns = self.deadline_of(schedule);
        self.timers.reset_at(index, deadline_ns);
        self.note_timers();
        Ok(())
    }

    fn defer_boxed(&mut self, closure: Deferred<Self>) -> Result<(), DeferError<Deferred<Self>>> {
        if self.deferred.len() + self.deferred_later.len() >= self.limits.deferred_max {
            return Err(DeferError { closure });
        }
        let queue = if self.is_deferring { &mut self.deferred_later } else { &mut self.deferred };
        queue.push_back(closure);
        self.pending_work |= pending_work::DEFERRED;
        Ok(())
    }

    fn stop(&mut self) {
        self.stop.ask();
        self.pending_work |= pending_work::STOP;
    }

    fn stats(&self) -> Stats {
        Reactor::stats(self)
    }

    fn now(&mut self) -> Instant {
        let ns = self.now_ns();
        self.time.instant(ns)
    }

    fn may_lend(&self, group: Key, _: &GroupState, _: Token) -> bool {
        !self.runs_descriptor_of(group)
    }

    fn stale_entry_fired(&mut self, _: Token) {
        self.pending_work |= pending_work::REBUILD;
    }
}
