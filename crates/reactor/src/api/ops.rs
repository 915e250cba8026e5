//! The two traits of a reactor: [`Subscriber`], which it calls, and [`ReactorOps`], which handlers
//! call.

use std::{
    any::{Any, TypeId},
    os::fd::BorrowedFd,
    time::Instant,
};

use crate::{
    AddError, DeferError, Event, Interest, Key, KickError, ModifyError, NotFound, Reactor, Ready,
    Stats, Subscription, TimerError, Turn,
    api::{
        group::{ErasedGroup, GroupError, GroupState},
        timer::{Deferred, Schedule, Timer},
    },
};
#[cfg(feature = "sim")]
use {
    crate::{
        SignalSet,
        world::{SimFd, SimId, SimObject},
    },
    std::sync::Arc,
    windlass_flow::Latch,
};

/// Proof that a call comes from this crate. Other crates can neither name nor construct it.
#[derive(Debug)]
pub struct Token(pub(crate) ());

/// What a cell of the reactor's own reports to it.
#[derive(Clone, Copy, Debug)]
pub enum OwnEvent {
    /// The kernel has returned a stale entry of the epoll set, which must be rebuilt (rule 7).
    StaleEntry,
    /// The wake descriptor is readable.
    Wake,
    /// The alarm of the timers has rung.
    Alarm,
    /// A paused registration has an event that was fetched before.
    Paused {
        /// The registration.
        key: Key,
        /// The conditions.
        ready: u32,
    },
}

/// A value that waits for a descriptor and handles its events.
///
/// Most subscribers are made by [`interest`](crate::interest())`().with_fd(..).with_handler(..)`.
/// Implement the trait by hand if a type should be its own subscriber. Registration moves the value
/// into a heap cell. It stays there until it is deleted or taken back.
///
/// ```
/// use std::os::{fd::{AsFd, BorrowedFd}, unix::net::UnixStream};
/// use windlass::{Event, Interest, Reactor, Subscriber, Turn, interest};
///
/// struct Watcher {
///     stream: UnixStream,
/// }
///
/// impl Subscriber for Watcher {
///     fn fd(&self) -> BorrowedFd<'_> {
///         self.stream.as_fd()
///     }
///     fn interest(&self) -> Interest {
///         interest().write()
///     }
///     fn handle(&mut self, event: Event, mut turn: Turn<'_>) {
///         assert!(event.has_write());
///         turn.stop();
///     }
/// }
///
/// # fn main() -> std::io::Result<()> {
/// let (stream, _peer) = UnixStream::pair()?;
/// let mut reactor = Reactor::new()?;
/// let key = reactor.add(Watcher { stream })?;
/// reactor.run()?;
/// let watcher: Watcher = reactor.take(key)?;
/// # Ok(())
/// # }
/// ```
pub trait Subscriber<R: ReactorOps = Reactor>: Any {
    /// The descriptor to wait for. Called once, at registration; later values are ignored (rule 6).
    fn fd(&self) -> BorrowedFd<'_>;

    /// The initial interest. Called once, at registration; `modify` changes it later.
    fn interest(&self) -> Interest;

