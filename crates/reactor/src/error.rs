//! Error types, one for each operation. Each converts into an [`io::Error`], so `?` works.

mod ring;

use core::fmt;
use std::io;

pub use ring::{RingError, RingFeature};
pub use rustix::io::Errno;

/// The key names nothing. It is stale, made up, from another reactor, or of another kind (timer,
/// descriptor, group).
///
/// ```
/// use std::time::Duration;
/// use windlass::{NotFound, Reactor};
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let timer = reactor.after(Duration::from_secs(1), || {})?;
/// assert_eq!(reactor.delete(timer), Err(NotFound), "a timer is cancelled, not deleted");
/// assert_eq!(reactor.cancel(timer), Ok(()));
/// assert_eq!(reactor.cancel(timer), Err(NotFound), "the key is stale");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFound;

/// Why a subscriber was not registered.
///
/// ```
/// use std::{os::unix::net::UnixStream, rc::Rc};
/// use windlass::{AddReason, Reactor, interest};
///
/// # fn main() -> std::io::Result<()> {
/// # let mut reactor = Reactor::new()?;
/// let (stream, _peer) = UnixStream::pair()?;
/// let stream = Rc::new(stream);
/// let first = interest().read().with_fd(Rc::clone(&stream)).with_handler(|| {});
/// first.register_into(&mut reactor)?;
/// let second = interest().write().with_fd(stream).with_handler(|| {});
/// assert_eq!(second.register_into(&mut reactor), Err(AddReason::AlreadyExists));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddReason {
    /// The descriptor's number is registered already, or its subscriber has deleted itself and its
    /// handler has not returned yet.
    AlreadyExists,
    /// The limit `subscribers_max` is reached.
    LimitReached,
    /// [`exclusive`](crate::Interest::exclusive) is combined with a condition or mode that the
    /// kernel rejects.
    InvalidInterest,
    /// The reactor's backend does not support this interest. [`Backend`](crate::Backend) lists the
    /// supported ones.
    Unsupported,
    /// The descriptor is not open (`EBADF`).
    BadDescriptor,
    /// The descriptor cannot be polled, for example a regular file or a directory (`EPERM`).
    NotPollable,
    /// Epoll sets are nested deeper than the kernel allows, or form a cycle (`ELOOP`).
    NestedTooDeep,
    /// Any other error of the kernel, for example out of memory or out of watches.
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

/// A subscriber that was not registered, and the reason.
///
/// The methods whose name begins with `try_` return it. The plain ones return an [`AddReason`] and
/// drop the subscriber. So their errors are `Send` and `Sync` whatever the handler holds, as
/// `anyhow::Error` and `Box<dyn Error + Send + Sync>` require:
///
/// ```
/// use std::{net::TcpListener, rc::Rc, time::Duration};
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
///         .register_into(&mut reactor)?;
///     reactor.after_with(Duration::ZERO, move |_| drop(also_kept.clone()))?;
///     Group::new(names)
///         .after(Duration::ZERO, |names: &mut Rc<Vec<&str>>| println!("{names:?}"))
///         .register_into(&mut reactor)?;
///     Ok(())
/// }
/// ```
///
/// Every error converts into an [`io::Error`], also one that returns a value. The same applies to
/// [`TimerError`], [`DeferError`], [`GroupError`](crate::GroupError) and
/// [`EmbedError`](crate::EmbedError).
pub struct AddError<S> {
    /// The reason.
    pub reason: AddReason,
    /// The subscriber, unchanged. Its descriptor is still open.
    pub subscriber: S,
}

impl<S> AddError<S> {
    /// Makes the error for a subscriber.
    #[must_use]
    pub const fn new(reason: AddReason, subscriber: S) -> Self {
        Self { reason, subscriber }
    }

    /// Converts the subscriber and keeps the reason.
    pub fn map<T>(self, f: impl FnOnce(S) -> T) -> AddError<T> {
        AddError { reason: self.reason, subscriber: f(self.subscriber) }
    }
}

/// Why an interest was not changed. The old interest stays in force.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use windlass::{Key, ModifyError, Reactor, interest};
///
/// # fn main() -> std::io::Result<()> {
/// # let (stream, _peer) = UnixStream::pair()?;
/// # let mut reactor = Reactor::new()?;
/// let key = interest().read().with_fd(stream).with_handler(|| {}).register_into(&mut reactor)?;
/// let invalid = interest().read().exclusive().one_shot();
/// assert_eq!(reactor.modify(key, invalid), Err(ModifyError::InvalidInterest));
/// reactor.delete(key)?;
/// assert_eq!(reactor.modify(key, interest()), Err(ModifyError::NotFound));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModifyError {
    /// The key names no registered descriptor.
    NotFound,
    /// [`exclusive`](crate::Interest::exclusive) is combined with a condition or mode that the
    /// kernel rejects.
    InvalidInterest,
    /// The reactor's backend does not support this interest. [`Backend`](crate::Backend) lists the
    /// supported ones.
    Unsupported,
    /// An error of the kernel. `ENOENT` or `EBADF` means that the descriptor was closed or replaced
    /// without telling the reactor.
    Os(Errno),
}

