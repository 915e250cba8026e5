//! The [`Reactor`]: its fields, and the methods its owner may call outside a turn.

use core::fmt;
use std::time::{Duration, Instant};

use crate::{
    AddError, AddReason, Backend, BuildError, Builder, DeferError, DeferReason, GroupKey,
    HookError, HookKey, Interest, Key, KickError, ModifyError, NotFound, Ready, RingError,
    RingFeatures, Stats, Stop, Subscriber, TimerError, TimerReason, Turn,
    api::{
        handler_fn::TimerFn,
        interest::interest,
        ops::{ReactorOps, sealed::Sealed},
        progress::ProgressCall,
        timer::Schedule,
        turn,
    },
    cell::registration,
    kernel::{Kernel, KernelLimits, pending_work, progress::StreakLimits},
    registry::groups::Groups,
    remote::{RemoteInbox, stop::fall_asleep},
    runtime::{
        builder::Limits,
        deferred::DeferredClosures,
        hook::{HookCall, Hooks, Moment},
        turn_state::TurnState,
    },
    stream::StreamTable,
    time::{
        clock::{Time, nanoseconds},
        timers::Timers,
        timing::Timing,
    },
    util::unwind_safe_drop::UnwindSafeDrop,
};

/// An event loop that serves descriptors, timers and closures on one thread.
///
/// The reactor is one concrete type. It is not `Send`, and may be moved in memory between turns. It
/// owns its subscribers: dropping the reactor drops them all, catches each panic, and resumes the
/// first one (rule 8).
///
/// ```
/// use std::time::Duration;
/// use windlass::Reactor;
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// reactor.after_with(Duration::from_millis(1), |mut turn| {
///     println!("one millisecond has passed");
///     turn.stop();
/// })?;
/// reactor.run()
/// # }
/// ```
pub struct Reactor {
    /// First, because the loop reads it for every event.
    pub(super) kernel: Kernel,
    pub(super) turn: TurnState,
    pub(super) timing: Timing,
    pub(super) groups: Groups,
    pub(super) deferred: DeferredClosures,
    /// Closures queued by other threads; `None` before the first [`Remote`](crate::Remote).
    pub(super) inbox: Option<RemoteInbox>,
    pub(super) streams: Box<StreamTable>,
    pub(super) hooks: Hooks,
    pub(super) stop: Stop,
    pub(super) limits: Limits,
    pub(super) busy_poll: Duration,
    /// See [`Stats::ring_error`].
    ring_error: Option<RingError>,
    /// What the progress watch calls, if it is on and does not run.
    pub(super) on_no_progress: Option<UnwindSafeDrop<ProgressCall>>,
}

/// A reactor stays on its thread: a ring has one submitter, and handlers may hold values that are
/// not `Send`. If `Reactor` were `Send` or `Sync`, two implementations would match here and
/// compilation would fail.
const _: fn() = || {
    struct IfSend;
    struct IfSync;
    trait Ambiguous<Why> {
        fn chosen() {}
    }
    impl<T: ?Sized> Ambiguous<()> for T {}
    impl<T: ?Sized + Send> Ambiguous<IfSend> for T {}
    impl<T: ?Sized + Sync> Ambiguous<IfSync> for T {}
    let _ = <Reactor as Ambiguous<_>>::chosen;
};

impl Reactor {
    /// A reactor with the default settings.
    ///
    /// # Errors
    /// [`BuildError::Os`], for example `EMFILE` if the process has no descriptor left.
    #[doc(alias = "epoll_create1")]
    pub fn new() -> Result<Self, BuildError> {
        Self::builder().build()
    }

    /// Returns a builder with the default settings.
    pub const fn builder() -> Builder {
        Builder::new()
    }

