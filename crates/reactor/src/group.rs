//! A group: one state with several descriptors, timers and signals, each with its handler.
//!
//! # The protocol of this module
//!
//! 1. Each member holds the [`Shared`] state by a counted reference, so the state lives until the
//!    last member is dropped. A running member is dropped only after its handler has returned (rule
//!    1), so the state outlives the handler, whatever was deleted in it.
//! 2. The state is borrowed in [`Shared::with`] alone: by a member's trampoline while its handler
//!    runs, and by [`Reactor::group_mut`], which needs the reactor itself and so cannot be called
//!    while a handler runs. The dispatcher runs one handler at a time and no handler can make it
//!    run another (rule 4), so there is one borrow at a time.
//! 3. A group belongs to one reactor: the reference is not `Send`, and a state that was registered
//!    is joined only through the reactor that has it.

#![allow(
    unsafe_code,
    reason = "several members reach one state without a lock; the protocol above"
)]

use core::{any::Any, cell::UnsafeCell, fmt, marker::PhantomData};
use std::{
    os::fd::{AsFd, BorrowedFd},
    rc::Rc,
    time::{Duration, Instant},
};

use crate::{
    AddReason, Event, Interest, Key, NotFound, Reactor, SignalSet, Subscription, Tick, TimerReason,
    Turn,
    builder::Registrar,
    error::carrying_error,
    handler_fn::{MemberFn, MemberTimerFn},
    interest,
    timer::{Schedule, Timer, TimerCall},
    turn::{ReactorOps, Subscriber, Token},
    unwind_safe_drop::UnwindSafeDrop,
};

/// The key of a group whose state is an `S`. `Copy`, and stale once the group's last member is
/// gone.
pub struct GroupKey<S> {
    key: Key,
    state: PhantomData<fn() -> S>,
}

impl<S> GroupKey<S> {
    /// A key of a state that is said to be an `S`: one that names nothing, or a state of another
    /// type, is `NotFound`.
    #[must_use]
    pub const fn from_key(key: Key) -> Self {
        Self { key, state: PhantomData }
    }

    /// The key without the type.
    #[must_use]
    pub const fn key(self) -> Key {
        self.key
    }
}

impl<S> Clone for GroupKey<S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S> Copy for GroupKey<S> {}
impl<S> PartialEq for GroupKey<S> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}
impl<S> Eq for GroupKey<S> {}
impl<S> fmt::Debug for GroupKey<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group{:?}", self.key)
    }
}

/// The state, as all members hold it.
struct Shared<S> {
    state: UnsafeCell<UnwindSafeDrop<S>>,
}

impl<S> Shared<S> {
    /// Borrows the state for the time of a call.
    ///
    /// # Safety
    /// No other borrow of the state is alive, and none is made during the call.
    #[inline(always)]
    unsafe fn with<T>(&self, run: impl FnOnce(&mut S) -> T) -> T {
        // SAFETY: the only borrow (the caller's promise).
        run(unsafe { &mut *self.state.get() })
    }
}

/// The erased state of a group, as the reactor keeps it.
pub struct GroupState(Rc<dyn Any>);

impl GroupState {
    /// A state as a reactor would keep it, to be given out by a mock's `group_state`.
    #[must_use]
    pub fn new<S: 'static>(state: S) -> Self {
        Self(Rc::new(Shared { state: UnsafeCell::new(UnwindSafeDrop::new(state)) }))
    }

    fn typed<S: 'static>(&self) -> Option<Rc<Shared<S>>> {
        Rc::clone(&self.0).downcast().ok()
    }

    /// Whether both are the very same state.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn share(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl Reactor {
    /// Borrows the state of a group for as long as the reactor is borrowed.
    pub(crate) fn borrow_state<S: 'static>(&mut self, group: GroupKey<S>) -> Option<&mut S> {
        let shared = self.group_state_of(group.key)?.typed::<S>()?;
        let state = shared.state.get();
        // SAFETY: the group is this reactor's, and the reactor is mutably borrowed for as long as
        // the result lives: no handler runs (protocol 2) and no member is deleted, so the state is
        // alive and not borrowed otherwise.
        Some(unsafe { &mut *state })
    }
}

impl fmt::Debug for GroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupState").finish_non_exhaustive()
    }
}

/// A member on its way into a reactor or back.
#[derive(Debug)]
pub(crate) enum Member<R: ReactorOps> {
    Descriptor(Subscription<R>),
    Timer(Timer<R>),
}

/// A group with its members erased, on its way into a reactor or back.
pub struct ErasedGroup<R: ReactorOps> {
    pub(crate) state: GroupState,
    pub(crate) members: Vec<Member<R>>,
    /// The registered group that the members are to join, if it is not a new one.
    pub(crate) joins: Option<Key>,
}

impl<R: ReactorOps> ErasedGroup<R> {
    /// How many members it has, or adds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether it has no members, which no reactor takes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

impl<R: ReactorOps> fmt::Debug for ErasedGroup<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ErasedGroup").field("members", &self.members.len()).finish_non_exhaustive()
    }
}

