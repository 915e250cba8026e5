//! The clock of timers and turns.

use std::time::{Duration, Instant};

use rustix::time::Timespec;

use crate::util::unwind_safe_drop::UnwindSafeDrop;

/// A source of time for a reactor's timers. Any `Fn() -> Instant` is one.
///
/// The clock must not go back. If it does, the previous reading is used instead. Waits use the
/// kernel's time: with a clock that stands still, timers do not fire, but `run_once` still returns.
///
/// ```
/// use std::{cell::Cell, rc::Rc, time::{Duration, Instant}};
/// use windlass::Reactor;
///
/// # fn main() -> std::io::Result<()> {
/// let start = Instant::now();
/// let passed = Rc::new(Cell::new(Duration::ZERO));
/// let clock = { let passed = Rc::clone(&passed); move || start + passed.get() };
/// let mut reactor = Reactor::builder().clock(clock).build()?;
///
/// let fired = Rc::new(Cell::new(false));
/// let handler = { let fired = Rc::clone(&fired); move || fired.set(true) };
/// reactor.after(Duration::from_secs(3600), handler)?;
/// passed.set(Duration::from_secs(3600));
/// reactor.run_once(Duration::ZERO)?;
/// assert!(fired.get(), "an hour has passed by this clock");
/// # Ok(())
/// # }
/// ```
#[doc(alias = "CLOCK_MONOTONIC")]
pub trait Clock: 'static {
    /// Returns the current time.
    fn now(&self) -> Instant;
}

impl<F: Fn() -> Instant + 'static> Clock for F {
    fn now(&self) -> Instant {
        self()
    }
}

/// The reactor's time, in nanoseconds since it was built.
pub(crate) struct Time {
    /// `None` for the system's monotonic clock.
    custom: Option<UnwindSafeDrop<Box<dyn Clock>>>,
    epoch: Instant,
    /// The largest reading so far.
    latest_ns: u64,
    /// The reading used for the whole turn, once it was requested.
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

    /// Reads the clock, except for a custom clock during a panic. In that case it returns the last
    /// reading.
    pub(crate) fn read_or_last_ns(&mut self) -> u64 {
        if self.is_custom() && std::thread::panicking() { self.latest_ns } else { self.read_ns() }
    }

    /// The turn's time. The clock is read on the first call of a turn.
    pub(crate) fn turn_ns(&mut self) -> u64 {
        if let Some(ns) = self.turn_ns {
            return ns;
        }
        let ns = self.read_ns();
        self.turn_ns = Some(ns);
        ns
    }

    /// Makes the next [`turn_ns`](Self::turn_ns) read the clock again.
    pub(crate) fn end_turn(&mut self) {
        self.turn_ns = None;
    }

    /// An instant in the reactor's count. Instants before its epoch give 0; values beyond 64 bits
    /// saturate.
    pub(crate) fn since_epoch_ns(&self, moment: Instant) -> u64 {
        nanoseconds(moment.saturating_duration_since(self.epoch))
    }

    pub(crate) fn instant(&self, ns: u64) -> Instant {
        self.epoch.checked_add(Duration::from_nanos(ns)).unwrap_or(self.epoch)
    }

    /// Removes the custom clock, for the caller to drop.
    pub(crate) fn take_custom(&mut self) -> Option<UnwindSafeDrop<Box<dyn Clock>>> {
        self.custom.take()
    }
}

/// A duration in nanoseconds; saturates at 64 bits.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A duration as the kernel takes it; saturates at the kernel's maximum seconds.
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