    /// Called when the descriptor is ready. Read until `WouldBlock` if the interest is
    /// edge-triggered.
    ///
    /// A panic unwinds out of `run_once`. The reactor stays usable, and the next turn continues
    /// with the rest of the batch (rule 8).
    fn handle(&mut self, event: Event, turn: Turn<'_, R>);

    #[doc(hidden)]
    fn fd_type(&self, _: Token) -> Option<TypeId> {
        None
    }

    #[doc(hidden)]
    fn into_fd(self: Box<Self>, _: Token) -> Option<Box<dyn Any>> {
        None
    }

    /// The simulated descriptor, in whose place `fd` panics.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    fn sim_id(&self) -> Option<SimId> {
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

    #[cfg(feature = "sim")]
    fn sim_id(&self) -> Option<SimId> {
        (**self).sim_id()
    }
}

/// The simulated descriptor that a subscriber waits for, if its descriptor is one.
#[cfg(feature = "sim")]
#[doc(hidden)]
#[must_use]
pub fn sim_id_of(fd: &dyn Any) -> Option<SimId> {
    let signals = || fd.downcast_ref::<SignalSet>().and_then(SignalSet::sim_id);
    let latch = || fd.downcast_ref::<Latch>().or_else(|| Some(fd.downcast_ref::<Arc<_>>()?));
    let bell = || latch()?.sim_bell().map(SimObject::id);
    fd.downcast_ref::<SimFd>().map(SimFd::id).or_else(signals).or_else(bell)
}

pub(crate) mod sealed {
    /// Restricts [`ReactorOps`](super::ReactorOps) to types of this crate.
    pub trait Sealed {}
}

/// The operations that [`Reactor`] and its mock offer to handlers, with subscribers, timers and
/// closures type-erased.
///
/// Write handlers for any `R: ReactorOps` (`turn: Turn<'_, impl ReactorOps>`), so that unit tests
/// can run them with a mock. Handlers call the typed methods of [`Turn`] instead of these.
///
/// ```
/// use windlass::{MockReactor, ReactorOps, Turn, turn};
///
/// fn on_ready(mut turn: Turn<'_, impl ReactorOps>) {
///     turn.stop();
/// }
///
/// let mut mock = MockReactor::new();
/// mock.expect_stop().times(1).return_const(());
/// on_ready(turn!(mock));
/// ```
pub trait ReactorOps: sealed::Sealed + Sized + 'static {
    /// Registers an erased subscriber; see [`Turn::add`].
    ///
    /// # Errors
    /// The error returns the subscription with its descriptor open, and the reason:
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
    fn add_cell(
        &mut self,
        subscription: Subscription<Self>,
    ) -> Result<Key, AddError<Subscription<Self>>>;
    /// See [`Turn::modify`].
    ///
    /// # Errors
    /// - [`NotFound`](crate::ModifyError::NotFound): the key names no registered descriptor.
    /// - [`InvalidInterest`](crate::ModifyError::InvalidInterest): `exclusive` is combined with a
    ///   condition or mode that the kernel rejects.
    /// - [`Unsupported`](crate::ModifyError::Unsupported): the backend does not support the
    ///   interest.
    /// - [`Os`](crate::ModifyError::Os): an error of the kernel. `ENOENT` or `EBADF` means that the
    ///   descriptor was closed or replaced without telling the reactor. `ESTALE` in a child of
    ///   fork(2).
    fn modify(&mut self, key: Key, interest: Interest) -> Result<(), ModifyError>;
    /// See [`Turn::rearm`].
    ///
    /// # Errors
    /// - [`NotFound`](crate::ModifyError::NotFound): the key names no registered descriptor.
    /// - [`Os`](crate::ModifyError::Os): an error of the kernel. `ENOENT` or `EBADF` means that the
    ///   descriptor was closed or replaced without telling the reactor. `ESTALE` in a child of
    ///   fork(2).
    fn rearm(&mut self, key: Key) -> Result<(), ModifyError>;
    /// See [`Turn::kick`].
    ///
    /// # Errors
    /// - [`NotFound`](KickError::NotFound): the key names no registered descriptor.
    /// - [`Disabled`](KickError::Disabled): the registration is one-shot and has fired.
    /// - [`NotRequested`](KickError::NotRequested): there is no condition, or one that the interest
    ///   does not request.
    fn kick(&mut self, key: Key, ready: Ready) -> Result<(), KickError>;
    /// See [`Turn::delete`].
    ///
    /// # Errors
    /// [`NotFound`] if the key does not name a descriptor's registration.
    fn delete(&mut self, key: Key) -> Result<(), NotFound>;
    /// Registers an erased group; see [`Group::register_into`](crate::Group::register_into).
    ///
    /// # Errors
    /// The error returns the group, and the reason:
    ///
    /// - [`Empty`](crate::GroupReason::Empty): the group has no members.
    /// - [`NotFound`](crate::GroupReason::NotFound): the group to join no longer exists, or belongs
    ///   to another reactor.
    /// - [`LimitReached`](crate::GroupReason::LimitReached): the reactor holds `subscribers_max`
    ///   groups.
    /// - [`Descriptor`](crate::GroupReason::Descriptor): a descriptor, stream or listener was
    ///   rejected. It holds the member's position and an [`AddReason`](crate::AddReason).
    /// - [`Timer`](crate::GroupReason::Timer): a timer was rejected. It holds the member's position
    ///   and a [`TimerReason`](crate::TimerReason).
    fn add_group(
        &mut self,
        group: ErasedGroup<Self>,
    ) -> Result<(Key, Vec<Key>), GroupError<ErasedGroup<Self>>>;
    /// The erased state of a group; see [`Turn::group`].
    fn group_state(&mut self, group: Key) -> Option<GroupState>;
    /// See [`Turn::delete_group`].
    ///
    /// # Errors
    /// [`NotFound`] if the group no longer exists.
    fn delete_group_erased(&mut self, group: Key) -> Result<(), NotFound>;
    /// See [`Turn::pause_group`].
    ///
    /// # Errors
    /// [`NotFound`] if the group no longer exists.
    fn pause_group_erased(&mut self, group: Key) -> Result<(), NotFound>;
    /// See [`Turn::resume_group`].
    ///
    /// # Errors
    /// [`NotFound`] if the group no longer exists.
    fn resume_group_erased(&mut self, group: Key) -> Result<(), NotFound>;
    /// See [`Turn::remove`].
    ///
    /// # Errors
    /// [`NotFound`] if the key names nothing.
    fn remove(&mut self, key: Key) -> Result<(), NotFound>;
    /// Starts an erased timer; see [`Turn::after`].
    ///
    /// # Errors
    /// The error returns the timer, and the reason:
    ///
    /// - [`LimitReached`](crate::TimerReason::LimitReached): the reactor holds `timers_max` timers.
    /// - [`ZeroPeriod`](crate::TimerReason::ZeroPeriod): the period is zero.
    fn start_timer(&mut self, timer: Timer<Self>) -> Result<Key, TimerError<Timer<Self>>>;
    /// See [`Turn::cancel`].
    ///
    /// # Errors
    /// [`NotFound`] if the key does not name a timer.
    fn cancel(&mut self, key: Key) -> Result<(), NotFound>;
    /// See [`Turn::reset`] and [`Turn::reset_at`].
    ///
    /// # Errors
    /// [`NotFound`] if the key does not name a timer.
    fn reset_timer(&mut self, key: Key, schedule: Schedule) -> Result<(), NotFound>;
    /// Defers an erased closure; see [`Turn::defer`].
    ///
    /// # Errors
    /// [`DeferError`] if `deferred_max` closures are queued; the error returns the closure.
    fn defer_boxed(&mut self, closure: Deferred<Self>) -> Result<(), DeferError<Deferred<Self>>>;
    /// See [`Turn::stop`].
    fn stop(&mut self);
    /// See [`Turn::stats`].
    fn stats(&self) -> Stats;
    /// See [`Turn::now`].
    fn now(&mut self) -> Instant;

    #[doc(hidden)]
    fn own_event(&mut self, _: OwnEvent, _: Token) {}

    /// See [`Turn::made_progress`]. A mock watches no progress.
    #[doc(hidden)]
    fn note_progress(&mut self, _: Token) {}

    /// See [`Turn::set_name`]. A mock takes every name, and keeps none.
    #[doc(hidden)]
    fn name_key(&mut self, _: Key, _: &str, _: Token) -> Result<(), NotFound> {
        Ok(())
    }

    /// Whether no descriptor member of the group runs, so that the state may be borrowed. A mock
    /// knows no members, so it lets only states be borrowed that no
    /// reactor has.
    #[doc(hidden)]
    fn may_borrow(&self, _: Key, state: &GroupState, _: Token) -> bool {
        state.is_made_by_hand()
    }
}