/// Why a group was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupReason {
    /// A group without members would be gone at once.
    Empty,
    /// The group to be joined is gone, or is another reactor's.
    NotFound,
    /// As many groups as there can be subscribers are registered.
    LimitReached,
    /// A member with a descriptor was refused: its place in the group, from 0, and why.
    Descriptor(usize, AddReason),
    /// A timer was refused: its place in the group, from 0, and why.
    Timer(usize, TimerReason),
}

impl fmt::Display for GroupReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the group has no members"),
            Self::NotFound => f.write_str("the group to be joined is gone"),
            Self::LimitReached => f.write_str("the reactor has as many groups as it may"),
            Self::Descriptor(place, reason) => write!(f, "member {place} of the group: {reason}"),
            Self::Timer(place, reason) => write!(f, "member {place} of the group: {reason}"),
        }
    }
}

impl std::error::Error for GroupReason {}

impl From<GroupReason> for std::io::Error {
    fn from(reason: GroupReason) -> Self {
        match reason {
            GroupReason::Empty => Self::new(std::io::ErrorKind::InvalidInput, reason),
            GroupReason::NotFound => Self::new(std::io::ErrorKind::NotFound, reason),
            GroupReason::LimitReached => Self::new(std::io::ErrorKind::QuotaExceeded, reason),
            GroupReason::Descriptor(_, reason) => reason.into(),
            GroupReason::Timer(_, reason) => reason.into(),
        }
    }
}

/// A group that was not registered, and why. None of its members is.
pub struct GroupError<G> {
    /// Why.
    pub reason: GroupReason,
    /// The group, unharmed.
    pub group: G,
}
carrying_error!(GroupError<G>, |e| e.reason);

/// What a registered group is known by.
pub struct Registered<S> {
    /// The group.
    pub group: GroupKey<S>,
    /// The keys of the members, in the order in which they were given: for `modify` and `delete`,
    /// or `cancel` and `reset`.
    pub members: Vec<Key>,
}

impl<S> fmt::Debug for Registered<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("group", &self.group)
            .field("members", &self.members)
            .finish()
    }
}

/// One state, and members that share it: a device with its queues, a connection with its timeouts,
/// the two ends of a proxy.
///
/// Every handler gets `&mut State` first, without a lock. Deleting a member drops that member,
/// deleting the group all; the state goes with the last of them. While a member's handler runs the
/// state stays, whatever the handler deletes.
///
/// ```no_run
/// use std::{net::TcpStream, time::Duration};
/// use windlass::{Group, Reactor, Turn, interest};
///
/// struct Connection { bytes: u64 }
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let stream = TcpStream::connect("127.0.0.1:9001")?;
/// let registered = Group::new(Connection { bytes: 0 })
///     .fd(interest().read(), stream, |c: &mut Connection, stream: &mut TcpStream| {
///         let mut buffer = [0; 512];
///         c.bytes += std::io::Read::read(stream, &mut buffer).unwrap_or(0) as u64;
///     })
///     .every(Duration::from_secs(1), |c: &mut Connection| println!("{} bytes so far", c.bytes))
///     .register_into(&mut reactor)?;
/// reactor.delete_group(registered.group)?;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct Group<S, R: ReactorOps = Reactor> {
    state: Rc<Shared<S>>,
    members: Vec<Member<R>>,
    joins: Option<Key>,
}

impl<S, R: ReactorOps> fmt::Debug for Group<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("members", &self.members.len()).finish_non_exhaustive()
    }
}

