//! The clock of timers and turns.

#![allow(unsafe_code, reason = "clock_gettime(2) of libc; rustix's crashes under valgrind")]

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

/// The time without a reactor: that of the thread's simulation, if it has one.
#[doc(hidden)]
#[must_use]
pub fn now() -> Instant {
    #[cfg(feature = "sim")]
    if let Some(world) = crate::world::World::current() {
        return world.now();
    }
    Instant::now()
}

const SECOND_NS: u64 = 1_000_000_000;

/// How often the two readings at the epoch are tried, to find two that are close together.
const EPOCH_TRIES: usize = 4;

/// The reactor's time, in nanoseconds since it was built.
///
/// The system's clock is read as a number, because the arithmetic of an [`Instant`] costs more. An
/// `Instant` has no number, so both are read when the reactor is built. The number is read last. So
/// the count is never ahead of an `Instant`, and behind it by less than the time between the two
/// readings. Therefore a timer never fires before its `Instant`.
pub(crate) struct Time {
    /// `None` for the system's monotonic clock.
    custom: Option<UnwindSafeDrop<Box<dyn Clock>>>,
    epoch: Instant,
    /// The system's clock at the epoch. Unused with a custom clock.
    epoch_ns: u64,
    /// The largest reading so far of a custom clock.
    latest_ns: u64,
    /// The reading used for the whole turn, once it was requested.
    turn_ns: Option<u64>,
}

impl Time {
    pub(crate) fn new(custom: Option<UnwindSafeDrop<Box<dyn Clock>>>) -> Self {
        let (epoch, epoch_ns) = match &custom {
            Some(clock) => (clock.now(), 0),
            None => epoch_of_system(),
        };
        Self { custom, epoch, epoch_ns, latest_ns: 0, turn_ns: None }
    }

    pub(crate) fn is_custom(&self) -> bool {
        self.custom.is_some()
    }

    /// Reads the clock.
    #[inline(always)]
    pub(crate) fn read_ns(&mut self) -> u64 {
        match &self.custom {
            // It never goes back (clock_gettime(2)).
            None => system_ns(libc::CLOCK_MONOTONIC).wrapping_sub(self.epoch_ns),
            Some(clock) => {
                let now = clock.now();
                self.latest_ns = self.latest_ns.max(self.since_epoch_ns(now));
                self.latest_ns
            }
        }
    }

    /// The system's time at a recent tick of the kernel, which is cheaper to read.
    /// `None` with a custom clock.
    #[inline]
    pub(crate) fn coarse_ns(&self) -> Option<u64> {
        if self.is_custom() {
            return None;
        }
        // It may be before the epoch.
        Some(system_ns(libc::CLOCK_MONOTONIC_COARSE).saturating_sub(self.epoch_ns))
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

    /// Makes a reading the turn's time.
    pub(crate) fn begin_turn(&mut self, now_ns: u64) {
        self.turn_ns = Some(now_ns);
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

    /// The time of the system's monotonic clock at a moment of the reactor's count.
    pub(crate) fn system_ns_of(&self, ns: u64) -> u64 {
        debug_assert!(!self.is_custom(), "a custom clock has another count");
        self.epoch_ns.saturating_add(ns)
    }

    pub(crate) fn instant(&self, ns: u64) -> Instant {
        self.epoch.checked_add(Duration::from_nanos(ns)).unwrap_or(self.epoch)
    }

    /// Removes the custom clock, for the caller to drop.
    pub(crate) fn take_custom(&mut self) -> Option<UnwindSafeDrop<Box<dyn Clock>>> {
        self.custom.take()
    }
}

/// One of the system's clocks, in nanoseconds.
#[inline]
fn system_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one `timespec` to the place, and fails only for an unknown clock.
    // Linux has had these since 2.6.32.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    // Neither is negative: the clock counts from the start of the system.
    (time.tv_sec as u64).wrapping_mul(SECOND_NS).wrapping_add(time.tv_nsec as u64)
}

/// The system's clock as an instant and as a number that is not before it.
fn epoch_of_system() -> (Instant, u64) {
    let both = || {
        let before = system_ns(libc::CLOCK_MONOTONIC);
        let epoch = Instant::now();
        let after = system_ns(libc::CLOCK_MONOTONIC);
        (after.saturating_sub(before), epoch, after)
    };
    let first = both();
    let (_, epoch, epoch_ns) = (1..EPOCH_TRIES)
        .map(|_| both())
        .fold(first, |best, next| if next.0 < best.0 { next } else { best });
    (epoch, epoch_ns)
}

/// A duration in nanoseconds; saturates at 64 bits.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    let whole = duration.as_secs().checked_mul(SECOND_NS);
    whole.and_then(|ns| ns.checked_add(duration.subsec_nanos().into())).unwrap_or(u64::MAX)
}

/// A number of nanoseconds as the kernel takes it.
#[inline]
pub(crate) const fn timespec_of_ns(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / SECOND_NS) as i64, tv_nsec: (ns % SECOND_NS) as i64 }
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
    fn the_count_is_not_ahead_of_instants_and_hardly_behind() {
        let mut time = Time::new(None);
        for _ in 0..100 {
            let before = Instant::now();
            let ns = time.read_ns();
            let coarse = time.coarse_ns().unwrap();
            let after = Instant::now();
            assert!(coarse <= after.duration_since(time.epoch).as_nanos() as u64);
            assert!(time.instant(ns) <= after);
            assert!(before.saturating_duration_since(time.instant(ns)) < Duration::from_millis(1));
        }
    }

    #[test]
    fn moments_outside_the_count_are_its_ends() {
        let time = Time::new(None);
        assert_eq!(time.since_epoch_ns(time.epoch - Duration::from_secs(1)), 0);
        assert_eq!(nanoseconds(Duration::MAX), u64::MAX);
    }
}