    pub(crate) fn from_builder(mut builder: Builder) -> Result<Self, BuildError> {
        let (mut backend, ring_error) = builder.open_backend()?;
        if let Some(napi) = builder.napi {
            backend.set_napi(napi).map_err(BuildError::Napi)?;
        }
        let Builder { limits, clock, busy_poll, watchdog, progress, .. } = builder;
        let pending = if watchdog { pending_work::WATCHDOG } else { 0 }
            | if progress.is_some() { pending_work::PROGRESS } else { 0 }
            | if busy_poll.is_zero() { 0 } else { pending_work::BUSY_POLL };
        let bounds = KernelLimits {
            events_per_turn: limits.events_per_turn,
            subscribers_max: limits.subscribers_max,
            quarantine_max: limits.quarantine_max,
            progress: progress.as_ref().map(|watch| StreakLimits {
                turns: watch.turns.into(),
                span_ns: nanoseconds(watch.span),
                remedy: watch.remedy,
            }),
        };
        let streams = Box::new(StreamTable::new(backend.fork_guard()));
        #[cfg(not(feature = "sim"))]
        let stop = Stop::new().map_err(BuildError::Os)?;
        #[cfg(feature = "sim")]
        let (backend, stop) = super::hosted::with_stop(backend).map_err(BuildError::Os)?;
        let mut reactor = Self {
            kernel: Kernel::new(backend, &bounds, pending),
            turn: TurnState::new(watchdog),
            timing: Timing::new(Timers::new(builder.timer_resolution_ns), Time::new(clock)),
            groups: Groups::new(),
            deferred: DeferredClosures::new(),
            inbox: None,
            streams,
            hooks: Hooks::new(),
            stop,
            limits,
            busy_poll,
            ring_error,
            on_no_progress: progress.map(|watch| watch.call),
        };
        let added = if reactor.supports(interest().read().edge_triggered()) {
            reactor.kernel.add_internal(reactor.stop.edge_subscriber())
        } else {
            reactor.kernel.add_internal(reactor.stop.level_subscriber())
        };
        added.map_err(BuildError::Os)?;
        Ok(reactor)
    }

    /// Returns a handle that makes [`run`](Self::run) return. It works from any thread.
    #[must_use]
    pub fn stop_handle(&self) -> Stop {
        self.stop.clone()
    }

    /// True if a custom clock is set ([`Builder::clock`](crate::Builder::clock)), so kernel timers
    /// cannot be used.
    #[must_use]
    pub fn has_own_clock(&self) -> bool {
        self.timing.has_own_clock()
    }

    /// True if a stop is requested that no [`run`](Self::run) has consumed. For callers of
    /// `run_once`.
    #[must_use]
    pub fn stop_requested(&self) -> bool {
        self.stop.is_asked()
    }

    /// See [`Turn::add`].
    ///
    /// # Errors
    /// The subscriber is dropped, and its descriptor with it: [`try_add`](Self::try_add) returns
    /// it.
    ///
    /// - [`AlreadyExists`](crate::AddReason::AlreadyExists): the descriptor's number is registered
    ///   already. That includes a subscriber that deleted itself and whose handler still runs.
    /// - [`LimitReached`](crate::AddReason::LimitReached): the reactor holds `subscribers_max`
    ///   subscribers.
    /// - [`InvalidInterest`](crate::AddReason::InvalidInterest): `exclusive` is combined with a
    ///   condition or mode that the kernel rejects.
    /// - [`Unsupported`](crate::AddReason::Unsupported): the backend does not support the interest.
    /// - [`BadDescriptor`](crate::AddReason::BadDescriptor): the descriptor is not open (`EBADF`).
    /// - [`NotPollable`](crate::AddReason::NotPollable): the descriptor cannot be polled, for
    ///   example a regular file (`EPERM`).
    /// - [`NestedTooDeep`](crate::AddReason::NestedTooDeep): epoll sets are nested too deep or form
    ///   a cycle (`ELOOP`).
    /// - [`Os`](crate::AddReason::Os): another error of the kernel, such as `ENOMEM` or `ENOSPC`.
    ///   `ESTALE` in a child of fork(2), because the reactor belongs to the parent.
    #[doc(alias("EPOLL_CTL_ADD", "epoll_ctl"))]
    pub fn add<S: Subscriber<Self>>(&mut self, subscriber: S) -> Result<Key, AddReason> {
        self.try_add(subscriber).map_err(|e| e.reason)
    }

    /// See [`Turn::try_add`].
    ///
    /// # Errors
    /// The reasons of [`add`](Self::add). The error returns the subscriber with its descriptor
    /// open.
    pub fn try_add<S: Subscriber<Self>>(&mut self, subscriber: S) -> Result<Key, AddError<S>> {
        registration::add(self, subscriber)
    }

