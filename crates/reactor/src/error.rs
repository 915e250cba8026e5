//! What can go wrong, one small type for each operation. Each turns into an [`io::Error`], so that
//! `?` works.

use core::fmt;
use std::io;

pub use rustix::io::Errno;

use crate::RingError;

/// The key names nothing: it is stale, of another reactor, of another kind (timer, descriptor,
/// group) or made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFound;

/// Why a subscriber was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddReason {
    /// The descriptor's number is registered already, or its subscriber has deleted itself and is
    /// still in its handler.
    AlreadyExists,
    /// As many subscribers as the builder's `subscribers_max` are registered.
    LimitReached,
    /// The kernel takes [`exclusive`](crate::Interest::exclusive) with a few conditions only.
    InvalidInterest,
    /// The reactor's backend does not have this manner of interest: [`Backend`](crate::Backend)
    /// says which has what.
    Unsupported,
    /// The descriptor is not open (`EBADF`).
    BadDescriptor,
    /// The descriptor cannot be polled: a regular file or a directory, say (`EPERM`).
    NotPollable,
    /// Epoll sets are nested deeper than the kernel allows, or in a circle (`ELOOP`).
    NestedTooDeep,
    /// Any other error of the kernel, out of memory or of watches say.
    Os(Errno),
}

impl From<Errno> for AddReason {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::BADF => Self::BadDescriptor,
            Errno::PERM => Self::NotPollable,
            Errno::LOOP => Self::NestedTooDeep,
            other => Self::Os(other),
        }
    }
}

/// A subscriber that was not registered, and why.
///
/// `?` turns it into an [`io::Error`], whatever the subscriber is.
///
/// # In `anyhow`
/// Errors that give something back are `Send` and `Sync` only if that is, and `anyhow::Error` wants
/// both. A handler that holds an `Rc` is neither, nor is a [`Group`](crate::Group) or a
/// [`Reactor`](crate::Reactor). Make an [`io::Error`] of the error first, which drops what came
/// back:
///
/// ```
/// use std::{io, net::TcpListener, rc::Rc, time::Duration};
/// use windlass::{Group, Reactor, interest};
///
/// fn main() -> anyhow::Result<()> {
///     let names = Rc::new(vec!["a handler of this reactor may hold it"]);
///     let (kept, also_kept) = (Rc::clone(&names), Rc::clone(&names));
///     let mut reactor = Reactor::new()?;
///     interest()
///         .read()
///         .with_fd(TcpListener::bind("127.0.0.1:0")?)
///         .with_handler(move || println!("{kept:?}"))
///         .register_into(&mut reactor)
///         .map_err(io::Error::from)?;
///     reactor.after_with(Duration::ZERO, move |_| drop(also_kept.clone())).map_err(io::Error::from)?;
///     Group::new(names)
///         .after(Duration::ZERO, |names: &mut Rc<Vec<&str>>| println!("{names:?}"))
///         .register_into(&mut reactor)
///         .map_err(io::Error::from)?;
///     Ok(())
/// }
/// ```
///
/// The same goes for [`TimerError`], [`DeferError`], [`GroupError`](crate::GroupError),
/// [`EmbedError`](crate::EmbedError), and those of a [`Remote`](crate::Remote). Without the
/// conversion the compiler refuses it:
///
/// ```compile_fail,E0277
/// use std::{rc::Rc, time::Duration};
/// use windlass::Reactor;
///
/// fn main() -> anyhow::Result<()> {
///     let kept = Rc::new(());
///     Reactor::new()?.after_with(Duration::ZERO, move |_| drop(kept.clone()))?;
///     Ok(())
/// }
/// ```
pub struct AddError<S> {
    /// Why.
    pub reason: AddReason,
    /// The subscriber, unharmed: its descriptor is still open.
    pub subscriber: S,
}

impl<S> AddError<S> {
    /// The error of a subscriber.
    #[must_use]
    pub const fn new(reason: AddReason, subscriber: S) -> Self {
        Self { reason, subscriber }
    }

    /// The same error of something made from the subscriber.
    pub fn map<T>(self, f: impl FnOnce(S) -> T) -> AddError<T> {
        AddError { reason: self.reason, subscriber: f(self.subscriber) }
    }
}

/// Why an interest was not changed. The old one stays in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModifyError {
    /// The key names no registered descriptor.
    NotFound,
    /// The kernel takes [`exclusive`](crate::Interest::exclusive) with a few conditions only.
    InvalidInterest,
    /// The reactor's backend does not have this manner of interest: [`Backend`](crate::Backend)
    /// says which has what.
    Unsupported,
    /// An error of the kernel: `ENOENT` or `EBADF` when the descriptor was closed or replaced
    /// behind the reactor's back.
    Os(Errno),
}

/// Why a subscriber was not taken out. It stays registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TakeError {
    /// The key names no registered descriptor.
    NotFound,
    /// The subscriber, or its descriptor, is of another type than asked for.
    WrongType,
    /// The subscriber belongs to a group, which is left by deleting.
    InGroup,
}

