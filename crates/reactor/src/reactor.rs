//! The reactor: what it is made of, and what its owner may do with it outside a turn.

use core::fmt;
use std::{
    io,
    time::{Duration, Instant},
};

use crate::{
    AddError, Backend, BuildError, Builder, DeferError, GroupKey, HookError, HookKey, Interest,
    Key, ModifyError, NotFound, RingFeatures, Stats, Stop, Subscriber, TimerError, Turn,
    arena::Arena,
    backend::Driver,
    batch::Batch,
    cell::{CellPtr, Flags},
    clock::Time,
    config::Limits,
    groups::GroupRecord,
    handler_fn::TimerFn,
    hook::{HookCall, Hooks, Moment},
    interest::interest,
    reclaim::ReclaimQueue,
    registry::Registry,
    remote::Inbox,
    stats::Counters,
    stop::fall_asleep,
    stream::Streams,
    timer::{DeferredQueue, Schedule, Timers},
    turn::{self, ReactorOps, sealed::Sealed},
    unwind_safe_drop::Panics,
};

/// An event loop: descriptors, timers and closures, and one thread that serves them.
///
/// It is one concrete type, not `Send`, and may be moved between turns. It owns its subscribers:
/// dropping it drops them, each one's panic caught and the first resumed (rule 8).
pub struct Reactor {
    /// What the loop reads for every event comes first.
    pub(crate) batch: Batch,
    /// What a turn must look at beside its events; zero on the shortest path.
    pub(crate) pending_work: u32,
    pub(crate) phase: Phase,
    pub(crate) counters: Counters,
    pub(crate) driver: Driver,
    pub(crate) registry: Registry<Self>,
    pub(crate) groups: Arena<GroupRecord>,
    pub(crate) timers: Timers<Self>,
    pub(crate) deferred: DeferredQueue<Self>,
    /// What deferred closures have deferred: it joins the others when the next turn begins.
    pub(crate) deferred_later: DeferredQueue<Self>,
    /// A deferred closure runs.
    pub(crate) is_deferring: bool,
    /// Timers were due when the turn had fired as many as it may: they go first in the next.
    pub(crate) timers_left: bool,
    /// What other threads have queued; `None` before the first [`Remote`](crate::Remote).
    pub(crate) inbox: Option<Inbox>,
    /// The last turn has left calls in the inbox: they go first in the next.
    pub(crate) calls_left: bool,
    pub(crate) reclaim: ReclaimQueue<Self>,
    /// The running cell, if it has deleted itself: its value goes when the handler has returned
    /// (rule 1).
    pub(crate) self_deleted: Option<SelfDeleted>,
    /// Registrations with a merged `modify` that the kernel has not heard of.
    pub(crate) dirty: Vec<Key>,
    /// Registrations that are owed an error event.
    pub(crate) faults: Vec<Key>,
    /// `None` before the first stream or listener.
    pub(crate) streams: Option<Box<Streams>>,
    pub(crate) hooks: Hooks,
    pub(crate) time: Time,
    pub(crate) stop: Stop,
    pub(crate) limits: Limits,
    pub(crate) busy_poll: Duration,
    /// When the wait ended, while the watchdog is on.
    pub(crate) watch: Option<Instant>,
    /// Wake-ups among this turn's events: not the user's, so not counted for him.
    pub(crate) woken: usize,
    /// The next wait follows at once, and will submit what is queued with a ring.
    pub(crate) keeps_queue: bool,
}

/// What the dispatcher is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing: the owner has the reactor.
    Idle,
    /// It runs the handlers of the batch; the running one is the last that the batch gave out.
    Events,
    /// It runs a timer, a deferred closure or a hook.
    Calls,
}

/// A cell that has deleted itself in its handler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelfDeleted {
    pub(crate) cell: CellPtr<Reactor>,
    pub(crate) is_stale: bool,
}

/// A reactor stays on its thread: a ring has one submitter, and handlers may hold what is not
/// `Send`. Were it `Send` or `Sync`, two implementations would do here, and this would not compile.
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