    /// See [`Turn::modify`]; outside a turn, every change reaches the kernel at once.
    ///
    /// # Errors
    /// The old interest stays in force.
    ///
    /// - [`NotFound`](crate::ModifyError::NotFound): the key names no registered descriptor.
    /// - [`InvalidInterest`](crate::ModifyError::InvalidInterest): `exclusive` is combined with a
    ///   condition or mode that the kernel rejects.
    /// - [`Unsupported`](crate::ModifyError::Unsupported): the backend does not support the
    ///   interest.
    /// - [`Os`](crate::ModifyError::Os): an error of the kernel. `ENOENT` or `EBADF` means that the
    ///   descriptor was closed or replaced without telling the reactor. `ESTALE` in a child of
    ///   fork(2).
    #[doc(alias("EPOLL_CTL_MOD", "epoll_ctl"))]
    pub fn modify(&mut self, key: Key, interest: Interest) -> Result<(), ModifyError> {
        ReactorOps::modify(self, key, interest)
    }

    /// See [`Turn::rearm`].
    ///
    /// # Errors
    /// `NotFound` and `Os`, as for [`modify`](Self::modify).
    pub fn rearm(&mut self, key: Key) -> Result<(), ModifyError> {
        ReactorOps::rearm(self, key)
    }

    /// See [`Turn::kick`]; the next turn does not wait.
    ///
    /// # Errors
    /// The reasons of [`Turn::kick`].
    #[doc(alias("event_active", "ev_feed_event", "activate"))]
    pub fn kick(&mut self, key: Key, ready: Ready) -> Result<(), KickError> {
        ReactorOps::kick(self, key, ready)
    }

    /// Deletes a registration. Its destructor runs at once, and its panic propagates from this
    /// call. See [`Turn::delete`].
    ///
    /// # Errors
    /// [`NotFound`] if the key does not name a descriptor's registration.
    ///
    /// # Panics
    /// With the panic of the subscriber's destructor. The registration is deleted.
    #[doc(alias("EPOLL_CTL_DEL", "epoll_ctl"))]
    pub fn delete(&mut self, key: Key) -> Result<(), NotFound> {
        ReactorOps::delete(self, key)
    }

