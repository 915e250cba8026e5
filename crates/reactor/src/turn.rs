//! What a handler may do: [`Turn`], and [`ReactorOps`], which the reactor and its mock have in
//! common.

use core::{fmt, marker::PhantomData};
use std::{
    any::{Any, TypeId},
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use crate::{
    AddError, DeferError, Event, GroupKey, Interest, Key, ModifyError, NotFound, Reactor, Stats,
    Subscription, TimerError,
    group::{ErasedGroup, Group, GroupError, GroupState},
    handler_fn::TimerFn,
    timer::{Deferred, Schedule, Timer, typed_timer_error},
};

/// Proof that a call comes from this crate. Nobody else can name or make one.
#[derive(Debug)]
pub struct Token(pub(crate) ());

/// A value that waits for a descriptor and handles its events.
///
/// Most are made by [`interest`](crate::interest())`().with_fd(..).with_handler(..)`; write one by
/// hand where a type is its own subscriber. The value moves into a heap cell when it is registered
/// and stays there until it is deleted or taken back.
pub trait Subscriber<R: ReactorOps = Reactor>: Any {
    /// The descriptor to wait for. Asked once, at registration: what it says later is not trusted
    /// (rule 6).
    fn fd(&self) -> BorrowedFd<'_>;

    /// What to wait for first. Asked once, at registration; `modify` changes it.
    fn interest(&self) -> Interest;

    /// Called when the descriptor is ready. Read until `WouldBlock` if the interest is
    /// edge-triggered.
    ///
    /// A panic unwinds out of `run_once`; the reactor stays usable and goes on with the rest of the
    /// batch (rule 8).
    fn handle(&mut self, event: Event, turn: Turn<'_, R>);

    #[doc(hidden)]
    fn fd_type(&self, _: Token) -> Option<TypeId> {
        None
    }

    #[doc(hidden)]
    fn into_fd(self: Box<Self>, _: Token) -> Option<Box<dyn Any>> {
        None
    }
}

impl<R: ReactorOps> Subscriber<R> for Box<dyn Subscriber<R>> {
    fn fd(&self) -> BorrowedFd<'_> {
        (**self).fd()
    }

    fn interest(&self) -> Interest {
        (**self).interest()
    }

    fn handle(&mut self, event: Event, turn: Turn<'_, R>) {
        (**self).handle(event, turn);
    }

    fn fd_type(&self, token: Token) -> Option<TypeId> {
        (**self).fd_type(token)
    }

    fn into_fd(self: Box<Self>, token: Token) -> Option<Box<dyn Any>> {
        (*self).into_fd(token)
    }
}

pub(crate) mod sealed {
    /// Only this crate's types are reactors.
    pub trait Sealed {}
}

/// What [`Reactor`] and its mock can do for a handler, with subscribers, timers and closures
/// erased.
///
/// Handlers are written for any `R: ReactorOps` (`turn: Turn<'_, impl ReactorOps>`), so that a unit
/// test runs them with a mock. They call the methods of [`Turn`], which add the types again.
pub trait ReactorOps: sealed::Sealed + Sized + 'static {
    /// Registers an erased subscriber; see [`Turn::add`].
    ///
    /// # Errors
    /// See [`AddReason`](crate::AddReason); the subscription comes back.
    fn add_cell(
        &mut self,
        subscription: Subscription<Self>,
    ) -> Result<Key, AddError<Subscription<Self>>>;
    /// See [`Turn::modify`].
    ///
    /// # Errors
    /// See [`ModifyError`].
    fn modify(&mut self, key: Key, interest: Interest) -> Result<(), ModifyError>;
    /// See [`Turn::rearm`].
    ///
    /// # Errors
    /// See [`ModifyError`].
    fn rearm(&mut self, key: Key) -> Result<(), ModifyError>;
    /// See [`Turn::delete`].
    ///
    /// # Errors
    /// [`NotFound`].
    fn delete(&mut self, key: Key) -> Result<(), NotFound>;
    /// Registers an erased group; see [`Group::register_into`].
    ///
    /// # Errors
    /// See [`GroupError`]; the group comes back.
    fn add_group(
        &mut self,
        group: ErasedGroup<Self>,
    ) -> Result<(Key, Vec<Key>), GroupError<ErasedGroup<Self>>>;
    /// The erased state of a group; see [`Turn::group`].
    fn group_state(&mut self, group: Key) -> Option<GroupState>;
    /// See [`Turn::delete_group`].
    ///
    /// # Errors
    /// [`NotFound`].
    fn delete_group_erased(&mut self, group: Key) -> Result<(), NotFound>;
    /// Starts an erased timer; see [`Turn::after`].
    ///
    /// # Errors
    /// See [`TimerReason`](crate::TimerReason); the timer comes back.
    fn start_timer(&mut self, timer: Timer<Self>) -> Result<Key, TimerError<Timer<Self>>>;
    /// See [`Turn::cancel`].
    ///
    /// # Errors
    /// [`NotFound`].
    fn cancel(&mut self, key: Key) -> Result<(), NotFound>;
    /// See [`Turn::reset`] and [`Turn::reset_at`].
    ///
    /// # Errors
    /// [`NotFound`].
    fn reset_timer(&mut self, key: Key, schedule: Schedule) -> Result<(), NotFound>;
    /// Defers an erased closure; see [`Turn::defer`].
    ///
    /// # Errors
    /// [`DeferError`]; the closure comes back.
    fn defer_boxed(&mut self, closure: Deferred<Self>) -> Result<(), DeferError<Deferred<Self>>>;
    /// See [`Turn::stop`].
    fn stop(&mut self);
    /// See [`Turn::stats`].
    fn stats(&self) -> Stats;
    /// See [`Turn::now`].
    fn now(&mut self) -> Instant;

    #[doc(hidden)]
    fn stale_entry_fired(&mut self, _: Token) {}
}