/// Why a timer was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimerReason {
    /// As many timers as the builder's `timers_max` are running.
    LimitReached,
    /// A period of nothing would be due without end.
    ZeroPeriod,
}

/// A timer that was not started, and why.
pub struct TimerError<H> {
    /// Why.
    pub reason: TimerReason,
    /// The handler, unharmed.
    pub handler: H,
}

/// A closure that was not deferred: as many as the builder's `deferred_max` wait already.
pub struct DeferError<F> {
    /// The closure, unharmed.
    pub closure: F,
}

/// As many hooks as the reactor takes ([`HOOKS_MAX`](crate::HOOKS_MAX)) are there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookError;

/// Which of the builder's numbers was zero where nothing would work with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capacity {
    /// `events_per_turn`.
    EventsPerTurn,
    /// `timers_per_turn`.
    TimersPerTurn,
    /// `deferred_per_turn`.
    DeferredPerTurn,
    /// `calls_per_turn`.
    CallsPerTurn,
    /// `remote_max`.
    RemoteMax,
    /// `subscribers_max`.
    SubscribersMax,
    /// `timers_max`.
    TimersMax,
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EventsPerTurn => "events_per_turn",
            Self::TimersPerTurn => "timers_per_turn",
            Self::DeferredPerTurn => "deferred_per_turn",
            Self::CallsPerTurn => "calls_per_turn",
            Self::RemoteMax => "remote_max",
            Self::SubscribersMax => "subscribers_max",
            Self::TimersMax => "timers_max",
        })
    }
}

/// Why a reactor could not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// A capacity is zero.
    ZeroCapacity(Capacity),
    /// A capacity is beyond what the kernel or an index can express.
    CapacityTooLarge(Capacity),
    /// An error of the kernel: `EMFILE` when the process has no descriptor left, say.
    Os(Errno),
    /// The ring that was asked for ([`Backend::Uring`](crate::Backend::Uring)) cannot be had.
    Ring(RingError),
}

/// No [`Backend`](crate::Backend) has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownBackend;

/// Writes `Display`, `Error` and the way into [`io::Error`] for a type without parameters.
macro_rules! plain_error {
    ($type:ident, |$e:ident| $text:expr, $kind:expr) => {
        plain_error!($type, |$e| $text, $kind, None::<Errno>);
    };
    ($type:ident, |$e:ident| $text:expr, $kind:expr, $detail:expr) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let $e = self;
                f.write_str($text)?;
                match $detail {
                    Some(detail) => write!(f, ": {detail}"),
                    None => Ok(()),
                }
            }
        }
        impl std::error::Error for $type {}
        impl From<$type> for io::Error {
            fn from(e: $type) -> Self {
                let errno = {
                    let $e = &e;
                    $kind
                };
                match errno {
                    Ok(errno) => Errno::into(errno),
                    Err(kind) => Self::new(kind, e),
                }
            }
        }
    };
}

pub(crate) use plain_error;

/// The same for an error that carries something back, whatever that is.
macro_rules! carrying_error {
    ($type:ident<$p:ident>, |$e:ident| $plain:expr) => {
        impl<$p> fmt::Debug for $type<$p> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let $e = self;
                f.debug_tuple(stringify!($type)).field(&$plain).finish()
            }
        }
        impl<$p> fmt::Display for $type<$p> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let $e = self;
                $plain.fmt(f)
            }
        }
        impl<$p> std::error::Error for $type<$p> {}
        impl<$p> From<$type<$p>> for std::io::Error {
            fn from(e: $type<$p>) -> Self {
                let $e = &e;
                $plain.into()
            }
        }
    };
}
pub(crate) use carrying_error;

plain_error!(NotFound, |_e| "the key names nothing here", Err(io::ErrorKind::NotFound));

plain_error!(
    AddReason,
    |e| match e {
        Self::AlreadyExists => "the descriptor's number is registered already",
        Self::LimitReached => "the reactor has as many subscribers as it may",
        Self::InvalidInterest => "the kernel refuses this interest together with exclusive",
        Self::Unsupported => "the reactor's backend does not have this manner of interest",
        Self::BadDescriptor => "the descriptor is not open",
        Self::NotPollable => "the descriptor cannot be polled",
        Self::NestedTooDeep => "epoll sets are nested too deep, or in a circle",
        Self::Os(_) => "the kernel refused the registration",
    },
    match e {
        AddReason::AlreadyExists => Err(io::ErrorKind::AlreadyExists),
        AddReason::LimitReached => Err(io::ErrorKind::QuotaExceeded),
        AddReason::InvalidInterest => Err(io::ErrorKind::InvalidInput),
        AddReason::Unsupported => Err(io::ErrorKind::Unsupported),
        AddReason::BadDescriptor => Ok(Errno::BADF),
        AddReason::NotPollable => Ok(Errno::PERM),
        AddReason::NestedTooDeep => Ok(Errno::LOOP),
        AddReason::Os(errno) => Ok(*errno),
    },
    match e {
        AddReason::Os(errno) => Some(errno),
        _ => None,
    }
);

