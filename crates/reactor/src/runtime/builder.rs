//! The settings of a reactor. Each has a bound and a default.

use core::{fmt, num::NonZeroU64};
use std::{rc::Rc, time::Duration};

#[cfg(feature = "sim")]
use crate::world::Host;
use crate::{
    Backend, BuildError, Capacity, Clock, NapiPoll, ProgressWatch, Reactor, RingError,
    api::key::MAX_INDEX,
    backend::{
        ActiveBackend,
        ring_settings::{PoolSize, RingSettings},
    },
    time::timers::DEFAULT_TICK_NS,
    util::unwind_safe_drop::UnwindSafeDrop,
};

/// The kernel's limit on the events of one wait (`EP_MAX_EVENTS`, fs/eventpoll.c).
const KERNEL_EVENTS_MAX: usize = i32::MAX as usize / 16;

/// The limits on work per turn and on stored objects.
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

/// Settings of a [`Reactor`]. Each method states its default.
///
/// ```
/// use std::time::Duration;
/// use windlass::{Backend, Reactor};
///
/// # fn main() -> std::io::Result<()> {
/// let reactor = Reactor::builder()
///     .backend(Backend::Epoll)
///     .events_per_turn(256)
///     .busy_poll(Duration::from_micros(50))
///     .build()?;
/// assert_eq!(reactor.backend(), Backend::Epoll);
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct Builder {
    pub(crate) backend: Backend,
    pub(crate) limits: Limits,
    pub(crate) clock: Option<UnwindSafeDrop<Box<dyn Clock>>>,
    pub(crate) timer_resolution_ns: u64,
    pub(crate) timer_slack_ns: Option<NonZeroU64>,
    pub(crate) busy_poll: Duration,
    pub(crate) watchdog: bool,
    pub(crate) napi: Option<NapiPoll>,
    pub(crate) progress: Option<ProgressWatch>,
    pub(crate) ring: RingSettings,
    #[cfg(feature = "sim")]
    pub(crate) sim: Option<Host>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("backend", &self.backend)
            .field("limits", &self.limits)
            .field("timer_resolution_ns", &self.timer_resolution_ns)
            .field("timer_slack_ns", &self.timer_slack_ns)
            .field("busy_poll", &self.busy_poll)
            .field("napi", &self.napi)
            .field("watchdog", &self.watchdog)
            .field("progress", &self.progress)
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
            timer_resolution_ns: DEFAULT_TICK_NS,
            timer_slack_ns: None,
            busy_poll: Duration::ZERO,
            watchdog: false,
            napi: None,
            progress: None,
            ring: RingSettings::DEFAULT,
            #[cfg(feature = "sim")]
            sim: None,
        }
    }

    /// The readiness backend. Default: [`Backend::Auto`].
    pub const fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Builds the reactor in a simulation, at one of its hosts. It sets the backend, which
    /// [`backend`](Self::backend) may replace after it. The time is that of the simulation unless
    /// [`clock`](Self::clock) is set, and busy polling is off.
    ///
    /// Without it, [`Backend::Sim`] means the host where the latest simulation of the thread makes
    /// things.
    #[cfg(feature = "sim")]
    pub fn sim(mut self, host: &Host) -> Self {
        self.backend = Backend::Sim;
        self.sim = Some(host.clone());
        self
    }

    /// The host of the reactor, if it will be simulated.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn sim_host(&mut self) -> Option<&Host> {
        if self.backend != Backend::Sim {
            return None;
        }
        self.sim = self.sim.take().or_else(Host::current);
        self.sim.as_ref()
    }

    #[cfg(feature = "sim")]
    fn simulate_clock(&mut self) {
        if let Some(host) = self.sim_host() {
            let world = Rc::clone(host.world());
            let clock = || UnwindSafeDrop::new(Box::new(move || world.now()) as _);
            self.clock.get_or_insert_with(clock);
        }
    }

    /// Creates the backend. The second value says why it is not the ring that was preferred.
    pub(super) fn open_backend(
        &mut self,
    ) -> Result<(ActiveBackend, Option<RingError>), BuildError> {
        #[cfg(feature = "sim")]
        if self.backend == Backend::Sim {
            self.simulate_clock();
            self.busy_poll = Duration::ZERO;
            let host = self.sim.take().ok_or(BuildError::NoSimulation)?;
            return Ok((ActiveBackend::simulated(host, self.ring)?, None));
        }
        ActiveBackend::new(self.backend, self.ring, self.limits.events_per_turn)
    }

    limit!(
        /// Maximum events fetched per turn; at least 1. Default: 1024.
        #[doc(alias = "maxevents")]
        events_per_turn
    );
    limit!(
        /// Maximum timers fired per turn; at least 1. Default: 1024.
        timers_per_turn
    );
    limit!(
        /// Maximum deferred closures run per turn; at least 1. Default: 1024.
        deferred_per_turn
    );
    limit!(
        /// Maximum calls and posts of a [`Remote`](crate::Remote) run per turn; at least 1.
        /// Default: 1024.
        calls_per_turn
    );
    limit!(
        /// Maximum registered subscribers; at least 1. Default: 1,048,576. The same number limits
        /// groups.
        subscribers_max
    );
    limit!(
        /// Maximum timers. Default: 16,777,216.
        timers_max
    );
    limit!(
        /// Maximum closures queued by `defer`. Default: 65,536.
        deferred_max
    );
    limit!(
        /// Maximum calls and posts of a [`Remote`](crate::Remote) that are queued or running at one
        /// time; at least 1. A number above 2^24 counts as 2^24. Default: 1024.
        remote_max
    );
    limit!(
        /// Maximum quarantined cells before the epoll set is rebuilt. The memory of a quarantined
        /// cell is kept because the kernel may still return its address (rule 7). Default: 256.
        quarantine_max
    );

    /// The clock used for timers. Default: the system's monotonic clock.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(UnwindSafeDrop::new(Box::new(clock)));
        self
    }

    /// Shares the [`clock`](Self::clock) with a crate whose time must be that of the reactor.
    /// `None` if it is the system's.
    #[doc(hidden)]
    pub fn share_clock(&mut self) -> Option<Rc<dyn Clock>> {
        #[cfg(feature = "sim")]
        self.simulate_clock();
        let clock: Rc<dyn Clock> = Rc::from(self.clock.take()?.into_inner());
        let shared = Rc::clone(&clock);
        self.clock = Some(UnwindSafeDrop::new(Box::new(move || shared.now())));
        Some(clock)
    }

    /// The resolution of timers. Default: one microsecond.
    ///
    /// A deadline is rounded up to a multiple of the resolution, counted from the time at which the
    /// reactor was built. So no timer fires early. Outside a turn, a deadline that has passed is
    /// rounded down instead, and is due at once. Timers fire in the order of their rounded
    /// deadlines. Those with the same rounded deadline fire in the order in which they were started
    /// or reset. [`Tick::deadline`](crate::Tick::deadline) and the deadlines of a periodic timer
    /// are not rounded, so rounding does not add up.
    ///
    /// The resolution is at least one nanosecond and at most one second. A value outside is
    /// replaced by the nearer of the two.
    pub const fn timer_resolution(mut self, resolution: Duration) -> Self {
        self.timer_resolution_ns = if resolution.is_zero() {
            1
        } else if resolution.as_secs() > 0 {
            1_000_000_000
        } else {
            resolution.subsec_nanos() as u64
        };
        self
    }

    /// The timer slack of the thread that builds the reactor, which is the reactor's thread.
    /// Default: unchanged, which on most systems means 50 microseconds.
    ///
    /// The kernel may let a wait last longer by this time, to wake several threads at once. A small
    /// slack makes timers that wake a sleeping thread more punctual, and costs more wake-ups. It is
    /// at least one nanosecond and at most one second. A value outside is replaced by the nearer of
    /// the two. On epoll and poll, the kernel allows at least a thousandth of
    /// the wait, at most 100 ms, whatever the slack is. Threads with a real-time policy have no
    /// slack.
    ///
    /// The slack belongs to the thread (prctl(2), `PR_SET_TIMERSLACK`). It applies to everything
    /// that the thread waits for. Threads that it starts later inherit it. It stays when the
    /// reactor is dropped.
    ///
    /// ```
    /// use std::time::Duration;
    /// use windlass::Reactor;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let reactor = Reactor::builder().timer_slack(Duration::from_nanos(1)).build()?;
    /// # drop(reactor);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "PR_SET_TIMERSLACK")]
    pub const fn timer_slack(mut self, slack: Duration) -> Self {
        let ns = if slack.as_secs() > 0 { 1_000_000_000 } else { slack.subsec_nanos() as u64 };
        self.timer_slack_ns = match NonZeroU64::new(ns) {
            Some(ns) => Some(ns),
            None => Some(NonZeroU64::MIN),
        };
        self
    }

    /// How long to poll before the thread sleeps. Default: zero, sleep at once. With
    /// [`Duration::MAX`] the thread never sleeps.
    ///
    /// Busy polling reduces latency if it lasts longer than the gap between events. It occupies one
    /// core.
    pub const fn busy_poll(mut self, spin: Duration) -> Self {
        self.busy_poll = spin;
        self
    }

    /// Makes the kernel poll the queues of network cards in each wait, before the thread sleeps.
    /// Default: no, or as the sysctl `net.core.busy_poll` says.
    ///
    /// It reduces the latency of packets, and occupies one core. Polled are the queues from which
    /// the watched sockets have received. Loopback, Unix sockets and other descriptors have none,
    /// so for them it is without effect. [`busy_poll`](Self::busy_poll) is for them: it makes the
    /// reactor poll in place of the kernel, and is independent of this.
    ///
    /// It is set by an ioctl(2) of the epoll set (`EPIOCSPARAMS`), or of the ring
    /// (`IORING_REGISTER_NAPI`). Both need Linux 6.9. What cannot be had is an error of
    /// [`build`](Self::build), also on a ring of [`Backend::UringOrEpoll`].
    ///
    /// ```
    /// use windlass::{BuildError, NapiPoll, Reactor};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let napi = NapiPoll { usecs: 50, budget: 8, prefer: false };
    /// let reactor = match Reactor::builder().napi(napi).build() {
    ///     Err(BuildError::Napi(error)) => {
    ///         println!("{error}");
    ///         Reactor::new()?
    ///     }
    ///     outcome => outcome?,
    /// };
    /// # drop(reactor);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("EPIOCSPARAMS", "IORING_REGISTER_NAPI", "SO_BUSY_POLL"))]
    pub const fn napi(mut self, napi: NapiPoll) -> Self {
        self.napi = Some(napi);
        self
    }

    /// Whether to measure the time of every handler, for
    /// [`Stats::handler_max`](crate::Stats::handler_max) and
    /// [`Stats::lag_max`](crate::Stats::lag_max). Default: no, because it reads the clock twice per
    /// event.
    pub const fn watchdog(mut self, on: bool) -> Self {
        self.watchdog = on;
        self
    }

    /// Reports handlers that keep the loop from sleeping and do nothing. Default: off. Every turn
    /// then looks at each handler, and makes a wait that does not block before one that may.
    ///
    /// A turn that the caller does not let wait (`run_once` with a timeout of zero) counts as one
    /// that could not sleep. So do those of a reactor that a simulation runs.
    /// [`Embedded`](crate::Embedded) asks whether it is due after each of its turns.
    pub fn progress_watch(mut self, watch: ProgressWatch) -> Self {
        self.progress = Some(watch);
        self
    }

    /// The number and size in bytes of the buffers that streams receive into on a ring.
    ///
    /// The count is rounded up to a power of two, at least 2 and at most 32,768. The size is at
    /// least 256 and at most 1,048,576. The default is 16 buffers of 256 KiB if the kernel fills
    /// buffers incrementally (Linux 6.12), otherwise 256 buffers of 16 KiB. Both are 4 MiB, mapped
    /// with the first stream. The kernel uses only a few buffers as long as these suffice, and
    /// unused buffers take no memory.
    ///
    /// A buffer holds received bytes only during the turn that handles them, so a few buffers serve
    /// many streams. Receiving is fast while there are more buffers than streams that receive at
    /// the same time.
    #[doc(alias = "IORING_REGISTER_PBUF_RING")]
    pub const fn ring_buffers(mut self, count: u16, bytes: u32) -> Self {
        self.ring.buffers = Some(PoolSize::of(count, bytes));
        self
    }

    /// The sizes of a ring's queues, powers of two. For tests that need full queues.
    #[doc(hidden)]
    pub const fn ring_entries(mut self, submissions: u32, completions: u32) -> Self {
        self.ring.submissions = submissions;
        self.ring.completions = completions;
        self
    }

    /// The first `count` system calls of a ring submit nothing. For tests that simulate a kernel
    /// without memory.
    #[doc(hidden)]
    pub const fn ring_stalls(mut self, count: u32) -> Self {
        self.ring.stalls = count;
        self
    }

    /// The features requested of a ring. For tests that simulate an older kernel.
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
    /// - [`ZeroCapacity`](crate::BuildError::ZeroCapacity): `events_per_turn`, `timers_per_turn`,
    ///   `deferred_per_turn`, `calls_per_turn`, `remote_max` or `subscribers_max` is zero.
    /// - [`CapacityTooLarge`](crate::BuildError::CapacityTooLarge): `events_per_turn`,
    ///   `subscribers_max` or `timers_max` is larger than the kernel or an index can represent.
    /// - [`Os`](crate::BuildError::Os): an error of the kernel, for example `EMFILE` if the process
    ///   has no descriptor left.
    /// - [`Ring`](crate::BuildError::Ring): the requested ring is not available.
    ///   [`RingError`] has the causes.
    /// - [`Napi`](crate::BuildError::Napi): the kernel or the backend does not poll network cards.
    ///   [`NapiError`](crate::NapiError) has the causes.
    pub fn build(self) -> Result<Reactor, BuildError> {
        self.check()?;
        let slack = self.timer_slack_ns;
        let reactor = Reactor::from_builder(self)?;
        if slack.is_some() {
            rustix::thread::set_current_timer_slack(slack).map_err(BuildError::Os)?;
        }
        Ok(reactor)
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
