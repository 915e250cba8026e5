//! The reactor's clock and timers, and the alarm that wakes the loop for them.
//!
//! Methods that start or reset a timer are given the [`Kernel`], because turns must look at the
//! clock from then on. Streams and listeners use [`now_ns`](Timing::now_ns),
//! [`start`](Timing::start), [`reset`](Timing::reset) and [`remove`](Timing::remove).

mod alarm;
pub(crate) mod looks;

use std::time::Instant;

use crate::{
    Key, Reactor,
    api::{inline_call::InlineTimer, timer::Schedule},
    kernel::{Kernel, pending_work},
    time::{
        clock::{Time, nanoseconds},
        timers::{Ended, Timers},
        timing::alarm::Alarm,
    },
    util::unwind_safe_drop::Panics,
};

/// The kernel sets the coarse clock at least every 10 ms, so it is behind by less than this.
const COARSE_MARGIN_NS: u64 = 1_000_000_000;

pub(crate) struct Timing {
    timers: Timers<Reactor>,
    alarm: Alarm,
    time: Time,
}

impl Timing {
    pub(crate) fn new(timers: Timers<Reactor>, time: Time) -> Self {
        Self { timers, alarm: Alarm::new(), time }
    }

    /// The turn's time; outside a turn, the current time. A custom clock is user code, so it is
    /// read before any state changes (rule 3).
    #[inline]
    pub(crate) fn now_ns(&mut self, kernel: &mut Kernel) -> u64 {
        if !kernel.is_in_turn() {
            return self.time.read_ns();
        }
        // The end of the turn must discard the reading.
        kernel.note(pending_work::CLOCK);
        self.time.turn_ns()
    }

    /// Starts a timer of the reactor's own, which the limit does not count.
    #[inline]
    pub(crate) fn start(
        &mut self,
        kernel: &mut Kernel,
        call: InlineTimer<Reactor>,
        deadline_ns: u64,
        period_ns: u64,
        group: u32,
    ) -> Key {
        let key = self.timers.start(call, deadline_ns, period_ns, group);
        self.note_timers(kernel);
        key
    }

    /// Sets a timer's deadline. False if there is no such timer.
    #[inline]
    pub(crate) fn reset(&mut self, kernel: &mut Kernel, key: Key, deadline_ns: u64) -> bool {
        let is_found = self.timers.reset(key, deadline_ns);
        if is_found {
            self.note_timers(kernel);
        }
        is_found
    }

    /// Removes a timer. Its handler is returned, unless it runs.
    #[inline]
    pub(crate) fn remove(&mut self, kernel: &mut Kernel, key: Key) -> Option<Ended<Reactor>> {
        let ended = self.timers.remove(key)?;
        kernel.note_progress();
        if self.timers.len() == 0 {
            kernel.clear(pending_work::TIMERS);
        }
        Some(ended)
    }

    /// Removes a timer of the reactor's own, which no handler of the user has.
    pub(crate) fn remove_own(&mut self, kernel: &mut Kernel, key: Key) {
        if self.timers.remove_any(key).is_some() && self.timers.len() == 0 {
            kernel.clear(pending_work::TIMERS);
        }
    }

    /// Sets a timer's deadline by its schedule. False if there is no such timer.
    #[inline]
    pub(crate) fn reschedule(&mut self, kernel: &mut Kernel, key: Key, schedule: Schedule) -> bool {
        let Some(index) = self.timers.find(key).filter(|index| !self.timers.is_own(*index)) else {
            return false;
        };
        let deadline_ns = self.deadline_of(kernel, schedule);
        self.timers.reset_at(index, deadline_ns);
        self.note_timers(kernel);
        true
    }

    /// Keeps a timer from firing.
    pub(crate) fn pause(&mut self, kernel: &mut Kernel, key: Key) {
        self.timers.pause(key);
        if self.timers.waiting() == 0 {
            kernel.clear(pending_work::TIMERS);
        }
    }

