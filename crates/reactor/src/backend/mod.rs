//! What tells the reactor which descriptors are ready.
//!
//! A backend is chosen when the reactor is built and costs one branch per wait, never one per event.

use core::{fmt, mem::MaybeUninit};

use rustix::{io::Errno, time::Timespec};

use crate::batch::RawEvent;

#[cfg_attr(miri, path = "under_miri.rs")]
mod epoll;

use epoll::Epoll;
pub(crate) use epoll::forget;

/// How the reactor learns of readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Backend {
    /// The best that this system has: epoll for now.
    #[default]
    Auto,
    /// epoll(7).
    Epoll,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Epoll => "epoll",
        })
    }
}

/// The backend at work.
pub(crate) enum Driver {
    Epoll(Epoll),
}

/// Declares a method that every backend has.
macro_rules! each {
    ($(#[$doc:meta])* fn $name:ident(&mut self $(, $arg:ident: $type:ty)*) -> $out:ty) => {
        $(#[$doc])*
        #[inline]
        pub(crate) fn $name(&mut self $(, $arg: $type)*) -> $out {
            match self {
                Self::Epoll(epoll) => epoll.$name($($arg),*),
            }
        }
    };
}

impl Driver {
    pub(crate) fn new(backend: Backend) -> Result<Self, Errno> {
        match backend {
            Backend::Auto | Backend::Epoll => Epoll::new().map(Self::Epoll),
        }
    }

    pub(crate) fn backend(&self) -> Backend {
        match self {
            Self::Epoll(_) => Backend::Epoll,
        }
    }

    each!(
        /// Watches a descriptor; its events carry `address`.
        fn add(&mut self, fd: i32, mask: u32, address: u64) -> Result<(), Errno>
    );
    each!(
        /// Changes what a watched descriptor is watched for.
        fn modify(&mut self, fd: i32, mask: u32, address: u64) -> Result<(), Errno>
    );
    each!(
        /// Ends the watch. An error means that its entry may live on under a file that the number no longer names.
        fn delete(&mut self, fd: i32) -> Result<(), Errno>
    );
    each!(
        /// Waits until something is ready or the time is over (`None`: for ever), and says how many events it wrote to
        /// the front of `room`, which is not empty. `EINTR` comes back as it is.
        fn wait(&mut self, room: &mut [MaybeUninit<RawEvent>], timeout: Option<&Timespec>) -> Result<usize, Errno>
    );

    each!(
        /// Gets hold of what a later [`replace`](Self::replace) needs, if it can be had.
        fn reserve(&mut self) -> ()
    );
    each!(
        /// A new, empty set of watches in place of the old one, which is forgotten with all its entries.
        fn replace(&mut self) -> Result<(), Errno>
    );

    /// The descriptor by which another loop can wait for this one, and a number that changes with it.
    ///
    /// For the outer set of [`Embedded`](crate::Embedded) alone: rule 11 forbids to show it to anybody else.
    pub(crate) fn watchable(&self) -> (rustix::fd::BorrowedFd<'_>, u64) {
        match self {
            Self::Epoll(epoll) => epoll.watchable(),
        }
    }
}
