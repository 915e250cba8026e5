//! A reactor's settings, each bounded and with a default.

use core::fmt;
use std::time::Duration;

use crate::{
    Backend, BuildError, Capacity, Clock, Reactor,
    backend::{PoolSize, RingSettings},
    registry::MAX_INDEX,
    unwind_safe_drop::UnwindSafeDrop,
};

/// The kernel's own limit to the events of one wait (`EP_MAX_EVENTS`, fs/eventpoll.c).
const KERNEL_EVENTS_MAX: usize = i32::MAX as usize / 16;

/// How much a reactor does in one turn and how much it keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) events_per_turn: usize,
    pub(crate) timers_per_turn: usize,
    pub(crate) deferred_per_turn: usize,
    pub(crate) calls_per_turn: usize,
    pub(crate) subscribers_max: usize,
    pub(crate) timers_max: usize,
    pub(crate) deferred_max: usize,
    pub(crate) remote_max: usize,
    pub(crate) quarantine_max: usize,
}

/// Settings of a [`Reactor`]; each method says its default.
#[must_use]
pub struct Builder {
    pub(crate) backend: Backend,
    pub(crate) limits: Limits,
    pub(crate) clock: Option<UnwindSafeDrop<Box<dyn Clock>>>,
    pub(crate) busy_poll: Duration,
    pub(crate) watchdog: bool,
    pub(crate) ring: RingSettings,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("backend", &self.backend)
            .field("limits", &self.limits)
            .field("busy_poll", &self.busy_poll)
            .field("watchdog", &self.watchdog)
            .finish_non_exhaustive()
    }
}

/// Declares the setter of a limit.
macro_rules! limit {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        pub const fn $name(mut self, count: usize) -> Self {
            self.limits.$name = count;
            self
        }
    };
}

impl Builder {
    pub(crate) const fn new() -> Self {
        Self {
            backend: Backend::Auto,
            limits: Limits {
                events_per_turn: 1024,
                timers_per_turn: 1024,
                deferred_per_turn: 1024,
                calls_per_turn: 1024,
                subscribers_max: 1 << 20,
                timers_max: 1 << 24,
                deferred_max: 1 << 16,
                remote_max: 1024,
                quarantine_max: 256,
            },
            clock: None,
            busy_poll: Duration::ZERO,
            watchdog: false,
            ring: RingSettings::DEFAULT,
        }
    }

    /// What tells of readiness. Default: [`Backend::Auto`].
    pub const fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    limit!(
        /// The most events that one turn fetches; at least 1. Default: 1024.
        events_per_turn
    );
    limit!(
        /// The most timers that one turn fires; at least 1. Default: 1024.
        timers_per_turn
    );
    limit!(
        /// The most deferred closures that one turn runs; at least 1. Default: 1024.
        deferred_per_turn
    );
    limit!(
        /// The most calls and posts of a [`Remote`](crate::Remote) that one turn runs; at least 1.
        /// Default: 1024.
        calls_per_turn
    );
    limit!(
        /// The most subscribers; at least 1. Default: 1,048,576. Groups are bounded by the same
        /// number.
        subscribers_max
    );
    limit!(
        /// The most timers. Default: 16,777,216.
        timers_max
    );
    limit!(
        /// The most closures that wait to be run by `defer`. Default: 65,536.
        deferred_max
    );
    limit!(
        /// The most calls and posts of a [`Remote`](crate::Remote) that are queued or run at a
        /// time; at least 1. Default: 1024.
        remote_max
    );
    limit!(
        /// The most cells whose memory is kept because the kernel may still hand out their address
        /// (rule 7) before the epoll set is built anew. Default: 256.
        quarantine_max
    );