/// What one handler may do, for the time of one call.
///
/// It leads to the reactor's books and to nothing else: there is no way to the [`Reactor`] itself,
/// to its wait, or to the value that is running (rule 4). Calls that would run other callbacks
/// queue them; the one exception is the destructor of a subscriber that another one deletes, which
/// runs at once (rule 13).
///
/// `!Send`, `!Sync`, not `Clone`. A function for real reactors alone writes `Turn<'_>`, one that a
/// mock can test `Turn<'_, impl ReactorOps>`, a closure `Turn<'_, _>`.
pub struct Turn<'a, R: ReactorOps = Reactor> {
    reactor: &'a mut R,
    not_send: PhantomData<*mut ()>,
}

impl<R: ReactorOps> fmt::Debug for Turn<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").finish_non_exhaustive()
    }
}

impl<'a, R: ReactorOps> Turn<'a, R> {
    #[inline(always)]
    pub(crate) fn new(reactor: &'a mut R) -> Self {
        Self { reactor, not_send: PhantomData }
    }

    /// The reactor, for this crate.
    pub(crate) fn ops(&mut self) -> &mut R {
        self.reactor
    }

    /// The same turn for a shorter time: for a type that has one inside and lends it.
    #[must_use]
    pub fn reborrow(&mut self) -> Turn<'_, R> {
        Turn::new(self.reactor)
    }

    /// Registers a subscriber. It does not fire in this turn (rule 9).
    ///
    /// # Errors
    /// See [`AddReason`](crate::AddReason); the subscriber comes back, its descriptor open.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn add<S: Subscriber<R>>(&mut self, subscriber: S) -> Result<Key, AddError<S>> {
        add(self.reactor, subscriber)
    }

    /// Changes what a registration waits for, be it one's own.
    ///
    /// Edge-triggered and one-shot interests reach the kernel at once and re-arm, even if nothing
    /// else changes. Level-triggered changes of one turn are merged into one system call before the
    /// next wait; if the kernel refuses one then (the descriptor was closed meanwhile, say), the
    /// subscriber gets an event with the error condition. An empty interest
    /// ([`interest()`](crate::interest())) pauses a registration: it hears of an error or hang-up,
    /// once, and of nothing else. An event that was fetched before the change may still come.
    ///
    /// # Errors
    /// See [`ModifyError`]; the old interest stays in force.
    pub fn modify(&mut self, key: Key, interest: Interest) -> Result<(), ModifyError> {
        self.reactor.modify(key, interest)
    }

    /// Arms a one-shot registration again, with the interest it has.
    ///
    /// # Errors
    /// See [`ModifyError`].
    pub fn rearm(&mut self, key: Key) -> Result<(), ModifyError> {
        self.reactor.rearm(key)
    }

    /// Deletes a registration, one's own by `event.key()`. It does not fire again, not even for an
    /// event fetched already (rule 9).
    ///
    /// Another's destructor runs at once, and its panic comes out here. One's own runs after the
    /// handler has returned; until then its descriptor's number stays taken
    /// ([`AlreadyExists`](crate::AddReason::AlreadyExists)).
    ///
    /// # Errors
    /// [`NotFound`] for a key that names no descriptor's registration. Whatever the kernel says, a
    /// key that was found is deleted.
    pub fn delete(&mut self, key: Key) -> Result<(), NotFound> {
        self.reactor.delete(key)
    }

    /// Begins to add members to a group that is registered: finish with [`Group::register_into`].
    ///
    /// # Errors
    /// [`NotFound`] when the group is gone.
    pub fn group<S: 'static>(&mut self, group: GroupKey<S>) -> Result<Group<S, R>, NotFound> {
        Group::joining(group, self.reactor)
    }

    /// Deletes a group with all its members. If one of them is running, it and the state go after
    /// its handler has returned.
    ///
    /// # Errors
    /// [`NotFound`] when the group is gone already.
    pub fn delete_group<S: 'static>(&mut self, group: GroupKey<S>) -> Result<(), NotFound> {
        self.reactor.delete_group_erased(group.key())
    }

    /// Calls a handler once, when `delay` has passed since [`now`](Self::now).
    ///
    /// Handlers take any ordered subset of [`Tick`](crate::Tick) and `Turn<'_, _>`. Nanoseconds
    /// count; a delay too long for 64 bits of them never ends. The earliest moment is the next turn
    /// (rule 9), by a later time than this turn's: a test's clock that stands still has to be
    /// moved, be it by a nanosecond. The key lives until the handler has returned.
    ///
    /// A closure writes the types of its parameters here; `|turn| ..` without them goes to
    /// [`after_with`](Self::after_with).
    ///
    /// # Errors
    /// See [`TimerReason`](crate::TimerReason); the handler comes back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn after<H: TimerFn<R, Args>, Args: 'static>(
        &mut self,
        delay: Duration,
        handler: H,
    ) -> Result<Key, TimerError<H>> {
        start(self.reactor, Schedule::After(delay), handler)
    }

    /// [`after`](Self::after) for a closure that takes the turn, whose type need not be written.
    ///
    /// `after` takes many kinds of handlers, so the compiler cannot tell what the parameter of
    /// `|turn| ..` is; here it can.
    ///
    /// # Errors
    /// See [`TimerReason`](crate::TimerReason); the closure comes back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn after_with<F: FnMut(Turn<'_, R>) + 'static>(
        &mut self,
        delay: Duration,
        closure: F,
    ) -> Result<Key, TimerError<F>> {
        start(self.reactor, Schedule::After(delay), closure)
    }

    /// Calls a handler once, at `deadline`; in the next turn if that has passed. See
    /// [`after`](Self::after).
    ///
    /// # Errors
    /// See [`TimerReason`](crate::TimerReason); the handler comes back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn at<H: TimerFn<R, Args>, Args: 'static>(
        &mut self,
        deadline: Instant,
        handler: H,
    ) -> Result<Key, TimerError<H>> {
        start(self.reactor, Schedule::At(deadline), handler)
    }

    /// [`at`](Self::at) for a closure that takes the turn; see [`after_with`](Self::after_with).
    ///
    /// # Errors
    /// See [`TimerReason`](crate::TimerReason); the closure comes back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn at_with<F: FnMut(Turn<'_, R>) + 'static>(
        &mut self,
        deadline: Instant,
        closure: F,
    ) -> Result<Key, TimerError<F>> {
        start(self.reactor, Schedule::At(deadline), closure)
    }

    /// Calls a handler every `period`, first when one has passed, until it is cancelled.
    ///
    /// The beats keep their places: a late one does not shift the next. Beats that were missed
    /// altogether are counted in [`Tick::missed`](crate::Tick::missed) instead of fired one by one.
    ///
    /// # Errors
    /// See [`TimerReason`](crate::TimerReason); the handler comes back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn every<H: TimerFn<R, Args>, Args: 'static>(
        &mut self,
        period: Duration,
        handler: H,
    ) -> Result<Key, TimerError<H>> {
        start(self.reactor, Schedule::Every(period), handler)
    }

    /// [`every`](Self::every) for a closure that takes the turn; see
    /// [`after_with`](Self::after_with).
    ///
    /// # Errors
    /// See [`TimerReason`](crate::TimerReason); the closure comes back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn every_with<F: FnMut(Turn<'_, R>) + 'static>(
        &mut self,
        period: Duration,
        closure: F,
    ) -> Result<Key, TimerError<F>> {
        start(self.reactor, Schedule::Every(period), closure)
    }

    /// Ends a timer; its handler's destructor runs at once, or after the handler has returned if it
    /// cancels itself.
    ///
    /// # Errors
    /// [`NotFound`] for a key that names no timer: one that has fired, say.
    pub fn cancel(&mut self, key: Key) -> Result<(), NotFound> {
        self.reactor.cancel(key)
    }

    /// Moves a timer's next firing to `delay` from [`now`](Self::now); later beats of a repeated
    /// one follow from there.
    ///
    /// In its own handler this gives a timer of [`after`](Self::after) another round.
    ///
    /// # Errors
    /// [`NotFound`] for a key that names no timer.
    pub fn reset(&mut self, key: Key, delay: Duration) -> Result<(), NotFound> {
        self.reactor.reset_timer(key, Schedule::After(delay))
    }

    /// Moves a timer's next firing to `deadline`; see [`reset`](Self::reset).
    ///
    /// # Errors
    /// [`NotFound`] for a key that names no timer.
    pub fn reset_at(&mut self, key: Key, deadline: Instant) -> Result<(), NotFound> {
        self.reactor.reset_timer(key, Schedule::At(deadline))
    }

    /// Calls a closure at the end of this turn, after its events and timers.
    ///
    /// What a deferred closure defers, or is more than `deferred_per_turn`, goes first in the next
    /// turn, which does not wait.
    ///
    /// # Errors
    /// [`DeferError`] when `deferred_max` closures wait; the closure comes back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn defer<F: FnOnce(Turn<'_, R>) + 'static>(
        &mut self,
        closure: F,
    ) -> Result<(), DeferError<F>> {
        defer(self.reactor, closure)
    }

    /// Makes [`Reactor::run`] return after this turn.
    pub fn stop(&mut self) {
        self.reactor.stop();
    }

    /// The reactor's counts.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.reactor.stats()
    }

    /// The turn's clock: read once, when it is first asked for, and the same for the whole turn.
    #[must_use]
    pub fn now(&mut self) -> Instant {
        self.reactor.now()
    }
}