    /// Deletes a group with all its members. See [`Turn::delete_group`].
    ///
    /// # Errors
    /// [`NotFound`] if the group no longer exists.
    ///
    /// # Panics
    /// With the panic of a member's destructor. The group is deleted.
    pub fn delete_group<S: 'static>(&mut self, group: GroupKey<S>) -> Result<(), NotFound> {
        self.delete_group_erased(group.key())
    }

    /// See [`Turn::pause_group`].
    ///
    /// # Errors
    /// [`NotFound`] if the group no longer exists.
    pub fn pause_group<S: 'static>(&mut self, group: GroupKey<S>) -> Result<(), NotFound> {
        self.pause_group_erased(group.key())
    }

    /// See [`Turn::resume_group`].
    ///
    /// # Errors
    /// [`NotFound`] if the group no longer exists.
    pub fn resume_group<S: 'static>(&mut self, group: GroupKey<S>) -> Result<(), NotFound> {
        self.resume_group_erased(group.key())
    }

    /// See [`Turn::remove`].
    ///
    /// # Errors
    /// [`NotFound`] if the key names nothing.
    ///
    /// # Panics
    /// With the panic of a destructor. What the key named is removed.
    pub fn remove(&mut self, key: impl Into<Key>) -> Result<(), NotFound> {
        ReactorOps::remove(self, key.into())
    }

    /// The state of a group, or `None` if the group no longer exists.
    pub fn group_mut<S: 'static>(&mut self, group: GroupKey<S>) -> Option<&mut S> {
        self.borrow_state(group)
    }

    /// See [`Turn::after`].
    ///
    /// # Errors
    /// The handler is dropped: [`try_start`](Self::try_start) returns it.
    ///
    /// - [`LimitReached`](crate::TimerReason::LimitReached): the reactor holds `timers_max` timers.
    #[doc(alias("timerfd_create", "timerfd_settime"))]
    pub fn after<H: TimerFn<Self, Args>, Args: 'static>(
        &mut self,
        delay: Duration,
        handler: H,
    ) -> Result<Key, TimerReason> {
        turn::start_dropping(self, Schedule::After(delay), handler)
    }

    /// See [`Turn::after_with`].
    ///
    /// # Errors
    /// The reasons of [`after`](Self::after).
    pub fn after_with<F: FnMut(Turn<'_, Self>) + 'static>(
        &mut self,
        delay: Duration,
        closure: F,
    ) -> Result<Key, TimerReason> {
        turn::start_dropping(self, Schedule::After(delay), closure)
    }

    /// See [`Turn::at`].
    ///
    /// # Errors
    /// The reasons of [`after`](Self::after).
    #[doc(alias = "TFD_TIMER_ABSTIME")]
    pub fn at<H: TimerFn<Self, Args>, Args: 'static>(
        &mut self,
        deadline: Instant,
        handler: H,
    ) -> Result<Key, TimerReason> {
        turn::start_dropping(self, Schedule::At(deadline), handler)
    }

    /// See [`Turn::at_with`].
    ///
    /// # Errors
    /// The reasons of [`after`](Self::after).
    pub fn at_with<F: FnMut(Turn<'_, Self>) + 'static>(
        &mut self,
        deadline: Instant,
        closure: F,
    ) -> Result<Key, TimerReason> {
        turn::start_dropping(self, Schedule::At(deadline), closure)
    }

    /// See [`Turn::every`].
    ///
    /// # Errors
    /// The handler is dropped: [`try_start`](Self::try_start) returns it.
    ///
    /// - [`LimitReached`](crate::TimerReason::LimitReached): the reactor holds `timers_max` timers.
    /// - [`ZeroPeriod`](crate::TimerReason::ZeroPeriod): the period is zero.
    #[doc(alias("timerfd_create", "timerfd_settime", "setitimer"))]
    pub fn every<H: TimerFn<Self, Args>, Args: 'static>(
        &mut self,
        period: Duration,
        handler: H,
    ) -> Result<Key, TimerReason> {
        turn::start_dropping(self, Schedule::Every(period), handler)
    }

    /// See [`Turn::every_with`].
    ///
    /// # Errors
    /// The reasons of [`every`](Self::every).
    pub fn every_with<F: FnMut(Turn<'_, Self>) + 'static>(
        &mut self,
        period: Duration,
        closure: F,
    ) -> Result<Key, TimerReason> {
        turn::start_dropping(self, Schedule::Every(period), closure)
    }

    /// See [`Turn::try_start`].
    ///
    /// # Errors
    /// The reasons of [`every`](Self::every). The error returns the handler.
    pub fn try_start<H: TimerFn<Self, Args>, Args: 'static>(
        &mut self,
        schedule: Schedule,
        handler: H,
    ) -> Result<Key, TimerError<H>> {
        turn::start(self, schedule, handler)
    }

    /// See [`Turn::cancel`].
    ///
    /// # Errors
    /// [`NotFound`] if the key does not name a timer.
    ///
    /// # Panics
    /// With the panic of the handler's destructor. The timer is cancelled.
    pub fn cancel(&mut self, key: Key) -> Result<(), NotFound> {
        ReactorOps::cancel(self, key)
    }

    /// See [`Turn::reset`].
    ///
    /// # Errors
    /// [`NotFound`] if the key does not name a timer.
    pub fn reset(&mut self, key: Key, delay: Duration) -> Result<(), NotFound> {
        self.reset_timer(key, Schedule::After(delay))
    }

    /// See [`Turn::reset_at`].
    ///
    /// # Errors
    /// [`NotFound`] if the key does not name a timer.
    pub fn reset_at(&mut self, key: Key, deadline: Instant) -> Result<(), NotFound> {
        self.reset_timer(key, Schedule::At(deadline))
    }

    /// Calls a closure at the start of the next turn, which then does not wait. See
    /// [`Turn::defer`].
    ///
    /// # Errors
    /// [`LimitReached`](crate::DeferReason::LimitReached): `deferred_max` closures are queued. The
    /// closure is dropped: [`try_defer`](Self::try_defer) returns it.
    pub fn defer<F: FnOnce(Turn<'_, Self>) + 'static>(
        &mut self,
        closure: F,
    ) -> Result<(), DeferReason> {
        self.try_defer(closure).map_err(|_| DeferReason::LimitReached)
    }

    /// See [`Turn::try_defer`].
    ///
    /// # Errors
    /// [`DeferError`] if `deferred_max` closures are queued.
    pub fn try_defer<F: FnOnce(Turn<'_, Self>) + 'static>(
        &mut self,
        closure: F,
    ) -> Result<(), DeferError<F>> {
        turn::defer(self, closure)
    }

    /// Calls a closure before every wait. Registrations made in it may fire in the turn that
    /// follows.
    ///
    /// # Errors
    /// [`HookError`] if [`HOOKS_MAX`](crate::HOOKS_MAX) hooks are registered.
    pub fn before_wait(
        &mut self,
        hook: impl FnMut(Turn<'_, Self>) + 'static,
    ) -> Result<HookKey, HookError> {
        self.add_hook(Moment::BeforeWait, Box::new(hook))
    }

    /// Calls a closure at the end of every turn, after events, timers and deferred closures.
    ///
    /// # Errors
    /// [`HookError`] if [`HOOKS_MAX`](crate::HOOKS_MAX) hooks are registered.
    pub fn after_turn(
        &mut self,
        hook: impl FnMut(Turn<'_, Self>) + 'static,
    ) -> Result<HookKey, HookError> {
        self.add_hook(Moment::AfterTurn, Box::new(hook))
    }

    fn add_hook(&mut self, moment: Moment, call: HookCall) -> Result<HookKey, HookError> {
        let key = self.hooks.add(moment, call)?;
        self.kernel.note(pending_work::HOOKS);
        Ok(key)
    }

    /// Removes a hook. Its destructor runs at once.
    ///
    /// # Errors
    /// [`NotFound`] if the hook was removed already.
    ///
    /// # Panics
    /// With the panic of the hook's destructor. The hook is removed.
    pub fn remove_hook(&mut self, key: HookKey) -> Result<(), NotFound> {
        let hook = self.hooks.remove(key)?;
        if self.hooks.is_empty() {
            self.kernel.clear(pending_work::HOOKS);
        }
        drop(hook);
        Ok(())
    }

    /// The reactor's counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let counters = self.kernel.stats();
        Stats {
            turns: counters.turns,
            events: counters.events,
            wakes: counters.wakes,
            timers_fired: counters.timers_fired,
            calls: counters.calls,
            rebuilds: counters.rebuilds,
            subscribers: self.kernel.subscribers(),
            timers: self.timing.len(),
            quarantined: self.kernel.quarantined(),
            handler_max: counters.handler_max,
            lag_max: counters.lag_max,
            backend: self.backend(),
            ring_error: self.ring_error,
            buffer_bytes: self.kernel.backend().pool_bytes(),
        }
    }

    /// Whether the active backend supports this interest. It rejects others as `Unsupported`. See
    /// [`Backend`].
    #[must_use]
    pub fn supports(&self, interest: Interest) -> bool {
        self.kernel.backend().supports(interest)
    }

    /// The active backend; never [`Backend::Auto`] or [`Backend::UringOrEpoll`].
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.kernel.backend().kind()
    }

    /// The requested ring features that are available. For tests and benchmarks.
    #[doc(hidden)]
    #[must_use]
    pub fn ring_features(&self) -> Option<RingFeatures> {
        self.kernel.backend().ring_features()
    }

    /// The wake descriptor is readable.
    pub(super) fn note_wake(&mut self) {
        self.kernel.counters().wakes += 1;
        self.turn.note_wake();
        self.kernel.note(pending_work::WOKEN);
        // Without a remote, turns do not touch the latch. The wake-up came from a stop, which has
        // set its own flag.
        if !self.kernel.has(pending_work::REMOTE) {
            fall_asleep(self.stop.latch());
        }
    }
}

impl Turn<'_> {
    /// The active backend: [`Reactor::backend`].
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.ops_ref().backend()
    }

    /// The number of this turn: that of [`Stats::turns`], without the other counters. For a state
    /// that begins anew in each turn.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.ops_ref().kernel.stats().turns
    }
}

/// For crates of this repository.
#[doc(hidden)]
impl Turn<'_> {
    /// [`Reactor::has_own_clock`].
    #[must_use]
    pub fn has_own_clock(&self) -> bool {
        self.ops_ref().has_own_clock()
    }

    /// Whether streams may go by completion: on a ring of the kernel, or of a simulation.
    #[must_use]
    pub fn has_ring(&self) -> bool {
        self.ops_ref().kernel.backend().has_ring()
    }

    /// [`Reactor::supports`].
    #[must_use]
    pub fn supports(&self, interest: Interest) -> bool {
        self.ops_ref().supports(interest)
    }
}

impl Sealed for Reactor {}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