/// Why a registration was not [kicked](crate::Turn::kick).
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use windlass::{KickError, Reactor, Ready, interest};
///
/// # fn main() -> std::io::Result<()> {
/// # let (stream, _peer) = UnixStream::pair()?;
/// # let mut reactor = Reactor::new()?;
/// let once = interest().read().one_shot();
/// let key = once.with_fd(stream).with_handler(|| {}).register_into(&mut reactor)?;
/// let (read, write) = (Ready::empty().read(), Ready::empty().write());
/// assert_eq!(reactor.kick(key, write), Err(KickError::NotRequested));
/// reactor.kick(key, read)?;
/// reactor.run_once(None)?;
/// assert_eq!(reactor.kick(key, read), Err(KickError::Disabled));
/// reactor.delete(key)?;
/// assert_eq!(reactor.kick(key, read), Err(KickError::NotFound));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KickError {
    /// The key names no registered descriptor.
    NotFound,
    /// The registration is one-shot and has fired. [Re-arm](crate::Turn::rearm) it first.
    Disabled,
    /// There is no condition, or one that the interest does not request. Errors and hang-ups are
    /// always requested.
    NotRequested,
}

/// Why a subscriber was not taken out. It stays registered.
///
/// ```
/// use std::{net::TcpStream, os::unix::net::UnixStream};
/// use windlass::{Reactor, TakeError, interest};
///
/// # fn main() -> std::io::Result<()> {
/// # let (stream, _peer) = UnixStream::pair()?;
/// # let mut reactor = Reactor::new()?;
/// let key = interest().read().with_fd(stream).with_handler(|| {}).register_into(&mut reactor)?;
/// assert_eq!(reactor.take_fd::<TcpStream>(key).unwrap_err(), TakeError::WrongType);
/// let _stream: UnixStream = reactor.take_fd(key)?;
/// assert_eq!(reactor.take_fd::<UnixStream>(key).unwrap_err(), TakeError::NotFound);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TakeError {
    /// The key names no registered descriptor.
    NotFound,
    /// The subscriber, or its descriptor, is not of the requested type.
    WrongType,
    /// The subscriber belongs to a group. Members leave a group only by being deleted.
    InGroup,
}

/// Why a timer was not started.
///
/// ```
/// use std::time::Duration;
/// use windlass::{Reactor, TimerReason};
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::builder().timers_max(1).build()?;
/// reactor.after(Duration::from_secs(1), || {})?;
/// let refused = reactor.after(Duration::from_secs(2), || {});
/// assert_eq!(refused, Err(TimerReason::LimitReached));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimerReason {
    /// The limit `timers_max` is reached.
    LimitReached,
    /// The period is zero, so the timer would always be due.
    ZeroPeriod,
}

/// A timer that was not started, and the reason.
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
pub struct TimerError<H> {
    /// The reason.
    pub reason: TimerReason,
    /// The handler, unchanged.
    pub handler: H,
}

/// Why a closure was not deferred.
///
/// ```
/// use windlass::{DeferReason, Reactor};
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::builder().deferred_max(1).build()?;
/// reactor.defer(|_| println!("first"))?;
/// assert_eq!(reactor.defer(|_| println!("second")), Err(DeferReason::LimitReached));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeferReason {
    /// The limit `deferred_max` is reached.
    LimitReached,
}

/// A closure that was not deferred because `deferred_max` closures are queued.
///
/// ```
/// use std::time::Duration;
/// use windlass::Reactor;
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::builder().deferred_max(1).build()?;
/// reactor.defer(|_| println!("first"))?;
/// let error = reactor.try_defer(|_| println!("second")).unwrap_err();
/// reactor.run_once(Duration::ZERO)?; // runs the first closure
/// reactor.defer(error.closure)?;
/// # Ok(())
/// # }
/// ```
pub struct DeferError<F> {
    /// The closure, unchanged.
    pub closure: F,
}

/// The limit [`HOOKS_MAX`](crate::HOOKS_MAX) is reached.
///
/// ```
/// use windlass::{HOOKS_MAX, HookError, Reactor};
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// for _ in 0..HOOKS_MAX {
///     reactor.after_turn(|_| {})?;
/// }
/// assert_eq!(reactor.after_turn(|_| {}), Err(HookError));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookError;

/// No [`Backend`](crate::Backend) has this name.
///
/// ```
/// use windlass::{Backend, UnknownBackend};
///
/// assert_eq!("kqueue".parse::<Backend>(), Err(UnknownBackend));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownBackend;

/// Implements `Display`, `Error` and the conversion into [`io::Error`] for a type without
/// parameters.
macro_rules! plain_error {
    ($type:ident, |$e:ident| $text:expr, $kind:expr) => {
        plain_error!($type, |$e| $text, $kind, None::<$crate::Errno>);
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
                    Ok(errno) => $crate::Errno::into(errno),
                    Err(kind) => Self::new(kind, e),
                }
            }
        }
    };
}

pub(crate) use plain_error;

/// The same for an error that returns a value of any type.
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
    KickError,
    |e| match e {
        Self::NotFound => "the key names no registered descriptor",
        Self::Disabled => "the one-shot registration has fired and is not re-armed",
        Self::NotRequested => "no condition, or one that the interest does not request",
    },
    Err(match e {
        KickError::NotFound => io::ErrorKind::NotFound,
        KickError::Disabled | KickError::NotRequested => io::ErrorKind::InvalidInput,
    })
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

plain_error!(
    DeferReason,
    |_e| "as many closures as may be are deferred",
    Err(io::ErrorKind::WouldBlock)
);

carrying_error!(AddError<S>, |e| e.reason);
carrying_error!(TimerError<H>, |e| e.reason);
carrying_error!(DeferError<F>, |_e| DeferReason::LimitReached);

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
        let e = io::Error::from(ModifyError::Os(Errno::NOENT));
        assert_eq!(e.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
    }
}
