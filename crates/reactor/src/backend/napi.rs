//! Busy polling of network cards: the kernel asks their queues for packets while a thread waits.

#![allow(unsafe_code, reason = "an ioctl(2) of epoll sets")]

use core::fmt;
use std::io;

#[cfg(not(miri))]
use rustix::{
    fd::BorrowedFd,
    ioctl::{Opcode, Setter, ioctl, opcode},
};

use crate::{Backend, Errno, error::plain_error};

/// The largest budget that needs no privilege (`NAPI_POLL_WEIGHT`, include/linux/netdevice.h).
const BUDGET_UNPRIVILEGED_MAX: u16 = 64;

/// How the kernel polls network cards while a reactor waits: see
/// [`Builder::napi`](crate::Builder::napi).
#[doc(alias = "epoll_params")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NapiPoll {
    /// The longest time of polling in a wait, in microseconds; at most `i32::MAX`. Zero is none.
    #[doc(alias = "busy_poll_usecs")]
    pub usecs: u32,
    /// The most packets that one poll of a queue takes. Zero is the kernel's own number, 8. More
    /// than 64 needs `CAP_NET_ADMIN`. A ring has no such number: the value is checked only.
    #[doc(alias = "busy_poll_budget")]
    pub budget: u16,
    /// Whether the card leaves its interrupts masked as long as the polling goes on. That also
    /// needs `napi_defer_hard_irqs` and `gro_flush_timeout` of the card
    /// (Documentation/networking/napi.rst).
    #[doc(alias = "prefer_busy_poll")]
    pub prefer: bool,
}

/// Why the kernel does not poll network cards for a reactor.
///
/// ```
/// use windlass::{Backend, BuildError, NapiError, NapiPoll, Reactor};
///
/// let napi = NapiPoll { usecs: 50, budget: 8, prefer: false };
/// let error = Reactor::builder().backend(Backend::Poll).napi(napi).build().unwrap_err();
/// assert_eq!(error, BuildError::Napi(NapiError::Backend(Backend::Poll)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NapiError {
    /// The backend is neither epoll nor a ring.
    Backend(Backend),
    /// The kernel is older than Linux 6.9, or was built without `CONFIG_NET_RX_BUSY_POLL`.
    Missing(Errno),
    /// A [`budget`](NapiPoll::budget) above 64, without `CAP_NET_ADMIN`.
    Budget(u16),
    /// [`usecs`](NapiPoll::usecs) is larger than `i32::MAX`.
    Usecs(u32),
    /// Any other error of the kernel.
    Os(Errno),
}

plain_error!(
    NapiError,
    |e| match e {
        Self::Backend(_) => "only epoll and io_uring poll network cards, and the backend is",
        Self::Missing(_) =>
            "this kernel does not poll network cards for epoll or io_uring (Linux 6.9, with \
             CONFIG_NET_RX_BUSY_POLL)",
        Self::Budget(_) => "a budget above 64 packets needs CAP_NET_ADMIN, and it is",
        Self::Usecs(_) => "the time of a poll is larger than i32::MAX microseconds",
        Self::Os(_) => "the kernel refused to poll network cards",
    },
    match e {
        NapiError::Backend(_) | NapiError::Missing(_) => Err(io::ErrorKind::Unsupported),
        NapiError::Budget(_) => Err(io::ErrorKind::PermissionDenied),
        NapiError::Usecs(_) => Err(io::ErrorKind::InvalidInput),
        NapiError::Os(errno) => Ok(*errno),
    },
    Some(match e {
        NapiError::Backend(backend) => backend.to_string(),
        NapiError::Missing(errno) | NapiError::Os(errno) => errno.to_string(),
        NapiError::Budget(packets) => packets.to_string(),
        NapiError::Usecs(usecs) => usecs.to_string(),
    })
);

impl NapiPoll {
    /// Checks the bound that epoll has and a ring lacks.
    pub(super) fn check(self) -> Result<Self, NapiError> {
        if i32::try_from(self.usecs).is_ok() { Ok(self) } else { Err(NapiError::Usecs(self.usecs)) }
    }

    /// Whether the budget needs a privilege.
    #[cfg(not(miri))]
    pub(super) fn is_privileged(self) -> bool {
        self.budget > BUDGET_UNPRIVILEGED_MAX
    }

    /// Sets the polling of an epoll set.
    #[cfg(not(miri))]
    pub(super) fn set_on_epoll(self, set: BorrowedFd<'_>) -> Result<(), NapiError> {
        let params = EpollParams {
            busy_poll_usecs: self.usecs,
            busy_poll_budget: self.budget,
            prefer_busy_poll: self.prefer.into(),
            pad: 0,
        };
        // SAFETY: `EPIOCSPARAMS` reads a `struct epoll_params`, which this is. A descriptor without
        // this operation returns `ENOTTY`.
        let setter = unsafe { Setter::<EPIOCSPARAMS, EpollParams>::new(params) };
        // SAFETY: as above. The call writes no memory.
        let outcome = unsafe { ioctl(set, setter) };
        outcome.map_err(|errno| match errno {
            Errno::NOTTY | Errno::OPNOTSUPP => NapiError::Missing(errno),
            Errno::PERM if self.is_privileged() => NapiError::Budget(self.budget),
            errno => NapiError::Os(errno),
        })
    }
}

/// `struct epoll_params` of the kernel's `include/uapi/linux/eventpoll.h`.
#[cfg(not(miri))]
#[derive(Debug)]
#[repr(C)]
struct EpollParams {
    busy_poll_usecs: u32,
    busy_poll_budget: u16,
    prefer_busy_poll: u8,
    pad: u8,
}

#[cfg(not(miri))]
const EPIOCSPARAMS: Opcode = opcode::write::<EpollParams>(0x8a, 1);
