//! A group: one state with several descriptors, timers, signals, streams and listeners, each with
//! its handler.

mod error;
mod state;

use core::{fmt, marker::PhantomData};
use std::{
    os::fd::AsFd,
    rc::Rc,
    time::{Duration, Instant},
};

use crate::{
    AddReason, Interest, Key, NotFound, Reactor, SignalSet, Subscription,
    api::{
        handler_fn::{MemberFn, MemberTimerFn},
        interest::interest,
        listing::bounded_name,
        ops::{ReactorOps, Token},
        registrar::Registrar,
        timer::{Schedule, Timer},
    },
    util::unwind_safe_drop::UnwindSafeDrop,
};
pub use error::{GroupError, GroupReason, GroupStateError};
pub use state::GroupState;
use state::{DescriptorMember, TimerMember};
pub(crate) use state::{SharedState, with_group};

/// The key of a group whose state is an `S`. `Copy`. It becomes stale when the group's last member
/// is deleted.
///
/// ```
/// use std::time::Duration;
/// use windlass::{Group, Reactor};
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let group = Group::new(7).every(Duration::from_secs(1), |count: &mut u32| *count += 1);
/// let key = group.register_into(&mut reactor)?.group;
/// assert_eq!(reactor.group_mut(key), Some(&mut 7));
/// reactor.delete_group(key)?;
/// assert_eq!(reactor.group_mut(key), None, "the key is stale");
/// # Ok(())
/// # }
/// ```
pub struct GroupKey<S> {
    key: Key,
    state: PhantomData<fn() -> S>,
}

