//! Why a call failed.

use std::fmt;
use std::io;

use vmm_sys_util::errno::Error as Errno;

/// `Result` with the [`Error`] of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Debug, Eq, PartialEq)]
pub enum Error {
    /// The manager is gone, or as many calls wait as
    /// [`RemoteEndpoint::fire`](crate::RemoteEndpoint::fire) allows.
    #[cfg(feature = "remote_endpoint")]
    ChannelSend,
    /// The manager went, or the closure panicked, before it had an answer.
    #[cfg(feature = "remote_endpoint")]
    ChannelRecv,
    /// The eventfd of the remote endpoint could not be made or written.
    #[cfg(feature = "remote_endpoint")]
    EventFd(Errno),
    /// The kernel, or the reactor with the same error, rejected a change or a wait.
    Epoll(Errno),
    /// A subscriber has registered this descriptor already.
    FdAlreadyRegistered,
    /// No subscriber has this identifier, or it was removed.
    InvalidId,
    /// The number of events that one run may take is zero or above
    /// [`MAX_READY_EVENTS_CAPACITY`](crate::MAX_READY_EVENTS_CAPACITY).
    InvalidCapacity,
}

impl Error {
    /// An error of the reactor. Errors without a number of their own are bad arguments.
    pub(crate) fn of_reactor(error: impl Into<io::Error>) -> Self {
        Self::Epoll(Errno::new(error.into().raw_os_error().unwrap_or(EINVAL)))
    }

    fn errno(&self) -> Option<&Errno> {
        match self {
            #[cfg(feature = "remote_endpoint")]
            Self::EventFd(errno) => Some(errno),
            Self::Epoll(errno) => Some(errno),
            _ => None,
        }
    }
}

/// The number of "Invalid argument" (errno(3)).
const EINVAL: i32 = 22;

/// The number of "No such file or directory": the descriptor is not registered (epoll_ctl(2)).
pub(crate) const ENOENT: i32 = 2;

/// The number of "Bad file descriptor".
pub(crate) const EBADF: i32 = 9;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            #[cfg(feature = "remote_endpoint")]
            Self::ChannelSend => "the event manager is gone, or too many calls wait for it",
            #[cfg(feature = "remote_endpoint")]
            Self::ChannelRecv => "the event manager was dropped before it answered the call",
            #[cfg(feature = "remote_endpoint")]
            Self::EventFd(_) => "the eventfd of the remote endpoint failed",
            Self::Epoll(_) => "a change or a wait of the event manager was rejected",
            Self::FdAlreadyRegistered => "the descriptor is registered already",
            Self::InvalidId => "no subscriber has this identifier",
            Self::InvalidCapacity => "the capacity for ready events is zero or too large",
        };
        match self.errno() {
            Some(errno) => write!(f, "{text}: {errno}"),
            None => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.errno().map(|errno| errno as _)
    }
}
