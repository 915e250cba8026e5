//! The errors of calls, posts and registrations from other threads. Each returns a rejected closure
//! or subscriber in a [`Returned`], so that `?` works with `anyhow`, and converts to an
//! [`io::Error`].

use core::fmt;
use std::{any::Any, io};

use crate::{AddError, Returned};

/// Why a call has no answer.
///
/// ```
/// use windlass::{CallError, Reactor};
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let remote = reactor.remote();
/// let Err(CallError::WouldDeadlock(closure)) = remote.call(|turn| turn.stats().turns) else {
///     panic!("this is the loop's own thread")
/// };
/// drop(reactor);
/// assert!(matches!(remote.call(closure.into_inner()), Err(CallError::Closed(_))));
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub enum CallError<F> {
    /// The caller is on the loop's own thread and would wait for itself. Contains the closure.
    WouldDeadlock(Returned<F>),
    /// The reactor was dropped and has not run the closure. Contains the closure.
    Closed(Returned<F>),
    /// The timeout has expired. Contains the closure if it had not started; it never will. `None`
    /// if the closure runs or has run; its result is dropped.
    TimedOut(Option<Returned<F>>),
    /// The closure has panicked. Contains the payload, as
    /// [`resume_unwind`](std::panic::resume_unwind) takes it.
    Panicked(Returned<Box<dyn Any + Send>>),
}

impl<F> CallError<F> {
    /// Converts the contained closure.
    pub(crate) fn map<G>(self, f: impl FnOnce(F) -> G) -> CallError<G> {
        match self {
            Self::WouldDeadlock(job) => CallError::WouldDeadlock(job.map(f)),
            Self::Closed(job) => CallError::Closed(job.map(f)),
            Self::TimedOut(job) => CallError::TimedOut(job.map(|job| job.map(f))),
            Self::Panicked(load) => CallError::Panicked(load),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::WouldDeadlock(_) => "WouldDeadlock",
            Self::Closed(_) => "Closed",
            Self::TimedOut(_) => "TimedOut",
            Self::Panicked(_) => "Panicked",
        }
    }

    fn text(&self) -> &'static str {
        match self {
            Self::WouldDeadlock(_) => WOULD_DEADLOCK,
            Self::Closed(_) => CLOSED,
            Self::TimedOut(_) => "the reactor has not answered in time",
            Self::Panicked(_) => "the call has panicked in the reactor's thread",
        }
    }

    fn to_io(&self) -> io::Error {
        let kind = match self {
            Self::WouldDeadlock(_) => io::ErrorKind::Deadlock,
            Self::Closed(_) => io::ErrorKind::BrokenPipe,
            Self::TimedOut(_) => io::ErrorKind::TimedOut,
            Self::Panicked(_) => io::ErrorKind::Other,
        };
        io::Error::new(kind, self.text())
    }
}

const WOULD_DEADLOCK: &str = "the reactor's own thread would wait for itself";
const CLOSED: &str = "the reactor is gone";

/// Why a closure was not posted.
///
/// ```
/// use windlass::{PostReason, Reactor};
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let remote = reactor.remote();
/// drop(reactor);
/// let error = remote.try_post(|_| println!("never runs")).unwrap_err();
/// assert_eq!(error.reason, PostReason::Closed);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostReason {
    /// The queue holds `remote_max` calls and posts, the limit set in the builder.
    Full,
    /// The queue is full, and the caller is on the loop's own thread, so it would wait for itself.
    WouldDeadlock,
    /// The reactor was dropped.
    Closed,
}

/// A closure that was not posted, and the reason.
///
/// ```
/// use std::time::Duration;
/// use windlass::{PostReason, Reactor};
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::builder().remote_max(1).build()?;
/// let remote = reactor.remote();
/// remote.try_post(|_| println!("first"))?;
/// let error = remote.try_post(|_| println!("second")).unwrap_err();
/// assert_eq!(error.reason, PostReason::Full);
/// reactor.run_once(Duration::ZERO)?; // runs the first closure
/// remote.try_post(error.closure.into_inner())?;
/// # Ok(())
/// # }
/// ```
pub struct PostError<F> {
    /// The reason.
    pub reason: PostReason,
    /// The rejected closure.
    pub closure: Returned<F>,
}

impl<F> PostError<F> {
    fn name(&self) -> PostReason {
        self.reason
    }

    fn text(&self) -> &'static str {
        match self.reason {
            PostReason::Full => "as many calls as may be wait for the reactor",
            PostReason::WouldDeadlock => WOULD_DEADLOCK,
            PostReason::Closed => CLOSED,
        }
    }

    fn to_io(&self) -> io::Error {
        let kind = match self.reason {
            PostReason::Full => io::ErrorKind::WouldBlock,
            PostReason::WouldDeadlock => io::ErrorKind::Deadlock,
            PostReason::Closed => io::ErrorKind::BrokenPipe,
        };
        io::Error::new(kind, self.text())
    }
}

