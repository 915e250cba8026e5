//! [`Turn`]: what a handler may do with the reactor that calls it.

use core::{fmt, marker::PhantomData};
use std::time::{Duration, Instant};

use crate::{
    DeferError, DeferReason, Interest, Key, KickError, ModifyError, NotFound, Reactor, Ready,
    Stats, TimerError, TimerReason,
    api::{
        group::{Group, GroupKey, GroupStateError, with_group},
        handler_fn::TimerFn,
        ops::{ReactorOps, Token},
        timer::{Deferred, Schedule, Timer, typed_timer_error},
    },
};

/// A handler's access to the reactor, valid for one call.
///
/// A turn gives no access to the [`Reactor`] itself, to its wait, or to the running value (rule 4).
/// Calls that would run other callbacks queue them. There is one exception: if a handler deletes
/// another subscriber, that subscriber's destructor runs at once (rule 13).
///
/// `!Send`, `!Sync`, not `Clone`. Write `Turn<'_>` in a function for real reactors only. Write
/// `Turn<'_, impl ReactorOps>` in a function that a mock can test, and `Turn<'_, _>` in a closure.
///
/// ```
/// use std::{io::{Read, Write}, os::unix::net::UnixStream, time::Duration};
/// use windlass::{Event, Reactor, Turn, interest};
///
/// fn on_ready(stream: &mut UnixStream, event: Event, mut turn: Turn<'_>) {
///     let mut buffer = [0; 64];
///     if stream.read(&mut buffer).is_ok() {
///         turn.delete(event.key()).expect("it is registered");
///         turn.defer(|mut turn| turn.stop()).expect("the queue has room");
///     }
/// }
///
/// # fn main() -> std::io::Result<()> {
/// let (mut here, there) = UnixStream::pair()?;
/// there.set_nonblocking(true)?;
/// let mut reactor = Reactor::new()?;
/// interest().read().with_fd(there).with_handler(on_ready).register_into(&mut reactor)?;
/// here.write_all(b"hello")?;
/// reactor.run()?;
/// assert_eq!(reactor.stats().subscribers, 0);
/// # Ok(())
/// # }
/// ```
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

    pub(crate) fn ops_ref(&self) -> &R {
        self.reactor
    }

    /// Borrows the turn for a shorter time. For types that hold a turn and lend it.
    #[must_use]
    pub fn reborrow(&mut self) -> Turn<'_, R> {
        Turn::new(self.reactor)
    }

    /// Changes the interest of a registration. A handler may change its own.
    ///
    /// - Edge-triggered and one-shot interests reach the kernel at once. They re-arm the
    ///   registration even if nothing else changes.
    /// - Level-triggered changes of one turn are merged into one system call before the next wait.
    ///   If the kernel rejects that call (for example, because the descriptor was closed
    ///   meanwhile), the subscriber gets an event with the error condition.
    /// - An empty interest ([`interest()`](crate::interest())) pauses a registration. It then
    ///   reports an error or hang-up once, and nothing else.
    ///
    /// An event that was fetched before the change may still be delivered.
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
        self.reactor.modify(key, interest)
    }

    /// Re-arms a one-shot registration with its current interest.
    ///
    /// # Errors
    /// - [`NotFound`](crate::ModifyError::NotFound): the key names no registered descriptor.
    /// - [`Os`](crate::ModifyError::Os): an error of the kernel. `ENOENT` or `EBADF` means that the
    ///   descriptor was closed or replaced without telling the reactor. `ESTALE` in a child of
    ///   fork(2).
    pub fn rearm(&mut self, key: Key) -> Result<(), ModifyError> {
        self.reactor.rearm(key)
    }

    /// Calls the handler of a registration in the next turn, although the kernel reports nothing:
    /// to continue after a budget is used up, or in a virtual machine, for a queue that the guest
    /// has enabled, and after a snapshot was restored. The next turn does not wait.
    ///
    /// ```
    /// use std::os::unix::net::UnixStream;
    /// use windlass::{Event, Reactor, Ready, Turn, interest};
    ///
    /// fn on_ready(event: Event, mut turn: Turn<'_>) {
    ///     assert!(event.has_read() && !event.has_write());
    ///     turn.stop();
    /// }
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let (idle, _peer) = UnixStream::pair()?;
    /// let mut reactor = Reactor::new()?;
    /// let idle = interest().read().with_fd(idle).with_handler(on_ready);
    /// let key = idle.register_into(&mut reactor)?;
    /// reactor.defer(move |mut turn| {
    ///     turn.kick(key, Ready::empty().read()).expect("it waits for reading");
    /// })?;
    /// reactor.run()
    /// # }
    /// ```
    ///
    /// - The key names a descriptor: one registered alone, a member of a group, or signals. Timers
    ///   have [`reset`](Self::reset), and streams have
    ///   [`notify`](crate::stream::Stream::notify).
    /// - The handler gets the conditions that were kicked. It must expect that a call of the system
    ///   would block. Several kicks before the turn are one call, with all their conditions. An
    ///   event of the kernel is reported separately.
    /// - A handler may kick its own registration. One that does so in every turn keeps the loop
    ///   awake, and does not starve others: over two turns, kicks leave at least half of
    ///   `events_per_turn` to the kernel. Kicks without room come first in the next turn.
    /// - A kick of a one-shot registration is its one event: it is disabled until it is re-armed.
    /// - A registration that is deleted before that turn is not called, nor is a one-shot that has
    ///   fired, nor one for conditions that its interest no longer has.
    /// - It counts as an event, and may allocate: at most two keys and two bytes a registration.
    ///
    /// # Errors
    /// Nothing is queued.
    ///
    /// - [`NotFound`](KickError::NotFound): the key names no registered descriptor.
    /// - [`Disabled`](KickError::Disabled): the registration is one-shot and has fired.
    /// - [`NotRequested`](KickError::NotRequested): there is no condition, or one that the interest
    ///   does not request. Errors and hang-ups are always requested.
    #[doc(alias("event_active", "ev_feed_event", "activate"))]
    pub fn kick(&mut self, key: Key, ready: Ready) -> Result<(), KickError> {
        self.reactor.kick(key, ready)
    }

    /// Deletes a registration. A handler may delete its own (`event.key()`). A deleted registration
    /// does not fire again, even if an event was fetched already (rule 9).
    ///
    /// The destructor of another subscriber runs at once, and its panic propagates from this call.
    /// The running subscriber's own destructor runs after its handler has returned. Until then its
    /// descriptor number stays taken ([`AlreadyExists`](crate::AddReason::AlreadyExists)).
    ///
    /// # Errors
    /// [`NotFound`] if the key does not name a descriptor's registration. A registration that was
    /// found is deleted even if the kernel reports an error.
    ///
    /// # Panics
    /// With the panic of another subscriber's destructor. The registration is deleted.
    #[doc(alias("EPOLL_CTL_DEL", "epoll_ctl"))]
    pub fn delete(&mut self, key: Key) -> Result<(), NotFound> {
        self.reactor.delete(key)
    }

    /// Starts adding members to a registered group. Finish with [`Group::register_into`].
    ///
    /// # Errors
    /// [`NotFound`] if the group no longer exists.
    pub fn group<S: 'static>(&mut self, group: GroupKey<S>) -> Result<Group<S, R>, NotFound> {
        Group::joining(group, self.reactor)
    }

    /// Deletes a group with all its members. A running member and the state are dropped after the
    /// member's handler has returned.
    ///
    /// # Errors
    /// [`NotFound`] if the group no longer exists.
    ///
    /// # Panics
    /// With the panic of a destructor that runs in this call. The group is deleted.
    pub fn delete_group<S: 'static>(&mut self, group: GroupKey<S>) -> Result<(), NotFound> {
        self.reactor.delete_group_erased(group.key())
    }

    /// Pauses a group: no handler of a member runs until [`resume_group`](Self::resume_group). The
    /// handler that runs now goes on to its end.
    ///
    /// ```
    /// use std::{io::Write, os::unix::net::UnixStream};
    /// use windlass::{Group, Reactor, interest};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let (ours, mut theirs) = UnixStream::pair()?;
    /// let mut reactor = Reactor::new()?;
    /// let group = Group::new(0).fd(interest().read(), ours, |calls: &mut u32| *calls += 1);
    /// let key = group.register_into(&mut reactor)?.group;
    /// reactor.pause_group(key)?;
    /// theirs.write_all(b"hello")?;
    /// assert_eq!(reactor.run_once(std::time::Duration::ZERO)?, 0);
    /// reactor.resume_group(key)?;
    /// assert_eq!(reactor.run_once(None)?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// - Nothing is lost. After the resume, the kernel reports again what is ready, also to
    ///   edge-triggered members, and kicks are reported. An event that was fetched before the pause
    ///   is dropped, unless the resume comes before its turn in the batch.
    /// - A timer that becomes due meanwhile is due at the resume. A periodic timer fires once for
    ///   all of the pause, and counts from the resume.
    /// - Descriptors that are ready do not wake the loop: the kernel does not watch them meanwhile.
    ///   So a pause and a resume take one system call for each descriptor.
    /// - Members may be added, changed, kicked, reset and deleted meanwhile, and so may the group.
    ///   New members are paused too. A one-shot member that has fired stays disabled.
    /// - A stream is called for nothing meanwhile, not even its end. Its input waits in the kernel.
    ///   Input that a ring has received already is kept in memory. Its output is written as far as
    ///   the socket accepts it. Its timeouts begin anew at the resume. A listener accepts nothing.
    /// - Pausing a paused group has no effect. Its state may be [borrowed](Self::with_group).
    ///
    /// # Errors
    /// [`NotFound`] if the group no longer exists.
    pub fn pause_group<S: 'static>(&mut self, group: GroupKey<S>) -> Result<(), NotFound> {
        self.reactor.pause_group_erased(group.key())
    }

    /// Resumes a group that was [paused](Self::pause_group). Events that were fetched already may
    /// still come in this turn; all else comes from the next one on. A group that is not paused
    /// stays as it is. A member that the kernel rejects gets an event with the error condition.
    ///
    /// # Errors
    /// [`NotFound`] if the group no longer exists.
    pub fn resume_group<S: 'static>(&mut self, group: GroupKey<S>) -> Result<(), NotFound> {
        self.reactor.resume_group_erased(group.key())
    }

    /// Borrows the state of a group for a call, from a handler that is no member of it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use windlass::{Group, Reactor};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let mut reactor = Reactor::new()?;
    /// let hour = Duration::from_secs(3600);
    /// let group = Group::new(0).every(hour, |count: &mut u32| println!("{count}"));
    /// let key = group.register_into(&mut reactor)?.group;
    /// reactor.after_with(Duration::ZERO, move |mut turn| {
    ///     turn.with_group(key, |count, mut turn| {
    ///         *count += 1;
    ///         turn.stop();
    ///     })
    ///     .expect("the group is registered, and no member runs");
    /// })?;
    /// reactor.run()?;
    /// assert_eq!(reactor.group_mut(key), Some(&mut 1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`NotFound`](GroupStateError::NotFound): the group no longer exists, or its state has
    ///   another type.
    /// - [`Borrowed`](GroupStateError::Borrowed): the handler of a member runs, which has the state
    ///   already, or this is called inside of itself.
    ///
    /// # Panics
    /// With the panic of the closure, or of a destructor: if the closure deletes the group, the
    /// state may be dropped when this returns.
    pub fn with_group<S: 'static, T>(
        &mut self,
        group: GroupKey<S>,
        run: impl FnOnce(&mut S, Turn<'_, R>) -> T,
    ) -> Result<T, GroupStateError> {
        with_group(self.reactor, group, run)
    }

    /// Ends whatever a key names: [deletes](Self::delete) a descriptor's registration,
    /// [cancels](Self::cancel) a timer, [deletes](Self::delete_group) a group, deletes a listener,
    /// or [closes](crate::stream::Stream::close) a stream. Members leave their group.
    ///
    /// ```
    /// use std::{net::TcpListener, time::Duration};
    /// use windlass::{NotFound, Reactor, interest, stream::Listener};
    /// # use windlass::stream::{Input, Stream, StreamHandler};
    /// # struct Echo;
    /// # impl StreamHandler for Echo {
    /// #     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
    /// #         let _ = stream.reply(input, ..);
    /// #     }
    /// # }
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let mut reactor = Reactor::new()?;
    /// let socket = TcpListener::bind("127.0.0.1:0")?;
    /// let listener = Listener::tcp("127.0.0.1:0".parse().unwrap())?;
    /// let keys = [
    ///     interest().read().with_fd(socket).with_handler(|| {}).register_into(&mut reactor)?,
    ///     reactor.after(Duration::from_secs(60), || {})?,
    ///     listener.with_handler(|_| Some(Echo)).register_into(&mut reactor)?.into(),
    /// ];
    /// for key in keys {
    ///     assert_eq!(reactor.remove(key), Ok(()));
    ///     assert_eq!(reactor.remove(key), Err(NotFound));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`NotFound`] if the key names nothing. A stream is named until its
    /// [`on_close`](crate::stream::StreamHandler::on_close), and may be removed again until then.
    ///
    /// # Panics
    /// With the panic of a destructor that runs in this call. What the key named is removed.
    pub fn remove(&mut self, key: impl Into<Key>) -> Result<(), NotFound> {
        self.reactor.remove(key.into())
    }

    /// Names what a key names, for [`Reactor::registrations`]. An empty name takes the name away.
    /// It goes when what it names ends.
    ///
    /// A name has at most [`NAME_LEN_MAX`](crate::NAME_LEN_MAX) bytes. A longer one is cut at the
    /// last character that fits whole. Several registrations may have the same name.
    ///
    /// # Errors
    /// [`NotFound`] if the key names nothing.
    pub fn set_name(&mut self, key: impl Into<Key>, name: &str) -> Result<(), NotFound> {
        self.reactor.name_key(key.into(), name, Token(()))
    }

    /// Says that the handler has made progress that the reactor does not see: it has read or
    /// written something. See [`ProgressWatch`](crate::ProgressWatch). Without one, it does
    /// nothing.
    pub fn made_progress(&mut self) {
        self.reactor.note_progress(Token(()));
    }

    /// Calls a handler once, when `delay` has passed since [`now`](Self::now).
    ///
    /// A handler takes any ordered subset of [`Tick`](crate::Tick) and `Turn<'_, _>`. The
    /// resolution is one nanosecond. A delay that does not fit into 64 bits of nanoseconds never
    /// expires. The timer fires in the next turn at the earliest (rule 9), and only if that turn's
    /// time is later than this turn's. A test with a stopped clock must advance it by at least one
    /// nanosecond. The key stays valid until the handler has returned.
    ///
    /// A closure must name its parameter types here. For `|turn| ..` without types, use
    /// [`after_with`](Self::after_with).
    ///
    /// # Errors
    /// The handler is dropped: [`try_start`](Self::try_start) returns it.
    ///
    /// - [`LimitReached`](crate::TimerReason::LimitReached): the reactor holds `timers_max` timers.
    #[doc(alias("timerfd_create", "timerfd_settime"))]
    pub fn after<H: TimerFn<R, Args>, Args: 'static>(
        &mut self,
        delay: Duration,
        handler: H,
    ) -> Result<Key, TimerReason> {
        start_dropping(self.reactor, Schedule::After(delay), handler)
    }

    /// [`after`](Self::after) for a closure that takes the turn, without naming its type.
    ///
    /// `after` accepts many kinds of handlers, so the compiler cannot infer the parameter type of
    /// `|turn| ..`. Here it can.
    ///
    /// # Errors
    /// The closure is dropped: [`try_start`](Self::try_start) returns it.
    ///
    /// - [`LimitReached`](crate::TimerReason::LimitReached): the reactor holds `timers_max` timers.
    pub fn after_with<F: FnMut(Turn<'_, R>) + 'static>(
        &mut self,
        delay: Duration,
        closure: F,
    ) -> Result<Key, TimerReason> {
        start_dropping(self.reactor, Schedule::After(delay), closure)
    }

    /// Calls a handler once, at `deadline`, or in the next turn if `deadline` has passed. See
    /// [`after`](Self::after).
    ///
    /// # Errors
    /// The handler is dropped: [`try_start`](Self::try_start) returns it.
    ///
    /// - [`LimitReached`](crate::TimerReason::LimitReached): the reactor holds `timers_max` timers.
    #[doc(alias = "TFD_TIMER_ABSTIME")]
    pub fn at<H: TimerFn<R, Args>, Args: 'static>(
        &mut self,
        deadline: Instant,
        handler: H,
    ) -> Result<Key, TimerReason> {
        start_dropping(self.reactor, Schedule::At(deadline), handler)
    }

    /// [`at`](Self::at) for a closure that takes the turn; see [`after_with`](Self::after_with).
    ///
    /// # Errors
    /// The closure is dropped: [`try_start`](Self::try_start) returns it.
    ///
    /// - [`LimitReached`](crate::TimerReason::LimitReached): the reactor holds `timers_max` timers.
    pub fn at_with<F: FnMut(Turn<'_, R>) + 'static>(
        &mut self,
        deadline: Instant,
        closure: F,
    ) -> Result<Key, TimerReason> {
        start_dropping(self.reactor, Schedule::At(deadline), closure)
    }

    /// Calls a handler every `period` until it is cancelled. It first fires after one period.
    ///
    /// A late firing does not shift the next deadline. Deadlines that were missed entirely do not
    /// fire one by one; [`Tick::missed`](crate::Tick::missed) counts them.
    ///
    /// # Errors
    /// The handler is dropped: [`try_start`](Self::try_start) returns it.
    ///
    /// - [`LimitReached`](crate::TimerReason::LimitReached): the reactor holds `timers_max` timers.
    /// - [`ZeroPeriod`](crate::TimerReason::ZeroPeriod): the period is zero.
    #[doc(alias("timerfd_create", "timerfd_settime", "setitimer"))]
    pub fn every<H: TimerFn<R, Args>, Args: 'static>(
        &mut self,
        period: Duration,
        handler: H,
    ) -> Result<Key, TimerReason> {
        start_dropping(self.reactor, Schedule::Every(period), handler)
    }

    /// [`every`](Self::every) for a closure that takes the turn; see
    /// [`after_with`](Self::after_with).
    ///
    /// # Errors
    /// The closure is dropped: [`try_start`](Self::try_start) returns it.
    ///
    /// - [`LimitReached`](crate::TimerReason::LimitReached): the reactor holds `timers_max` timers.
    /// - [`ZeroPeriod`](crate::TimerReason::ZeroPeriod): the period is zero.
    pub fn every_with<F: FnMut(Turn<'_, R>) + 'static>(
        &mut self,
        period: Duration,
        closure: F,
    ) -> Result<Key, TimerReason> {
        start_dropping(self.reactor, Schedule::Every(period), closure)
    }

    /// Starts a timer, with an error that returns the handler. [`after`](Self::after),
    /// [`at`](Self::at) and [`every`](Self::every) drop it instead.
    ///
    /// ```
    /// use std::time::Duration;
    /// use windlass::{Reactor, Schedule, TimerReason};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let mut reactor = Reactor::new()?;
    /// let tick = || println!("tick");
    /// let error = reactor.try_start(Schedule::Every(Duration::ZERO), tick).unwrap_err();
    /// assert_eq!(error.reason, TimerReason::ZeroPeriod);
    /// reactor.every(Duration::from_secs(1), error.handler)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error returns the handler, and the reason:
    ///
    /// - [`LimitReached`](crate::TimerReason::LimitReached): the reactor holds `timers_max` timers.
    /// - [`ZeroPeriod`](crate::TimerReason::ZeroPeriod): the period is zero.
    pub fn try_start<H: TimerFn<R, Args>, Args: 'static>(
        &mut self,
        schedule: Schedule,
        handler: H,
    ) -> Result<Key, TimerError<H>> {
        start(self.reactor, schedule, handler)
    }

    /// Cancels a timer. The handler's destructor runs at once, or after the handler has returned if
    /// it cancels itself.
    ///
    /// # Errors
    /// [`NotFound`] if the key does not name a timer, for example because it has fired.
    ///
    /// # Panics
    /// With the panic of another timer's destructor. The timer is cancelled.
    pub fn cancel(&mut self, key: Key) -> Result<(), NotFound> {
        self.reactor.cancel(key)
    }

    /// Moves a timer's next firing to `delay` from [`now`](Self::now). A periodic timer continues
    /// from there.
    ///
    /// If an [`after`](Self::after) timer calls this in its own handler, it fires once more.
    ///
    /// # Errors
    /// [`NotFound`] if the key does not name a timer.
    pub fn reset(&mut self, key: Key, delay: Duration) -> Result<(), NotFound> {
        self.reactor.reset_timer(key, Schedule::After(delay))
    }

    /// Moves a timer's next firing to `deadline`; see [`reset`](Self::reset).
    ///
    /// # Errors
    /// [`NotFound`] if the key does not name a timer.
    pub fn reset_at(&mut self, key: Key, deadline: Instant) -> Result<(), NotFound> {
        self.reactor.reset_timer(key, Schedule::At(deadline))
    }

    /// Calls a closure at the end of this turn, after its events and timers.
    ///
    /// Two kinds of closures run first in the next turn, which does not wait: closures deferred by
    /// a deferred closure, and those beyond `deferred_per_turn`.
    ///
    /// # Errors
    /// [`LimitReached`](crate::DeferReason::LimitReached): `deferred_max` closures are queued. The
    /// closure is dropped: [`try_defer`](Self::try_defer) returns it.
    pub fn defer<F: FnOnce(Turn<'_, R>) + 'static>(
        &mut self,
        closure: F,
    ) -> Result<(), DeferReason> {
        self.try_defer(closure).map_err(|_| DeferReason::LimitReached)
    }

    /// [`defer`](Self::defer) with an error that returns the closure.
    ///
    /// # Errors
    /// [`DeferError`] if `deferred_max` closures are queued.
    pub fn try_defer<F: FnOnce(Turn<'_, R>) + 'static>(
        &mut self,
        closure: F,
    ) -> Result<(), DeferError<F>> {
        defer(self.reactor, closure)
    }

    /// Makes [`Reactor::run`] return after this turn.
    pub fn stop(&mut self) {
        self.reactor.stop();
    }

    /// The reactor's counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.reactor.stats()
    }

    /// The turn's time. The clock is read on the first call, and the value stays the same for the
    /// whole turn.
    #[doc(alias = "clock_gettime")]
    #[must_use]
    pub fn now(&mut self) -> Instant {
        self.reactor.now()
    }
}

pub(crate) fn start<R: ReactorOps, H: TimerFn<R, Args>, Args: 'static>(
    reactor: &mut R,
    schedule: Schedule,
    handler: H,
) -> Result<Key, TimerError<H>> {
    reactor.start_timer(Timer::new(schedule, handler)).map_err(typed_timer_error::<R, H, Args>)
}

/// [`start`] without the way back to the typed handler, which costs instructions.
pub(crate) fn start_dropping<R: ReactorOps, H: TimerFn<R, Args>, Args: 'static>(
    reactor: &mut R,
    schedule: Schedule,
    handler: H,
) -> Result<Key, TimerReason> {
    reactor.start_timer(Timer::new(schedule, handler)).map_err(|e| e.reason)
}

pub(crate) fn defer<R: ReactorOps, F: FnOnce(Turn<'_, R>) + 'static>(
    reactor: &mut R,
    closure: F,
) -> Result<(), DeferError<F>> {
    reactor
        .defer_boxed(Deferred::new(closure))
        .map_err(|e| DeferError { closure: e.closure.into_inner() })
}
