//! The alarm: a timerfd that wakes the loop for a timer that is far off.
//!
//! A wait with a limit costs the kernel two readings of its clock, and the turn a third, also if an
//! event is ready. So a turn that looks at the clock in vain counts. After some of them the alarm
//! is armed for the next deadline, and turns need neither the clock nor a limit: the alarm is an
//! event like any other. Sleeps that end within a few turns never use it.
//!
//! 1. The alarm covers the timers if it rings no later than the first of them is due. Otherwise
//!    `pending_work` has the bit `TIMERS`, and turns look at the clock.
//! 2. A timer that is started or reset for an earlier time ends the cover
//!    ([`Timing::note_timers`]). The alarm stays armed, and covers the rest again once the earlier
//!    timer has fired.
//! 3. The alarm rings once, and then covers nothing. If it was the only event, it is as if a limit
//!    had ended the wait: due timers fire, or the wait goes on because the timer was cancelled.
//! 4. The kernel reports it behind everything that is ready already. So it is not armed while
//!    batches are full. If they become full later, it may be late by one pass over what is ready.
//! 5. Its descriptor is opened while the loop runs, when other code may have closed the number of a
//!    live cell. So it takes a number that is high, and free in the registry as well (rule 7).
//! 6. It follows the system's clock. A reactor with a custom clock never arms it, and neither does
//!    a child of fork(2), whose timerfd is that of its parent.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use rustix::{
    io::Errno,
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};

use crate::{
    Event, Interest, Subscriber, Turn,
    api::ops::{OwnEvent, ReactorOps, Token},
    backend::with_high_number,
    interest,
    kernel::{Kernel, pending_work},
    time::{clock::timespec, timing::Timing},
};

/// Set if the tests arm the alarm in each turn.
const FORCE: bool = cfg!(windlass_force_alarm);

/// The turns that look at the clock in vain before the alarm is armed. Arming and ringing take as
/// long as the looks of about three turns.
const LOOKS: u32 = if FORCE { 1 } else { 16 };

/// A timer that is due sooner is not worth the alarm.
const NEAR_NS: u64 = if FORCE { 0 } else { 100_000 };

/// In place of a time: the alarm is not armed.
const NEVER: u64 = u64::MAX;

pub(crate) struct Alarm {
    /// Made when it is first needed.
    timerfd: Option<Rc<OwnedFd>>,
    /// The address that its events carry.
    address: u64,
    /// When it rings, in the reactor's count; [`NEVER`] if it does not.
    rings_ns: u64,
    /// The turns that have looked at the clock in vain, one after the other.
    looks: u32,
}

impl Alarm {
    pub(super) const fn new() -> Self {
        Self { timerfd: None, address: 0, rings_ns: NEVER, looks: 0 }
    }

    #[cfg(test)]
    fn is_made(&self) -> bool {
        self.timerfd.is_some()
    }

    /// A timer has fired, or a batch was full. Reactors with short timers, or with more events than
    /// a turn handles, do not arm the alarm.
    pub(super) fn count_again(&mut self) {
        self.looks = 0;
    }

    /// Counts a look at the clock. True if the alarm should be armed.
    #[inline]
    pub(super) fn counts_look(&mut self) -> bool {
        self.looks += 1;
        self.looks >= LOOKS
    }
}

impl Timing {
    /// Whether a turn must look at the clock: timers wait that the alarm does not cover.
    #[inline]
    pub(crate) fn must_look_at_timers(&self) -> bool {
        self.timers.waiting() > 0 && self.timers.bound_ns() < self.alarm.rings_ns
    }

    /// A timer was started or reset.
    #[inline]
    pub(super) fn note_timers(&mut self, kernel: &mut Kernel) {
        kernel.note_progress();
        if self.timers.bound_ns() < self.alarm.rings_ns {
            kernel.note(pending_work::TIMERS);
        }
    }

    /// Arms the alarm for the next timer, which is due in so many nanoseconds. If the kernel has
    /// no descriptor for it, turns go on to look at the clock.
    #[cold]
    #[inline(never)]
    pub(super) fn arm_alarm(&mut self, kernel: &mut Kernel, until_timer_ns: u64) {
        self.alarm.looks = 0;
        if until_timer_ns >= NEAR_NS && self.try_arm_alarm(kernel).is_ok() {
            self.alarm.rings_ns = self.timers.bound_ns();
            kernel.clear(pending_work::TIMERS);
        }
    }

    fn try_arm_alarm(&mut self, kernel: &mut Kernel) -> Result<(), Errno> {
        kernel.check_owner()?;
        self.alarm.rings_ns = NEVER;
        let timerfd = match &self.alarm.timerfd {
            Some(timerfd) => Rc::clone(timerfd),
            None => self.make_alarm(kernel)?,
        };
        let moment = self.time.system_ns_of(self.timers.bound_ns());
        let once = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: timespec(Duration::from_nanos(moment)),
        };
        timerfd_settime(&*timerfd, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(())
    }

    fn make_alarm(&mut self, kernel: &mut Kernel) -> Result<Rc<OwnedFd>, Errno> {
        if cfg!(miri) {
            return Err(Errno::NOSYS);
        }
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timerfd = with_high_number(timerfd_create(TimerfdClockId::Monotonic, flags)?);
        if kernel.is_taken(timerfd.as_raw_fd()) {
            return Err(Errno::EXIST);
        }
        let timerfd = Rc::new(timerfd);
        self.alarm.address = if kernel.backend().supports(interest().read().edge_triggered()) {
            kernel.add_internal(AlarmSubscriber::<true>(Rc::clone(&timerfd)))?
        } else {
            kernel.add_internal(AlarmSubscriber::<false>(Rc::clone(&timerfd)))?
        };
        self.alarm.timerfd = Some(Rc::clone(&timerfd));
        Ok(timerfd)
    }

