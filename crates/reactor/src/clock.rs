//! The clock of timers and turns.

use std::time::{Duration, Instant};

use rustix::time::Timespec;

use crate::unwind_safe_drop::UnwindSafeDrop;

/// A source of time for a reactor's timers; `Fn() -> Instant` is one.
///
/// It must not go back; a reading before an earlier one counts as that. The waits themselves are
/// the kernel's and take real time: a clock that stands still keeps timers from firing, not
/// `run_once` from returning.
pub trait Clock: 'static {
    /// The time now.
    fn now(&self) -> Instant;
}

impl<F: Fn() -> Instant + 'static> Clock for F {
    fn now(&self) -> Instant {
        self()
    }
}

/// Time as the reactor counts it: nanoseconds since it was built.
pub(crate) struct Time {
    /// `None` for the system's monotonic clock.
    custom: Option<UnwindSafeDrop<Box<dyn Clock>>>,
    epoch: Instant,
    /// The largest reading so far.
    latest_ns: u64,
    /// The reading that stands for the whole turn, once somebody has asked.
    turn_ns: Option<u64>,
}

impl Time {
    pub(crate) fn new(custom: Option<UnwindSafeDrop<Box<dyn Clock>>>) -> Self {
        let epoch = custom.as_ref().map_or_else(Instant::now, |clock| clock.now());
        Self { custom, epoch, latest_ns: 0, turn_ns: None }
    }

    pub(crate) fn is_custom(&self) -> bool {
        self.custom.is_some()
    }

    /// Reads the clock.
    pub(crate) fn read_ns(&mut self) -> u64 {
        let now = self.custom.as_ref().map_or_else(Instant::now, |clock| clock.now());
        self.latest_ns = self.latest_ns.max(self.since_epoch_ns(now));
        self.latest_ns
    }

    /// Reads the clock, but no clock of the user's while a panic is under way: then the last
    /// reading stands.
    pub(crate) fn read_calm_ns(&mut self) -> u64 {
        if self.is_custom() && std::thread::panicking() { self.latest_ns } else { self.read_ns() }
    }

    /// The turn's time, read when it is first asked for.
    pub(crate) fn turn_ns(&mut self) -> u64 {
        if let Some(ns) = self.turn_ns {
            return ns;
        }
        let ns = self.read_ns();
        self.turn_ns = Some(ns);
        ns
    }

    /// The next question for the turn's time reads the clock again.
    pub(crate) fn end_turn(&mut self) {
        self.turn_ns = None;
    }

    /// A moment in the reactor's count; before its epoch it is 0, beyond 64 bits the end of time.
    pub(crate) fn since_epoch_ns(&self, moment: Instant) -> u64 {
        nanoseconds(moment.saturating_duration_since(self.epoch))
    }

    pub(crate) fn instant(&self, ns: u64) -> Instant {
        self.epoch.checked_add(Duration::from_nanos(ns)).unwrap_or(self.epoch)
    }

    /// Gives the custom clock up, to be dropped with care.
    pub(crate) fn take_custom(&mut self) -> Option<UnwindSafeDrop<Box<dyn Clock>>> {
        self.custom.take()
    }
}

/// A duration in nanoseconds; what is longer than 64 bits of them is the end of time.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A duration as the kernel takes it; one beyond its seconds is cut to them.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, rc::Rc};

    #[test]
    fn a_clock_that_goes_back_stands_still() {
        let base = Instant::now() + Duration::from_secs(100);
        let offset = Rc::new(Cell::new(0i32));
        let seen = offset.clone();
        let clock = move || {
            let by = Duration::from_nanos(seen.get().unsigned_abs().into());
            if seen.get() < 0 { base - by } else { base + by }
        };
        let mut time = Time::new(Some(UnwindSafeDrop::new(Box::new(clock))));
        offset.set(50);
        assert_eq!(time.read_ns(), 50);
        offset.set(-20);
        assert_eq!(time.read_ns(), 50);
        assert_eq!(time.turn_ns(), 50);
        offset.set(70);
        assert_eq!(time.turn_ns(), 50, "one reading stands for the turn");
        time.end_turn();
        assert_eq!(time.turn_ns(), 70);
    }

    #[test]
    fn moments_outside_the_count_are_its_ends() {
        let time = Time::new(None);
        assert_eq!(time.since_epoch_ns(time.epoch - Duration::from_secs(1)), 0);
        assert_eq!(nanoseconds(Duration::MAX), u64::MAX);
    }
}