impl<S: 'static, R: ReactorOps> Group<S, R> {
    /// A group without members yet.
    pub fn new(state: S) -> Self {
        let state = Rc::new(Shared { state: UnsafeCell::new(UnwindSafeDrop::new(state)) });
        Self { state, members: Vec::new(), joins: None }
    }

    pub(crate) fn joining(group: GroupKey<S>, reactor: &mut R) -> Result<Self, NotFound> {
        let state =
            reactor.group_state(group.key).and_then(|state| state.typed()).ok_or(NotFound)?;
        Ok(Self { state, members: Vec::new(), joins: Some(group.key) })
    }

    /// Adds a descriptor with its handler: `&mut State`, then any ordered subset of `&mut Fd`,
    /// [`Event`], [`Interest`] and [`Turn`].
    pub fn fd<Fd: AsFd + 'static, H, Args: 'static>(
        mut self,
        interest: Interest,
        fd: Fd,
        handler: H,
    ) -> Self
    where
        H: MemberFn<S, Fd, R, Args>,
    {
        let (handler, fd, shared) =
            (UnwindSafeDrop::new(handler), UnwindSafeDrop::new(fd), Rc::clone(&self.state));
        let member = DescriptorMember { handler, fd, interest, shared, args: PhantomData };
        self.members.push(Member::Descriptor(Subscription::new(member)));
        self
    }

    /// Adds signals with their handler: [`fd`](Self::fd) of a [`SignalSet`].
    pub fn signals<H: MemberFn<S, SignalSet, R, Args>, Args: 'static>(
        self,
        signals: SignalSet,
        handler: H,
    ) -> Self {
        self.fd(interest().read(), signals, handler)
    }

    /// Adds a timer that fires once, `delay` after the registration: `&mut State`, then any ordered
    /// subset of [`Tick`] and [`Turn`].
    pub fn after<H: MemberTimerFn<S, R, Args>, Args: 'static>(
        self,
        delay: Duration,
        handler: H,
    ) -> Self {
        self.timer(Schedule::After(delay), handler)
    }

    /// Adds a timer that fires once, at `deadline`.
    pub fn at<H: MemberTimerFn<S, R, Args>, Args: 'static>(
        self,
        deadline: Instant,
        handler: H,
    ) -> Self {
        self.timer(Schedule::At(deadline), handler)
    }

    /// Adds a timer that fires every `period`.
    pub fn every<H: MemberTimerFn<S, R, Args>, Args: 'static>(
        self,
        period: Duration,
        handler: H,
    ) -> Self {
        self.timer(Schedule::Every(period), handler)
    }

    fn timer<H: MemberTimerFn<S, R, Args>, Args: 'static>(
        mut self,
        schedule: Schedule,
        handler: H,
    ) -> Self {
        let (handler, shared) = (UnwindSafeDrop::new(handler), Rc::clone(&self.state));
        let call = Box::new(TimerMember { handler, shared, args: PhantomData });
        self.members.push(Member::Timer(Timer { schedule, call }));
        self
    }

    /// Registers all members, or none.
    ///
    /// # Errors
    /// See [`GroupReason`]; the group comes back with all its members.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn register_into<G: Registrar<Ops = R>>(
        self,
        target: &mut G,
    ) -> Result<Registered<S>, GroupError<Self>> {
        let Self { state, members, joins } = self;
        let erased = ErasedGroup { state: GroupState(state.clone()), members, joins };
        match target.with_ops(Token(()), |ops| ops.add_group(erased)) {
            Ok((key, members)) => {
                Ok(Registered { group: GroupKey { key, state: PhantomData }, members })
            }
            Err(GroupError { reason, group }) => {
                Err(GroupError { reason, group: Self { state, members: group.members, joins } })
            }
        }
    }
}

struct DescriptorMember<S, Fd, H, Args> {
    handler: UnwindSafeDrop<H>,
    fd: UnwindSafeDrop<Fd>,
    interest: Interest,
    /// Last, so that what the member owns is gone before the state can go.
    shared: Rc<Shared<S>>,
    args: PhantomData<fn(Args)>,
}

impl<R, S, Fd, H, Args> Subscriber<R> for DescriptorMember<S, Fd, H, Args>
where
    R: ReactorOps,
    S: 'static,
    Fd: AsFd + 'static,
    H: MemberFn<S, Fd, R, Args>,
    Args: 'static,
{
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn interest(&self) -> Interest {
        self.interest
    }

    #[inline(always)]
    fn handle(&mut self, event: Event, turn: Turn<'_, R>) {
        let Self { handler, fd, shared, .. } = self;
        // SAFETY: `handle` is called by the dispatcher alone, one at a time, and the turn leads to
        // no other borrow of the state (protocol 2). Nobody else has a member to call: the type is
        // private, an `ErasedGroup` gives none away, and no registered member can be taken out of
        // the reactor (`TakeError::InGroup`).
        unsafe { shared.with(|state| handler.call(state, fd, event, turn)) };
    }
}

struct TimerMember<S, H, Args> {
    handler: UnwindSafeDrop<H>,
    shared: Rc<Shared<S>>,
    args: PhantomData<fn(Args)>,
}

impl<R, S, H, Args> TimerCall<R> for TimerMember<S, H, Args>
where
    R: ReactorOps,
    S: 'static,
    H: MemberTimerFn<S, R, Args>,
    Args: 'static,
{
    fn fire(&mut self, tick: Tick, turn: Turn<'_, R>) {
        let Self { handler, shared, .. } = self;
        // SAFETY: as in `DescriptorMember::handle`.
        unsafe { shared.with(|state| handler.call(state, tick, turn)) };
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GroupReason, Turn};

    /// A key that is made up may name a group: with it, members of two reactors could share a
    /// state.
    #[test]
    fn joining_a_group_by_a_key_that_names_another_one_is_refused() {
        fn member(group: Group<u64>) -> Group<u64> {
            group.after(Duration::from_secs(60), |_: &mut u64, _: Turn<'_, Reactor>| {})
        }
        let mut reactor = Reactor::new().unwrap();
        let [one, two] = [1, 2]
            .map(|state| member(Group::new(state)).register_into(&mut reactor).unwrap().group);
        let mut joining = member(Group::joining(one, &mut reactor).unwrap());
        joining.joins = Some(two.key());
        let mut refused = joining.register_into(&mut reactor).unwrap_err();
        assert_eq!(refused.reason, GroupReason::NotFound);
        refused.group.joins = Some(one.key());
        assert_eq!(refused.group.register_into(&mut reactor).unwrap().group, one);
        assert_eq!(reactor.stats().timers, 3);
    }
}