    /// The alarm has rung, and is no event of the user. If it has not rung alone, timers fire in
    /// the next turn.
    pub(crate) fn alarm_rang(&mut self, kernel: &mut Kernel) {
        kernel.counters().events -= 1;
        self.alarm.rings_ns = NEVER;
        kernel.note(pending_work::ALARM | pending_work::WOKEN | pending_work::TIMERS);
    }

    /// Whether the alarm is the only event of a batch that is not dispatched yet. It is removed.
    pub(crate) fn takes_alarm(&mut self, kernel: &mut Kernel) -> bool {
        let is_alone = kernel.takes_only_event(self.alarm.address);
        if is_alone {
            self.alarm.rings_ns = NEVER;
            kernel.note(pending_work::TIMERS);
            if let (false, Some(timerfd)) =
                (kernel.backend().supports(interest().read().edge_triggered()), &self.alarm.timerfd)
            {
                silence(timerfd);
            }
        }
        is_alone
    }
}

/// Edge-triggered if the backend supports it. Each expiration is then a new edge, which saves a
/// read.
struct AlarmSubscriber<const EDGE: bool>(Rc<OwnedFd>);

impl<const EDGE: bool> Subscriber for AlarmSubscriber<EDGE> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn interest(&self) -> Interest {
        if EDGE { interest().read().edge_triggered() } else { interest().read() }
    }

    fn handle(&mut self, _: Event, mut turn: Turn<'_>) {
        if !EDGE {
            silence(&self.0);
        }
        turn.ops().own_event(OwnEvent::Alarm, Token(()));
    }
}

/// Makes a level-triggered timerfd unreadable. The only error is that it is so already.
fn silence(timerfd: &OwnedFd) {
    let _ = rustix::io::read(timerfd, &mut [0; 8]);
}

#[cfg(all(test, not(miri), not(windlass_force_alarm)))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Backend, Group, Reactor};

    const HOUR: Duration = Duration::from_secs(3600);

    fn turns(reactor: &mut Reactor, count: u32) {
        (0..count).for_each(|_| assert_eq!(reactor.run_once(Duration::ZERO).unwrap(), 0));
    }

    fn looks(reactor: &mut Reactor) -> bool {
        reactor.parts().kernel.has(pending_work::TIMERS)
    }

    #[test]
    fn it_covers_what_is_due_after_it_rings() {
        let mut reactor = Reactor::new().unwrap();
        let far = reactor.after(2 * HOUR, || {}).unwrap();
        turns(&mut reactor, LOOKS - 1);
        assert!(looks(&mut reactor) && !reactor.parts().timing.alarm.is_made());
        turns(&mut reactor, 1);
        assert!(!looks(&mut reactor) && reactor.stats().subscribers == 0);
        let later = reactor.after(3 * HOUR, || {}).unwrap();
        reactor.reset(later, 4 * HOUR).unwrap();
        assert!(!looks(&mut reactor));
        let sooner = reactor.after(HOUR, || {}).unwrap();
        assert!(looks(&mut reactor));
        turns(&mut reactor, LOOKS);
        assert!(!looks(&mut reactor));
        for key in [sooner, far, later] {
            reactor.cancel(key).unwrap();
            assert!(!looks(&mut reactor));
        }
    }

    #[test]
    fn timers_that_are_all_paused_are_not_looked_at() {
        let mut reactor = Reactor::new().unwrap();
        let group = Group::new(()).every(HOUR, |(): &mut ()| {});
        let key = group.register_into(&mut reactor).unwrap().group;
        for _ in 0..2 {
            turns(&mut reactor, 1);
            assert!(looks(&mut reactor));
            reactor.pause_group(key).unwrap();
            assert!(!looks(&mut reactor));
            // A turn with all steps.
            reactor.defer(|_| {}).unwrap();
            turns(&mut reactor, 1);
            assert!(!looks(&mut reactor));
            reactor.resume_group(key).unwrap();
            assert!(looks(&mut reactor));
        }
    }

    #[test]
    fn short_timers_and_custom_clocks_do_without_it() {
        let mut reactor = Reactor::new().unwrap();
        for _ in 0..20 {
            let fired = reactor.stats().timers_fired;
            reactor.after(Duration::from_micros(80), || {}).unwrap();
            while reactor.stats().timers_fired == fired {
                reactor.run_once(Duration::ZERO).unwrap();
            }
        }
        assert!(!reactor.parts().timing.alarm.is_made(), "too near");
        let mut reactor = Reactor::builder().clock(Instant::now).build().unwrap();
        reactor.after(HOUR, || {}).unwrap();
        turns(&mut reactor, 2 * LOOKS);
        assert!(looks(&mut reactor) && !reactor.parts().timing.alarm.is_made());
    }

    #[test]
    fn a_firing_begins_the_count_again() {
        for backend in [Backend::Epoll, Backend::Poll] {
            let mut reactor = Reactor::builder().backend(backend).build().unwrap();
            reactor.after(HOUR, || {}).unwrap();
            for round in 1..4 {
                reactor.after(Duration::ZERO, || {}).unwrap();
                turns(&mut reactor, LOOKS - 1);
                assert_eq!(reactor.stats().timers_fired, round);
                assert!(!reactor.parts().timing.alarm.is_made());
            }
        }
    }
}