impl<S> GroupKey<S> {
    /// Adds the state type `S` to a key. If the key names nothing, or a state of another type,
    /// later calls return `NotFound`.
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

impl<S> From<GroupKey<S>> for Key {
    fn from(group: GroupKey<S>) -> Self {
        group.key
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

/// A member, passed into a reactor or returned by it.
pub(crate) enum Member<R: ReactorOps> {
    Descriptor(Subscription<R>),
    Timer(Timer<R>),
    Other(Box<dyn GroupMember<R>>),
}

/// A member of a kind that this layer does not know: a stream, a listener or a connection attempt.
pub(crate) trait GroupMember<R: ReactorOps> {
    /// Makes the calls of user code that [`admit`](Self::admit) needs. They may panic.
    fn prepare(&mut self);

    /// Registers it, without a call of user code.
    fn admit(self: Box<Self>, reactor: &mut R) -> Result<Admitted<R>, RejectedMember<R>>;
}

/// A member that was rejected, and the reason.
pub(crate) type RejectedMember<R> = (AddReason, Box<dyn GroupMember<R>>);

/// A member that was registered in this call.
pub(crate) struct Admitted<R: ReactorOps = Reactor> {
    pub(crate) key: Key,
    /// Withdraws it, because another member was rejected.
    pub(crate) withdraw: Withdraw<R>,
}

pub(crate) type Withdraw<R> = Box<dyn FnOnce(&mut R) -> Box<dyn GroupMember<R>>>;

/// A group with type-erased members, passed into a reactor or returned by it.
///
/// ```
/// use std::time::Duration;
/// use windlass::{Group, Key, MockReactor, turn};
///
/// let mut mock = MockReactor::new();
/// mock.expect_add_group().times(1).returning_st(|group| {
///     assert_eq!(group.len(), 1);
///     Ok((Key::from_bits(1), vec![Key::from_bits(2)]))
/// });
/// let group = Group::new(0).after(Duration::ZERO, |count: &mut u32| *count += 1);
/// assert!(group.register_into(&mut turn!(mock)).is_ok());
/// ```
pub struct ErasedGroup<R: ReactorOps> {
    pub(crate) state: GroupState,
    pub(crate) members: Vec<Member<R>>,
    /// The registered group that the members join; `None` for a new group.
    pub(crate) joins: Option<Key>,
}

impl<R: ReactorOps> ErasedGroup<R> {
    /// The number of members that it has or adds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether it has no members. Reactors reject such a group.
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

/// The keys of a registered group.
///
/// ```
/// use std::{os::unix::net::UnixStream, time::Duration};
/// use windlass::{Group, Reactor, interest};
///
/// # fn main() -> std::io::Result<()> {
/// # let (stream, _peer) = UnixStream::pair()?;
/// # let mut reactor = Reactor::new()?;
/// let registered = Group::new(0)
///     .fd(interest().read(), stream, |bytes: &mut usize| *bytes += 1)
///     .after(Duration::from_secs(10), |bytes: &mut usize| println!("{bytes} bytes"))
///     .register_into(&mut reactor)?;
/// let (stream, timer) = (registered.members[0], registered.members[1]);
/// reactor.modify(stream, interest().read().edge_triggered())?;
/// reactor.cancel(timer)?;
/// # Ok(())
/// # }
/// ```
pub struct Registered<S> {
    /// The group's key.
    pub group: GroupKey<S>,
    /// The keys of the members, in the order they were added. Use them for `modify` and `delete`,
    /// for `cancel` and `reset`, for [`Turn::stream`](crate::Turn::stream), or for
    /// [`ListenerKey::from_key`](crate::stream::ListenerKey::from_key).
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

/// One state and the members that share it. For example, a device with its queues, a connection
/// with its timeouts, or the two ends of a proxy.
///
/// Every handler gets `&mut State` as its first argument, without a lock. Handlers outside of the
/// group borrow the state by [`Turn::with_group`](crate::Turn::with_group). A group may grow while
/// it runs: [`Turn::group`](crate::Turn::group) adds members, and the connections that a
/// [listener](Self::listener) accepts become members.
///
/// Deleting a member drops that member. Deleting the group drops all members, and closes its
/// streams as [`Stream::close`](crate::stream::Stream::close) does. The state is dropped with the
/// last member. It stays alive while a member's handler runs, whatever the handler deletes.
///
/// ```
/// use std::{io::{Read, Write}, os::unix::net::UnixStream, time::Duration};
/// use windlass::{Group, Reactor, interest};
///
/// struct Connection { bytes: usize }
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let (ours, mut theirs) = UnixStream::pair()?;
/// let registered = Group::new(Connection { bytes: 0 })
///     .fd(interest().read(), ours, |c: &mut Connection, stream: &mut UnixStream| {
///         c.bytes += stream.read(&mut [0; 512]).unwrap_or(0);
///     })
///     .every(Duration::from_secs(60), |c: &mut Connection| println!("{} bytes so far", c.bytes))
///     .register_into(&mut reactor)?;
/// theirs.write_all(b"hello")?;
/// reactor.run_once(None)?;
/// assert_eq!(reactor.group_mut(registered.group).map(|c| c.bytes), Some(5));
/// reactor.delete_group(registered.group)?;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct Group<S, R: ReactorOps = Reactor> {
    state: Rc<SharedState<S>>,
    members: Vec<Member<R>>,
    joins: Option<Key>,
    /// Its own name without a place, and those of the members at their places.
    names: Vec<(Option<usize>, Box<str>)>,
}

impl<S, R: ReactorOps> fmt::Debug for Group<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("members", &self.members.len())
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl<S: 'static, R: ReactorOps> Group<S, R> {
    /// A group without members.
    pub fn new(state: S) -> Self {
        let state = SharedState::new(state);
        Self { state, members: Vec::new(), joins: None, names: Vec::new() }
    }

    /// Names the group, as [`Turn::set_name`](crate::Turn::set_name) does.
    pub fn with_name(mut self, name: &str) -> Self {
        self.names.extend(bounded_name(name).map(|name| (None, name)));
        self
    }

    /// Names the member that was added last, as [`Turn::set_name`](crate::Turn::set_name) does.
    /// Before the first member, it does nothing.
    pub fn with_member_name(mut self, name: &str) -> Self {
        let place = self.members.len().checked_sub(1);
        self.names.extend(place.zip(bounded_name(name)).map(|(at, name)| (Some(at), name)));
        self
    }

    /// Adds a member that is made with the state.
    pub(crate) fn member(
        mut self,
        make: impl FnOnce(Rc<SharedState<S>>) -> Box<dyn GroupMember<R>>,
    ) -> Self {
        self.members.push(Member::Other(make(Rc::clone(&self.state))));
        self
    }

    pub(crate) fn joining(group: GroupKey<S>, reactor: &mut R) -> Result<Self, NotFound> {
        let state =
            reactor.group_state(group.key).and_then(|state| state.typed()).ok_or(NotFound)?;
        Ok(Self { state, members: Vec::new(), joins: Some(group.key), names: Vec::new() })
    }

    /// Adds a descriptor with its handler. The handler takes `&mut State`, then any ordered subset
    /// of `&mut Fd`, [`Event`](crate::Event), [`Interest`] and [`Turn`](crate::Turn).
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

    /// Adds signals with their handler. Same as [`fd`](Self::fd) with a [`SignalSet`].
    pub fn signals<H: MemberFn<S, SignalSet, R, Args>, Args: 'static>(
        self,
        signals: SignalSet,
        handler: H,
    ) -> Self {
        self.fd(interest().read(), signals, handler)
    }

    /// Adds a timer that fires once, `delay` after the registration.
    ///
    /// The handler takes `&mut State`, then any ordered subset of [`Tick`](crate::Tick) and
    /// [`Turn`](crate::Turn).
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
        let call = TimerMember { handler, shared, args: PhantomData };
        self.members.push(Member::Timer(Timer::from_call(schedule, call)));
        self
    }

