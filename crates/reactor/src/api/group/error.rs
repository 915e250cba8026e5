//! The errors of groups.

use core::fmt;
use std::io;

use crate::{
    AddReason, NotFound, TimerReason,
    error::{carrying_error, plain_error},
};

/// Why a group was not registered.
///
/// ```
/// use windlass::{Group, GroupReason, Reactor};
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let refused = Group::new("no members").register_into(&mut reactor);
/// assert_eq!(refused.unwrap_err(), GroupReason::Empty);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupReason {
    /// The group has no members, so it would be deleted at once.
    Empty,
    /// The group to join no longer exists, or belongs to another reactor.
    NotFound,
    /// The number of groups has reached `subscribers_max`.
    LimitReached,
    /// A descriptor, stream or listener was rejected: its position in the group, from 0, and the
    /// reason.
    Descriptor(usize, AddReason),
    /// A timer was rejected: its position in the group, from 0, and the reason.
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

impl From<GroupReason> for io::Error {
    fn from(reason: GroupReason) -> Self {
        match reason {
            GroupReason::Empty => Self::new(io::ErrorKind::InvalidInput, reason),
            GroupReason::NotFound => Self::new(io::ErrorKind::NotFound, reason),
            GroupReason::LimitReached => Self::new(io::ErrorKind::QuotaExceeded, reason),
            GroupReason::Descriptor(_, reason) => reason.into(),
            GroupReason::Timer(_, reason) => reason.into(),
        }
    }
}

/// A group that was not registered, and the reason. None of its members is registered.
///
/// ```
/// use std::time::Duration;
/// use windlass::{Group, GroupReason, Reactor, TimerReason};
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let group = Group::new(0)
///     .after(Duration::from_secs(1), |count: &mut u32| *count += 1)
///     .every(Duration::ZERO, |count: &mut u32| *count += 1);
/// let error = group.try_register_into(&mut reactor).unwrap_err();
/// assert_eq!(error.reason, GroupReason::Timer(1, TimerReason::ZeroPeriod));
/// assert_eq!(reactor.stats().timers, 0, "the first member is not registered either");
/// # Ok(())
/// # }
/// ```
pub struct GroupError<G> {
    /// The reason.
    pub reason: GroupReason,
    /// The group, unchanged.
    pub group: G,
}
carrying_error!(GroupError<G>, |e| e.reason);

/// Why the state of a group was not borrowed.
///
/// ```
/// use std::time::Duration;
/// use windlass::{Group, GroupStateError, Reactor, Turn};
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let every = Duration::from_secs(1);
/// let group = Group::new(7).every(every, |_: &mut u32| {}).register_into(&mut reactor)?.group;
/// reactor.defer(move |mut turn| {
///     let nested = turn.with_group(group, |_, mut turn| turn.with_group(group, |_, _| ()));
///     assert_eq!(nested, Ok(Err(GroupStateError::Borrowed)));
///     turn.remove(group).expect("it is registered");
///     assert_eq!(turn.with_group(group, |_, _| ()), Err(GroupStateError::NotFound));
/// })?;
/// reactor.run_once(Duration::ZERO)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupStateError {
    /// The group no longer exists, or its state has another type.
    NotFound,
    /// The state is borrowed: a handler of a member runs, or the caller is inside of another
    /// [`with_group`](crate::Turn::with_group) of this group.
    Borrowed,
}

impl From<NotFound> for GroupStateError {
    fn from(_: NotFound) -> Self {
        Self::NotFound
    }
}

plain_error!(
    GroupStateError,
    |e| match e {
        Self::NotFound => "the key names no group with a state of this type",
        Self::Borrowed => "the state of the group is borrowed by a running handler",
    },
    Err(match e {
        GroupStateError::NotFound => io::ErrorKind::NotFound,
        GroupStateError::Borrowed => io::ErrorKind::ResourceBusy,
    })
);