    /// The clock of timers. Default: the system's monotonic clock.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(UnwindSafeDrop::new(Box::new(clock)));
        self
    }

    /// How long to ask again and again before the thread sleeps. Default: zero, sleep at once. With
    /// [`Duration::MAX`] the thread never sleeps.
    ///
    /// Spinning pays if it is longer than the gap between events, and takes a core.
    pub const fn busy_poll(mut self, spin: Duration) -> Self {
        self.busy_poll = spin;
        self
    }

    /// Whether to time every handler, for [`Stats::handler_max`](crate::Stats::handler_max) and
    /// [`Stats::lag_max`](crate::Stats::lag_max). Default: no, since it reads the clock twice per
    /// event.
    pub const fn watchdog(mut self, on: bool) -> Self {
        self.watchdog = on;
        self
    }

    /// How many buffers streams receive into on a ring, and of how many bytes each. The count is
    /// rounded up to a power of two, at least 2 and at most 32,768; the size is at least 256 and at
    /// most 1,048,576. Default: 16 of 256 KiB where the kernel fills them bit by bit (Linux 6.12),
    /// or else 256 of 16 KiB: 4 MiB, mapped with the first stream. A few of them are in use as long
    /// as these are enough, and the others take no memory.
    ///
    /// A buffer holds received bytes for no longer than the turn that handles them, so few are
    /// enough for many streams; they are fast while there are more than streams that receive at the
    /// same time.
    pub const fn ring_buffers(mut self, count: u16, bytes: u32) -> Self {
        self.ring.buffers = Some(PoolSize::of(count, bytes));
        self
    }

    /// How long a wait on a ring may last for more than one completion, to the microsecond: a few
    /// at a time cost less each. How many are waited for, up to 16, is found out at run time: half
    /// of what has a chance to come in that time. Default: zero, the first one ends the wait.
    /// Without effect before Linux 6.12 and on other backends.
    ///
    /// Some tens of microseconds spare processor time where many connections are busy, and add up
    /// to as much to the latency.
    pub const fn ring_wait_batch(mut self, longest: Duration) -> Self {
        let micros = longest.as_micros();
        self.ring.batch_wait_us = if micros > 1_000_000 { 1_000_000 } else { micros as u32 };
        self
    }

    /// The sizes of a ring's queues, powers of two: for tests, which want them to be full.
    #[doc(hidden)]
    pub const fn ring_entries(mut self, submissions: u32, completions: u32) -> Self {
        self.ring.submissions = submissions;
        self.ring.completions = completions;
        self
    }

    /// So many of the first system calls of a ring submit nothing: for tests, as if the kernel had
    /// no memory.
    #[doc(hidden)]
    pub const fn ring_stalls(mut self, count: u32) -> Self {
        self.ring.stalls = count;
        self
    }

    /// What a ring is asked for: for tests, as if the kernel were older.
    #[cfg(windlass_force_ring)]
    #[doc(hidden)]
    pub const fn ring_features(
        mut self,
        features: crate::RingFeatures,
        missing: Option<crate::RingFeature>,
    ) -> Self {
        self.ring.features = features;
        self.ring.missing = missing;
        self
    }

    /// Builds the reactor.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn build(self) -> Result<Reactor, BuildError> {
        self.check()?;
        Reactor::from_builder(self)
    }

    fn check(&self) -> Result<(), BuildError> {
        let limits = &self.limits;
        let at_least_one = [
            (limits.events_per_turn, Capacity::EventsPerTurn),
            (limits.timers_per_turn, Capacity::TimersPerTurn),
            (limits.deferred_per_turn, Capacity::DeferredPerTurn),
            (limits.calls_per_turn, Capacity::CallsPerTurn),
            (limits.remote_max, Capacity::RemoteMax),
            (limits.subscribers_max, Capacity::SubscribersMax),
        ];
        if let Some((_, capacity)) = at_least_one.iter().find(|(count, _)| *count == 0) {
            return Err(BuildError::ZeroCapacity(*capacity));
        }
        let largest = [
            (limits.events_per_turn, KERNEL_EVENTS_MAX, Capacity::EventsPerTurn),
            (limits.subscribers_max, MAX_INDEX as usize, Capacity::SubscribersMax),
            (limits.timers_max, MAX_INDEX as usize, Capacity::TimersMax),
        ];
        match largest.iter().find(|(count, max, _)| count > max) {
            Some((_, _, capacity)) => Err(BuildError::CapacityTooLarge(*capacity)),
            None => Ok(()),
        }
    }
}