/// Bits of [`Reactor::pending_work`].
pub(crate) mod pending_work {
    /// The batch has events left over from a turn that panicked.
    pub(crate) const KEPT: u32 = 1;
    pub(crate) const TIMERS: u32 = 1 << 1;
    pub(crate) const DEFERRED: u32 = 1 << 2;
    pub(crate) const DIRTY: u32 = 1 << 3;
    pub(crate) const FAULTS: u32 = 1 << 4;
    pub(crate) const RECLAIM: u32 = 1 << 5;
    pub(crate) const REBUILD: u32 = 1 << 6;
    pub(crate) const HOOKS: u32 = 1 << 7;
    pub(crate) const WATCHDOG: u32 = 1 << 8;
    pub(crate) const BUSY_POLL: u32 = 1 << 9;
    pub(crate) const WOKEN: u32 = 1 << 10;
    pub(crate) const SELF_DELETED: u32 = 1 << 11;
    /// The turn's clock has been read.
    pub(crate) const CLOCK: u32 = 1 << 12;
    /// There is a [`Remote`](crate::Remote): the latch is told when the loop sleeps.
    pub(crate) const REMOTE: u32 = 1 << 13;
    /// The latch has been woken, or calls are left: the inbox is to be looked at, and has not been
    /// yet.
    pub(crate) const CALLS: u32 = 1 << 14;
    /// Streams are to be looked after: others than their own handlers have sent to them, say.
    pub(crate) const STREAMS: u32 = 1 << 15;
    /// Something is queued with a ring, and the turn is not one of [`run`](super::Reactor::run)'s:
    /// it is submitted when the turn ends.
    pub(crate) const QUEUED: u32 = 1 << 16;
    /// The epoll set has refused the reactor's own wake descriptor: no other thread can wake the
    /// loop.
    pub(crate) const DEAF: u32 = 1 << 17;
    /// Bits that say how the reactor was built, or hold until somebody clears them.
    pub(crate) const LASTING: u32 = HOOKS | WATCHDOG | BUSY_POLL | REBUILD | REMOTE | DEAF;
    /// Bits of work that a host of an embedded reactor must come back for at once.
    pub(crate) const WORK: u32 =
        KEPT | DEFERRED | DIRTY | FAULTS | RECLAIM | CALLS | STREAMS | DEAF;
}

