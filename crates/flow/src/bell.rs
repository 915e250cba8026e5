//! What a wake of a sleeping owner makes known: an eventfd, or, in a simulation, a closure.

use core::{
    any::Any,
    fmt,
    panic::{RefUnwindSafe, UnwindSafe},
};
use std::{
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use crate::{Errno, sys::EventFd};

/// How a simulation learns of a wake.
pub trait SimBell: Any + Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Called by the thread that wakes.
    fn ring(&self);
    /// The value itself, for the simulation that has made it.
    fn as_any(&self) -> &dyn Any;
}

pub(crate) enum Bell {
    Descriptor(EventFd),
    Simulated(Box<dyn SimBell>),
}

impl Bell {
    pub(crate) fn new() -> Result<Self, Errno> {
        EventFd::new().map(Self::Descriptor)
    }

    pub(crate) fn write(&self, n: u64) -> bool {
        match self {
            Self::Descriptor(eventfd) => eventfd.write(n),
            Self::Simulated(bell) => {
                bell.ring();
                true
            }
        }
    }

    pub(crate) fn read(&self) -> bool {
        match self {
            Self::Descriptor(eventfd) => eventfd.read(),
            Self::Simulated(_) => false,
        }
    }

    /// # Panics
    /// In a simulation, which has no thread that could wait.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        match self {
            Self::Descriptor(eventfd) => eventfd.wait(timeout),
            Self::Simulated(_) => panic!("a simulated owner waits in its simulation"),
        }
    }
}

impl AsFd for Bell {
    /// # Panics
    /// In a simulation.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Descriptor(eventfd) => eventfd.as_fd(),
            Self::Simulated(_) => panic!("the latch of a simulated owner has no descriptor"),
        }
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Descriptor(_) => "Descriptor",
            Self::Simulated(_) => "Simulated",
        })
    }
}