    /// Lets a paused timer fire again: if it became due meanwhile, at once, but not in this turn
    /// (rule 9).
    pub(crate) fn resume(&mut self, kernel: &mut Kernel, key: Key, now_ns: u64) {
        self.timers.resume(key, self.bounded(kernel, now_ns, now_ns));
        self.note_timers(kernel);
    }

    pub(crate) fn set_group(&mut self, key: Key, group: u32) {
        self.timers.set_group(key, group);
    }

    /// The table of timers, for a look at them.
    pub(crate) fn timers(&self) -> &Timers<Reactor> {
        &self.timers
    }

    /// See [`Timers::set_name`].
    pub(crate) fn set_name(&mut self, key: Key, name: Option<Box<str>>) -> bool {
        self.timers.set_name(key, name)
    }

    /// The number of timers.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.timers.len()
    }

    /// Whether the clock is custom, so that the kernel's timers do not follow it.
    pub(crate) fn has_own_clock(&self) -> bool {
        self.time.is_custom()
    }

    #[inline]
    pub(crate) fn instant(&self, ns: u64) -> Instant {
        self.time.instant(ns)
    }

    /// The next deadline: that of a timer, or `moment`.
    pub(crate) fn next_deadline_or(&self, moment: Option<Instant>) -> Option<u64> {
        let moment = moment.map(|moment| self.time.since_epoch_ns(moment));
        self.timers.next_deadline().into_iter().chain(moment).min()
    }

    /// How far off a deadline is. A custom clock may panic, and then its last reading counts.
    pub(crate) fn until_deadline(&mut self, deadline_ns: u64) -> u64 {
        deadline_ns.saturating_sub(self.time.read_or_last_ns())
    }

    /// Drops all timers, when the reactor is dropped. Every destructor runs (rule 8).
    pub(crate) fn drop_timers(&mut self, panics: &mut Panics) {
        while let Some(call) = self.timers.pop() {
            panics.catch(|| drop(call));
        }
    }

    pub(crate) fn drop_clock(&mut self, panics: &mut Panics) {
        if let Some(clock) = self.time.take_custom() {
            panics.catch(|| drop(clock));
        }
    }

    /// The deadline of a timer, in the reactor's count. The clock is read, unless the deadline is
    /// far from now.
    #[inline]
    pub(crate) fn deadline_of(&mut self, kernel: &mut Kernel, schedule: Schedule) -> u64 {
        let Schedule::At(moment) = schedule else {
            let now = self.now_ns(kernel);
            return self.deadline(kernel, now, schedule);
        };
        let deadline = self.time.since_epoch_ns(moment);
        let is_far = |now| deadline > now + COARSE_MARGIN_NS;
        if !kernel.is_in_turn() && self.time.coarse_ns().is_some_and(is_far) {
            return deadline;
        }
        self.near_deadline(kernel, deadline)
    }

    /// The rest of [`deadline_of`](Self::deadline_of). Out of line, so that the usual path keeps
    /// few registers across its look at the clock.
    #[inline(never)]
    fn near_deadline(&mut self, kernel: &mut Kernel, deadline: u64) -> u64 {
        let now = self.now_ns(kernel);
        self.bounded(kernel, now, deadline)
    }

    /// The same, given the current time.
    #[inline]
    pub(crate) fn deadline(&self, kernel: &Kernel, now: u64, schedule: Schedule) -> u64 {
        let deadline = match schedule {
            Schedule::After(delay) | Schedule::Every(delay) => {
                now.saturating_add(nanoseconds(delay))
            }
            Schedule::At(moment) => self.time.since_epoch_ns(moment),
        };
        self.bounded(kernel, now, deadline)
    }

    /// A deadline that has passed is due at once. In a turn, every deadline lies after that turn's
    /// time (rule 9).
    #[inline]
    fn bounded(&self, kernel: &Kernel, now: u64, deadline: u64) -> u64 {
        if kernel.is_in_turn() {
            deadline.max(now.saturating_add(1))
        } else if deadline <= now {
            self.timers.rounded_down(deadline)
        } else {
            deadline
        }
    }
}