impl Reactor {
    /// A reactor with the default settings.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn new() -> Result<Self, BuildError> {
        Self::builder().build()
    }

    /// Settings to build a reactor from.
    pub const fn builder() -> Builder {
        Builder::new()
    }

    pub(crate) fn from_builder(builder: Builder) -> Result<Self, BuildError> {
        let Builder { backend, limits, clock, busy_poll, watchdog, ring } = builder;
        let driver = Driver::new(backend, ring)?;
        let mut reactor = Self {
            batch: Batch::new(limits.events_per_turn),
            pending_work: if watchdog { pending_work::WATCHDOG } else { 0 }
                | if busy_poll.is_zero() { 0 } else { pending_work::BUSY_POLL },
            phase: Phase::Idle,
            counters: Counters::default(),
            driver,
            registry: Registry::new(),
            groups: Arena::new(),
            timers: Timers::new(),
            deferred: DeferredQueue::new(),
            deferred_later: DeferredQueue::new(),
            is_deferring: false,
            timers_left: false,
            inbox: None,
            calls_left: false,
            reclaim: ReclaimQueue::new(),
            self_deleted: None,
            dirty: Vec::new(),
            faults: Vec::new(),
            streams: None,
            hooks: Hooks::new(),
            time: Time::new(clock),
            stop: Stop::new().map_err(BuildError::Os)?,
            limits,
            busy_poll,
            watch: watchdog.then(Instant::now),
            woken: 0,
            keeps_queue: false,
        };
        let added = if reactor.supports(interest().read().edge_triggered()) {
            reactor.add_internal(reactor.stop.edge_subscriber())
        } else {
            reactor.add_internal(reactor.stop.level_subscriber())
        };
        added.map_err(BuildError::Os)?;
        Ok(reactor)
    }

    /// Runs turns until a [`Stop`] or [`Turn::stop`] asks for the end.
    ///
    /// # Errors
    /// What [`run_once`](Self::run_once) says.
    pub fn run(&mut self) -> io::Result<()> {
        /// Has what the last turn has queued submitted, also when it has panicked.
        struct Submit<'r>(&'r mut Reactor);
        impl Drop for Submit<'_> {
            fn drop(&mut self) {
                self.0.keeps_queue = false;
                self.0.driver.submit_now();
            }
        }
        self.keeps_queue = true;
        let submit = Submit(self);
        while !submit.0.stop.take() {
            submit.0.run_once(None)?;
        }
        Ok(())
    }

    /// A handle that makes [`run`](Self::run) return, from any thread.
    #[must_use]
    pub fn stop_handle(&self) -> Stop {
        self.stop.clone()
    }

    /// Whether timers and turns go by a clock of the user's
    /// ([`Builder::clock`](crate::Builder::clock)) and not by the system's: for who would let the
    /// kernel tell the time otherwise.
    #[must_use]
    pub fn has_own_clock(&self) -> bool {
        self.time.is_custom()
    }

    /// Whether a stop was asked for that no [`run`](Self::run) has consumed: for those who call
    /// `run_once` themselves.
    #[must_use]
    pub fn stop_requested(&self) -> bool {
        self.stop.is_asked()
    }

    /// See [`Turn::add`].
    ///
    /// # Errors
    /// See [`AddReason`](crate::AddReason); the subscriber comes back, its descriptor open.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn add<S: Subscriber<Self>>(&mut self, subscriber: S) -> Result<Key, AddError<S>> {
        turn::add(self, subscriber)
    }

    /// See [`Turn::modify`]; outside a turn, every change reaches the kernel at once.
    ///
    /// # Errors
    /// See [`ModifyError`]; the old interest stays in force.
    pub fn modify(&mut self, key: Key, interest: Interest) -> Result<(), ModifyError> {
        ReactorOps::modify(self, key, interest)
    }

    /// See [`Turn::rearm`].
    ///
    /// # Errors
    /// See [`ModifyError`].
    pub fn rearm(&mut self, key: Key) -> Result<(), ModifyError> {
        ReactorOps::rearm(self, key)
    }

    /// Deletes a registration; its destructor runs at once, and its panic comes out here. See
    /// [`Turn::delete`].
    ///
    /// # Errors
    /// [`NotFound`] for a key that names no descriptor's registration.
    pub fn delete(&mut self, key: Key) -> Result<(), NotFound> {
        ReactorOps::delete(self, key)
    }

    /// Deletes a group with all its members. See [`Turn::delete_group`].
    ///
    /// # Errors
    /// [`NotFound`] when the group is gone already.
    pub fn delete_group<S: 'static>(&mut self, group: GroupKey<S>) -> Result<(), NotFound> {
        self.delete_group_erased(group.key())
    }

    /// The state of a group, or `None` when it is gone.
    pub fn group_mut<S: 'static>(&mut self, group: GroupKey<S>) -> Option<&mut S> {
        self.borrow_state(group)
    }

    /// See [`Turn::after`].
    ///
    /// # Errors
    /// See [`TimerReason`](crate::TimerReason); the handler comes back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn after<H: TimerFn<Self, Args>, Args: 'static>(
        &mut self,
        delay: Duration,
        handler: H,
    ) -> Result<Key, TimerError<H>> {
        turn::start(self, Schedule::After(delay), handler)
    }

    /// See [`Turn::after_with`].
    ///
    /// # Errors
    /// See [`TimerReason`](crate::TimerReason); the closure comes back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn after_with<F: FnMut(Turn<'_, Self>) + 'static>(
        &mut self,
        delay: Duration,
        closure: F,
    ) -> Result<Key, TimerError<F>> {
        turn::start(self, Schedule::After(delay), closure)
    }

    /// See [`Turn::at`].
    ///
    /// # Errors
    /// See [`TimerReason`](crate::TimerReason); the handler comes back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn at<H: TimerFn<Self, Args>, Args: 'static>(
        &mut self,
        deadline: Instant,
        handler: H,
    ) -> Result<Key, TimerError<H>> {
        turn::start(self, Schedule::At(deadline), handler)
    }

    /// See [`Turn::at_with`].
    ///
    /// # Errors
    /// See [`TimerReason`](crate::TimerReason); the closure comes back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn at_with<F: FnMut(Turn<'_, Self>) + 'static>(
        &mut self,
        deadline: Instant,
        closure: F,
    ) -> Result<Key, TimerError<F>> {
        turn::start(self, Schedule::At(deadline), closure)
    }

    /// See [`Turn::every`].
    ///
    /// # Errors
    /// See [`TimerReason`](crate::TimerReason); the handler comes back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn every<H: TimerFn<Self, Args>, Args: 'static>(
        &mut self,
        period: Duration,
        handler: H,
    ) -> Result<Key, TimerError<H>> {
        turn::start(self, Schedule::Every(period), handler)
    }

    /// See [`Turn::every_with`].
    ///
    /// # Errors
    /// See [`TimerReason`](crate::TimerReason); the closure comes back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn every_with<F: FnMut(Turn<'_, Self>) + 'static>(
        &mut self,
        period: Duration,
        closure: F,
    ) -> Result<Key, TimerError<F>> {
        turn::start(self, Schedule::Every(period), closure)
    }

    /// See [`Turn::cancel`].
    ///
    /// # Errors
    /// [`NotFound`] for a key that names no timer.
    pub fn cancel(&mut self, key: Key) -> Result<(), NotFound> {
        ReactorOps::cancel(self, key)
    }

    /// See [`Turn::reset`].
    ///
    /// # Errors
    /// [`NotFound`] for a key that names no timer.
    pub fn reset(&mut self, key: Key, delay: Duration) -> Result<(), NotFound> {
        self.reset_timer(key, Schedule::After(delay))
    }

    /// See [`Turn::reset_at`].
    ///
    /// # Errors
    /// [`NotFound`] for a key that names no timer.
    pub fn reset_at(&mut self, key: Key, deadline: Instant) -> Result<(), NotFound> {
        self.reset_timer(key, Schedule::At(deadline))
    }

    /// Calls a closure first thing in the next turn, which then does not wait. See [`Turn::defer`].
    ///
    /// # Errors
    /// [`DeferError`] when `deferred_max` closures wait; the closure comes back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn defer<F: FnOnce(Turn<'_, Self>) + 'static>(
        &mut self,
        closure: F,
    ) -> Result<(), DeferError<F>> {
        turn::defer(self, closure)
    }

    /// Calls a closure before every wait. What it registers may fire in the turn that follows.
    ///
    /// # Errors
    /// [`HookError`] when [`HOOKS_MAX`](crate::HOOKS_MAX) are there already.
    pub fn before_wait(
        &mut self,
        hook: impl FnMut(Turn<'_, Self>) + 'static,
    ) -> Result<HookKey, HookError> {
        self.add_hook(Moment::BeforeWait, Box::new(hook))
    }

    /// Calls a closure at the end of every turn, after events, timers and deferred closures.
    ///
    /// # Errors
    /// [`HookError`] when [`HOOKS_MAX`](crate::HOOKS_MAX) are there already.
    pub fn after_turn(
        &mut self,
        hook: impl FnMut(Turn<'_, Self>) + 'static,
    ) -> Result<HookKey, HookError> {
        self.add_hook(Moment::AfterTurn, Box::new(hook))
    }

    fn add_hook(&mut self, moment: Moment, call: HookCall) -> Result<HookKey, HookError> {
        let key = self.hooks.add(moment, call)?;
        self.pending_work |= pending_work::HOOKS;
        Ok(key)
    }

    /// Removes a hook; its destructor runs at once.
    ///
    /// # Errors
    /// [`NotFound`] when it is gone already.
    pub fn remove_hook(&mut self, key: HookKey) -> Result<(), NotFound> {
        let hook = self.hooks.remove(key)?;
        if self.hooks.is_empty() {
            self.pending_work &= !pending_work::HOOKS;
        }
        drop(hook);
        Ok(())
    }

    /// The reactor's counts.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let counters = &self.counters;
        Stats {
            turns: counters.turns,
            events: counters.events,
            wakes: counters.wakes,
            timers_fired: counters.timers_fired,
            calls: counters.calls,
            rebuilds: counters.rebuilds,
            subscribers: self.subscribers(),
            timers: self.timers.len(),
            quarantined: self.reclaim.quarantined(),
            handler_max: counters.handler_max,
            lag_max: counters.lag_max,
            backend: self.backend(),
            buffer_bytes: self.driver.pool_bytes(),
        }
    }

    /// Whether the backend at work has this manner of interest; what it does not have is refused as
    /// `Unsupported`. See [`Backend`].
    #[must_use]
    pub fn supports(&self, interest: Interest) -> bool {
        self.driver.supports(interest)
    }

    /// The backend at work: never [`Backend::Auto`].
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.driver.backend()
    }

    /// What the ring has of what it was asked for: for tests and benchmarks.
    #[doc(hidden)]
    #[must_use]
    pub fn ring_features(&self) -> Option<RingFeatures> {
        self.driver.ring_features()
    }

    pub(crate) fn note_wake(&mut self) {
        self.counters.wakes += 1;
        self.woken += 1;
        self.pending_work |= pending_work::WOKEN;
        // Without a remote, turns do not touch the latch: what woke us was a stop, which has left
        // its own mark.
        if self.pending_work & pending_work::REMOTE == 0 {
            fall_asleep(self.stop.latch());
        }
    }
}