    /// Registers all members, or none of them.
    ///
    /// # Errors
    /// The group is dropped with all its members: [`try_register_into`](Self::try_register_into)
    /// returns it.
    ///
    /// - [`Empty`](crate::GroupReason::Empty): the group has no members.
    /// - [`NotFound`](crate::GroupReason::NotFound): the group to join no longer exists, or belongs
    ///   to another reactor.
    /// - [`LimitReached`](crate::GroupReason::LimitReached): the reactor holds `subscribers_max`
    ///   groups.
    /// - [`Descriptor`](crate::GroupReason::Descriptor): a descriptor, stream or listener was
    ///   rejected. It holds the member's position and an [`AddReason`].
    /// - [`Timer`](crate::GroupReason::Timer): a timer was rejected. It holds the member's position
    ///   and a [`TimerReason`](crate::TimerReason).
    pub fn register_into<G: Registrar<Ops = R>>(
        self,
        target: &mut G,
    ) -> Result<Registered<S>, GroupReason> {
        self.try_register_into(target).map_err(|e| e.reason)
    }

    /// [`register_into`](Self::register_into) with an error that returns the group.
    ///
    /// # Errors
    /// The reasons of [`register_into`](Self::register_into). The error returns the group with all
    /// its members.
    pub fn try_register_into<G: Registrar<Ops = R>>(
        self,
        target: &mut G,
    ) -> Result<Registered<S>, GroupError<Self>> {
        let Self { state, members, joins, names } = self;
        let erased = ErasedGroup { state: GroupState::of(&state), members, joins };
        let added = target.with_ops(Token(()), |ops| {
            let (key, members) = ops.add_group(erased)?;
            for (place, name) in &names {
                let named = place.map_or(key, |place| members[place]);
                ops.name_key(named, name, Token(())).expect("it was registered just now");
            }
            Ok((key, members))
        });
        match added {
            Ok((key, members)) => {
                Ok(Registered { group: GroupKey { key, state: PhantomData }, members })
            }
            Err(GroupError { reason, group }) => {
                let group = Self { state, members: group.members, joins, names };
                Err(GroupError { reason, group })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GroupReason, Turn};

    /// A made-up key may name a group. If that were accepted, members of two reactors could share a
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
        let mut refused = joining.try_register_into(&mut reactor).unwrap_err();
        assert_eq!(refused.reason, GroupReason::NotFound);
        refused.group.joins = Some(one.key());
        assert_eq!(refused.group.register_into(&mut reactor).unwrap().group, one);
        assert_eq!(reactor.stats().timers, 3);
    }
}