/// Why a subscriber was not registered from another thread.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use windlass::{Reactor, RemoteAddError, interest};
///
/// # fn main() -> std::io::Result<()> {
/// # let (stream, _peer) = UnixStream::pair()?;
/// let mut reactor = Reactor::new()?;
/// let remote = reactor.remote();
/// drop(reactor);
/// let registration = interest().read().with_fd(stream).with_handler(|| {});
/// match registration.register_remotely(&remote) {
///     Err(RemoteAddError::Closed(registration)) => {
///         let (_interest, _stream, _handler) = registration.into_inner().into_parts();
///     }
///     outcome => panic!("{outcome:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub enum RemoteAddError<S> {
    /// The reactor or the kernel has rejected the subscriber. Contains it.
    Refused(AddError<Returned<S>>),
    /// The caller is on the loop's own thread and would wait for itself. Contains the subscriber.
    WouldDeadlock(Returned<S>),
    /// The reactor was dropped. Contains the subscriber.
    Closed(Returned<S>),
    /// The subscriber's own `fd` or `interest` has panicked. Contains the panic's payload; the
    /// subscriber is dropped.
    Panicked(Returned<Box<dyn Any + Send>>),
}

impl<S> RemoteAddError<S> {
    /// Converts the contained subscriber.
    pub fn map<T>(self, f: impl FnOnce(S) -> T) -> RemoteAddError<T> {
        match self {
            Self::Refused(e) => RemoteAddError::Refused(e.map(|subscriber| subscriber.map(f))),
            Self::WouldDeadlock(subscriber) => RemoteAddError::WouldDeadlock(subscriber.map(f)),
            Self::Closed(subscriber) => RemoteAddError::Closed(subscriber.map(f)),
            Self::Panicked(load) => RemoteAddError::Panicked(load),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Refused(_) => "Refused",
            Self::WouldDeadlock(_) => "WouldDeadlock",
            Self::Closed(_) => "Closed",
            Self::Panicked(_) => "Panicked",
        }
    }

    fn text(&self) -> &'static str {
        match self {
            Self::Refused(_) => "the registration was refused",
            Self::WouldDeadlock(_) => WOULD_DEADLOCK,
            Self::Closed(_) => CLOSED,
            Self::Panicked(_) => "the subscriber has panicked",
        }
    }

    /// A rejected registration keeps its error as without a remote, with the kernel's error number.
    fn to_io(&self) -> io::Error {
        let kind = match self {
            Self::Refused(e) => return e.reason.into(),
            Self::WouldDeadlock(_) => io::ErrorKind::Deadlock,
            Self::Closed(_) => io::ErrorKind::BrokenPipe,
            Self::Panicked(_) => io::ErrorKind::Other,
        };
        io::Error::new(kind, self.text())
    }
}

/// Implements the error traits for any contained type.
macro_rules! error {
    ($type:ident<$p:ident>) => {
        impl<$p> fmt::Debug for $type<$p> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:?})", stringify!($type), self.name())
            }
        }
        impl<$p> fmt::Display for $type<$p> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.text())
            }
        }
        impl<$p> std::error::Error for $type<$p> {}
        impl<$p> From<$type<$p>> for io::Error {
            fn from(e: $type<$p>) -> Self {
                e.to_io()
            }
        }
    };
}

error!(CallError<F>);
error!(PostError<F>);
error!(RemoteAddError<S>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AddReason, Errno};

    fn payload() -> Returned<Box<dyn Any + Send>> {
        Returned::new(Box::new(()))
    }

    #[test]
    fn each_error_turns_into_its_io_error() {
        let calls = [
            (CallError::WouldDeadlock(().into()), io::ErrorKind::Deadlock),
            (CallError::Closed(().into()), io::ErrorKind::BrokenPipe),
            (CallError::TimedOut(None), io::ErrorKind::TimedOut),
            (CallError::Panicked(payload()), io::ErrorKind::Other),
        ];
        for (error, kind) in calls {
            let text = error.to_string();
            let error = io::Error::from(error);
            assert_eq!((error.kind(), error.to_string()), (kind, text));
        }
        for (reason, kind) in [
            (PostReason::Full, io::ErrorKind::WouldBlock),
            (PostReason::WouldDeadlock, io::ErrorKind::Deadlock),
            (PostReason::Closed, io::ErrorKind::BrokenPipe),
        ] {
            assert_eq!(io::Error::from(PostError { reason, closure: ().into() }).kind(), kind);
        }
        let additions = [
            (RemoteAddError::WouldDeadlock(().into()), io::ErrorKind::Deadlock),
            (RemoteAddError::Closed(().into()), io::ErrorKind::BrokenPipe),
            (RemoteAddError::Panicked(payload()), io::ErrorKind::Other),
            (
                RemoteAddError::Refused(AddError::new(AddReason::AlreadyExists, ().into())),
                io::ErrorKind::AlreadyExists,
            ),
        ];
        for (error, kind) in additions {
            assert_eq!(io::Error::from(error).kind(), kind);
        }
    }

    #[test]
    fn the_kernels_number_survives_a_remote_registration() {
        let rejected: RemoteAddError<()> =
            RemoteAddError::Refused(AddError::new(AddReason::Os(Errno::NOSPC), ().into()));
        assert_eq!(io::Error::from(rejected).raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    }
}