impl Sealed for Reactor {}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        let mut panics = Panics::default();
        let is_owner = self.driver.check_owner().is_ok();
        // Nobody waits for an answer while destructors take their time.
        if let Some(inbox) = self.inbox.take() {
            if is_owner {
                inbox.close(&mut panics);
            } else {
                // In a child of fork(2) nobody waits, and another thread of the parent's may have
                // held the queue's lock: it is never given back here.
                core::mem::forget(inbox);
            }
        }
        // Before descriptors are closed (rule 14): what was sent goes out.
        self.driver.submit_now();
        // What the kernel still owes for longer than it should is leaked (rule 2).
        self.driver.end(self.registry.iter());
        self.driver.close();
        // Rule 8: every destructor runs although others panic. A cell leaves the books before its
        // value is dropped (rule 3).
        while let Some(cell) = self.registry.pop() {
            cell.set_flag(Flags::ABSENT, true);
            self.reclaim.retire(cell, false, false);
        }
        while let Some(call) = self.timers.pop() {
            panics.catch(|| drop(call));
        }
        while self.reclaim.has_waiting() {
            panics.catch(|| self.reclaim.drop_next());
        }
        self.deferred.append(&mut self.deferred_later);
        while let Some(closure) = self.deferred.pop_front() {
            panics.catch(|| drop(closure));
        }
        while let Some(hook) = self.hooks.pop() {
            panics.catch(|| drop(hook));
        }
        while let Some((_, _, group)) = self.groups.pop() {
            panics.catch(|| drop(group));
        }
        if let Some(clock) = self.time.take_custom() {
            panics.catch(|| drop(clock));
        }
        // Nobody waits on the epoll set again, so no address comes back (rule 2).
        self.batch.clear();
        self.reclaim.release_quarantine();
        if is_owner {
            self.reclaim.free(&self.batch, &self.driver);
        } else {
            self.reclaim.free_in_child();
        }
        panics.resume();
    }
}