plain_error!(
    ModifyError,
    |e| match e {
        Self::NotFound => "the key names no registered descriptor",
        Self::InvalidInterest => "the kernel refuses this interest together with exclusive",
        Self::Unsupported => "the reactor's backend does not have this manner of interest",
        Self::Os(_) => "the kernel refused the change",
    },
    match e {
        ModifyError::NotFound => Err(io::ErrorKind::NotFound),
        ModifyError::InvalidInterest => Err(io::ErrorKind::InvalidInput),
        ModifyError::Unsupported => Err(io::ErrorKind::Unsupported),
        ModifyError::Os(errno) => Ok(*errno),
    },
    match e {
        ModifyError::Os(errno) => Some(errno),
        _ => None,
    }
);

plain_error!(
    TakeError,
    |e| match e {
        Self::NotFound => "the key names no registered descriptor",
        Self::WrongType => "the subscriber is of another type",
        Self::InGroup => "the subscriber belongs to a group",
    },
    Err(match e {
        TakeError::NotFound => io::ErrorKind::NotFound,
        TakeError::WrongType | TakeError::InGroup => io::ErrorKind::InvalidInput,
    })
);

plain_error!(
    TimerReason,
    |e| match e {
        Self::LimitReached => "the reactor has as many timers as it may",
        Self::ZeroPeriod => "a timer's period is zero",
    },
    Err(match e {
        TimerReason::LimitReached => io::ErrorKind::QuotaExceeded,
        TimerReason::ZeroPeriod => io::ErrorKind::InvalidInput,
    })
);

plain_error!(
    UnknownBackend,
    |_e| "the backends are auto, epoll, uring and poll",
    Err(io::ErrorKind::InvalidInput)
);

plain_error!(
    HookError,
    |_e| "the reactor has as many hooks as it takes",
    Err(io::ErrorKind::QuotaExceeded)
);

/// What is the same in every [`DeferError`].
#[derive(Debug)]
struct DeferredFull;
plain_error!(
    DeferredFull,
    |_e| "as many closures as may be are deferred",
    Err(io::ErrorKind::WouldBlock)
);

plain_error!(
    BuildError,
    |e| match e {
        Self::ZeroCapacity(_) => "a capacity of the reactor is zero",
        Self::CapacityTooLarge(_) => "a capacity of the reactor is too large",
        Self::Os(_) => "the kernel refused a descriptor of the reactor",
        Self::Ring(_) => "the reactor cannot have a ring",
    },
    match e {
        BuildError::ZeroCapacity(_) | BuildError::CapacityTooLarge(_) =>
            Err(io::ErrorKind::InvalidInput),
        BuildError::Os(errno) => Ok(*errno),
        // With the words, which name what is missing.
        BuildError::Ring(why) => Err(io::Error::from(why.errno()).kind()),
    },
    match e {
        BuildError::ZeroCapacity(capacity) | BuildError::CapacityTooLarge(capacity) =>
            Some(capacity.to_string()),
        BuildError::Os(errno) => Some(errno.to_string()),
        BuildError::Ring(why) => Some(why.to_string()),
    }
);

carrying_error!(AddError<S>, |e| e.reason);
carrying_error!(TimerError<H>, |e| e.reason);
carrying_error!(DeferError<F>, |_e| DeferredFull);

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither `Debug`, `Send` nor `Error`.
    struct Opaque(#[expect(dead_code, reason = "a pointer makes it !Send")] *const u8);

    #[test]
    fn errors_turn_into_io_errors_whatever_they_carry() {
        let add = AddError::new(AddReason::AlreadyExists, Opaque(core::ptr::null()));
        assert_eq!(format!("{add:?}"), "AddError(AlreadyExists)");
        assert_eq!(io::Error::from(add).kind(), io::ErrorKind::AlreadyExists);
        let timer =
            TimerError { reason: TimerReason::ZeroPeriod, handler: Opaque(core::ptr::null()) };
        assert_eq!(io::Error::from(timer).kind(), io::ErrorKind::InvalidInput);
        let defer = DeferError { closure: Opaque(core::ptr::null()) };
        assert_eq!(io::Error::from(defer).kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn the_kernels_number_survives() {
        let e = io::Error::from(AddReason::from(Errno::NOSPC));
        assert_eq!(e.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        assert_eq!(AddReason::from(Errno::BADF), AddReason::BadDescriptor);
        assert!(AddReason::Os(Errno::NOSPC).to_string().contains(&Errno::NOSPC.to_string()));
        let zero = BuildError::ZeroCapacity(Capacity::TimersPerTurn);
        assert_eq!(zero.to_string(), "a capacity of the reactor is zero: timers_per_turn");
        let e = io::Error::from(ModifyError::Os(Errno::NOENT));
        assert_eq!(e.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
    }
}