pub(crate) fn add<R: ReactorOps, S: Subscriber<R>>(
    reactor: &mut R,
    subscriber: S,
) -> Result<Key, AddError<S>> {
    reactor.add_cell(Subscription::new(subscriber)).map_err(|e| e.map(came_back))
}

/// The subscriber of a subscription that `add_cell` has refused.
pub(crate) fn came_back<R: ReactorOps, S: Subscriber<R>>(subscription: Subscription<R>) -> S {
    subscription.into_inner().unwrap_or_else(|_| {
        panic!(
            "add_cell gave back another subscriber than it was given: a mock's expectation is wrong"
        )
    })
}

pub(crate) fn start<R: ReactorOps, H: TimerFn<R, Args>, Args: 'static>(
    reactor: &mut R,
    schedule: Schedule,
    handler: H,
) -> Result<Key, TimerError<H>> {
    reactor.start_timer(Timer::new(schedule, handler)).map_err(typed_timer_error::<R, H, Args>)
}

pub(crate) fn defer<R: ReactorOps, F: FnOnce(Turn<'_, R>) + 'static>(
    reactor: &mut R,
    closure: F,
) -> Result<(), DeferError<F>> {
    reactor
        .defer_boxed(Deferred::new(closure))
        .map_err(|e| DeferError { closure: e.closure.into_inner() })
}
