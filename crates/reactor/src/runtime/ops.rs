//! What a turn asks of the reactor: [`ReactorOps`], and the deadlines of timers.

use std::time::Instant;

use crate::{
    AddError, DeferError, GroupError, GroupState, Interest, Key, KickError, ModifyError, NotFound,
    Reactor, Ready, Stats, Subscription, TimerError, TimerReason,
    api::{
        group::ErasedGroup,
        key::KeyKind,
        ops::{OwnEvent, ReactorOps, Token},
        timer::{Deferred, Schedule, Timer},
    },
    cell::NO_GROUP,
    kernel::pending_work,
    stream::{Stream, parts::ReactorParts},
    time::clock::nanoseconds,
};

impl Reactor {
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
        if self.timing.len() >= self.limits.timers_max {
            return Err(TimerError { reason: TimerReason::LimitReached, handler: timer });
        }
        let key = self.timing.start(&mut self.kernel, timer.call, deadline_ns, period_ns, NO_GROUP);
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
        let (fd, interest) = (self.kernel.number_of(&subscription), subscription.interest());
        match fd.and_then(|fd| self.kernel.admit(subscription.cell(), fd, interest)) {
            Ok(key) => {
                subscription.into_cell();
                Ok(key)
            }
            Err(reason) => Err(AddError::new(reason, subscription)),
        }
    }

    fn modify(&mut self, key: Key, interest: Interest) -> Result<(), ModifyError> {
        let cell = self.kernel.get(key).ok_or(ModifyError::NotFound)?;
        self.kernel.change(cell, interest)
    }

    fn rearm(&mut self, key: Key) -> Result<(), ModifyError> {
        let cell = self.kernel.get(key).ok_or(ModifyError::NotFound)?;
        self.kernel.change(cell, cell.interest())
    }

    fn kick(&mut self, key: Key, ready: Ready) -> Result<(), KickError> {
        let cell = self.kernel.get(key).ok_or(KickError::NotFound)?;
        self.kernel.kick(cell, ready)
    }

    fn delete(&mut self, key: Key) -> Result<(), NotFound> {
        let cell = self.kernel.get(key).ok_or(NotFound)?;
        let mark = self.kernel.waiting();
        self.kernel.deregister(cell);
        if cell.group() != NO_GROUP {
            self.groups.leave(cell.group(), key, self.kernel.self_deleted());
        }
        self.kernel.drop_waiting_down_to(mark);
        Ok(())
    }

    fn add_group(
        &mut self,
        group: ErasedGroup<Self>,
    ) -> Result<(Key, Vec<Key>), GroupError<ErasedGroup<Self>>> {
        self.admit_group(group)
    }

    fn group_state(&mut self, group: Key) -> Option<GroupState> {
        self.groups.state(group)
    }

    fn delete_group_erased(&mut self, group: Key) -> Result<(), NotFound> {
        self.deregister_group(group)
    }

    fn pause_group_erased(&mut self, group: Key) -> Result<(), NotFound> {
        self.pause_members(group)
    }

    fn resume_group_erased(&mut self, group: Key) -> Result<(), NotFound> {
        self.resume_members(group)
    }

    fn remove(&mut self, key: Key) -> Result<(), NotFound> {
        match key.kind() {
            KeyKind::Descriptor if self.kernel.get(key).is_none() => {
                let ReactorParts { streams, kernel, timing, groups } = self.parts();
                streams.remove_listener(kernel, timing, groups, key)
            }
            KeyKind::Descriptor => ReactorOps::delete(self, key),
            KeyKind::Timer => ReactorOps::cancel(self, key),
            KeyKind::Group => self.deregister_group(key),
            KeyKind::Stream => Stream::find(self, key).map(|mut stream| stream.close()),
        }
    }

    fn start_timer(&mut self, timer: Timer<Self>) -> Result<Key, TimerError<Timer<Self>>> {
        let deadline_ns = self.timing.deadline_of(&mut self.kernel, timer.schedule);
        self.place_timer(deadline_ns, timer)
    }

    fn cancel(&mut self, key: Key) -> Result<(), NotFound> {
        let ended = self.timing.remove(&mut self.kernel, key).ok_or(NotFound)?;
        if ended.group != NO_GROUP {
            self.groups.leave(ended.group, key, self.kernel.self_deleted());
        }
        // The call is `None` if the timer is running. It is then dropped after its handler has
        // returned (rule 1).
        if let Some(call) = ended.call {
            self.kernel.drop_timer(call);
        }
        if self.timing.len() == 0 && !self.kernel.is_in_turn() {
            self.recompute_pending();
        }
        Ok(())
    }

    fn reset_timer(&mut self, key: Key, schedule: Schedule) -> Result<(), NotFound> {
        let is_found = self.timing.reschedule(&mut self.kernel, key, schedule);
        if is_found { Ok(()) } else { Err(NotFound) }
    }

    fn defer_boxed(&mut self, closure: Deferred<Self>) -> Result<(), DeferError<Deferred<Self>>> {
        if self.deferred.len() >= self.limits.deferred_max {
            return Err(DeferError { closure });
        }
        self.deferred.push(closure);
        self.kernel.note_progress();
        self.kernel.note(pending_work::DEFERRED);
        Ok(())
    }

    fn stop(&mut self) {
        self.stop.ask();
        self.kernel.note(pending_work::STOP);
    }

    fn stats(&self) -> Stats {
        Reactor::stats(self)
    }

    fn now(&mut self) -> Instant {
        let ns = self.timing.now_ns(&mut self.kernel);
        self.timing.instant(ns)
    }

    fn may_borrow(&self, group: Key, _: &GroupState, _: Token) -> bool {
        !self.runs_descriptor_of(group)
    }

    fn note_progress(&mut self, _: Token) {
        self.kernel.note_progress();
    }

    fn name_key(&mut self, key: Key, name: &str, _: Token) -> Result<(), NotFound> {
        self.keep_name(key, name)
    }

    fn own_event(&mut self, event: OwnEvent, _: Token) {
        match event {
            OwnEvent::StaleEntry => self.kernel.note(pending_work::REBUILD),
            OwnEvent::Paused { key, ready } => {
                self.turn.note_wake();
                let ready = self.streams.hold_event(&mut self.kernel, key, ready);
                self.kernel.hold_event(key, ready);
            }
            OwnEvent::Wake => self.note_wake(),
            OwnEvent::Alarm => {
                // It is no event of the user.
                self.turn.note_wake();
                self.timing.alarm_rang(&mut self.kernel);
            }
        }
    }
}
