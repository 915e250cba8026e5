//! A pollable flag whose operations no peer can block: a timerfd(2), set and cleared.
//!
//! Processes that share a counter share the open file descriptions of its sides, including
//! `O_NONBLOCK`. Any of them can clear that flag at any moment. A write to an eventfd then waits if
//! the peer has filled it. No flag of the call prevents that: pwritev2(2) rejects `RWF_NOWAIT` on
//! an eventfd. Calling poll(2) first leaves the peer the time between the two calls. A timerfd is
//! set and cleared by ioctl(2) and timerfd_settime(2). Both ignore `O_NONBLOCK` and only change the
//! timer under its spin lock (fs/timerfd.c). The timerfd is never read here.

#![allow(unsafe_code, reason = "an ioctl(2) that rustix does not have by name")]

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::{
    event::{PollFd, PollFlags, poll},
    ioctl::{Opcode, Setter, ioctl, opcode},
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_gettime, timerfd_settime,
    },
};

use crate::Errno;
#[cfg(test)]
use crate::sys::calls::note;

#[cfg(not(test))]
const fn note(_: i32) {}

/// `TFD_IOC_SET_TICKS` of the kernel's `include/uapi/linux/timerfd.h`.
const SET_TICKS: Opcode = opcode::write::<u64>(b'T', 0);

const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// poll(2) reports it as readable while it is set.
#[derive(Debug)]
pub(super) struct Flag(OwnedFd);

impl Flag {
    pub(super) fn new() -> Result<Self, Errno> {
        timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map(Self)
    }

    /// Uses a timerfd from elsewhere, with any clock and any flags.
    ///
    /// # Errors
    /// `EINVAL` if it is not a timerfd. The error returns the descriptor.
    pub(super) fn from_fd(fd: OwnedFd) -> Result<Self, (Errno, OwnedFd)> {
        match timerfd_gettime(&fd) {
            Ok(_) => Ok(Self(fd)),
            Err(errno) => Err((errno, fd)),
        }
    }

    /// Makes it readable. This is always an edge, even if it is readable already.
    pub(super) fn set(&self) {
        note(self.0.as_raw_fd());
        if !self.set_at_once() {
            self.set_by_time();
        }
    }

    /// False if the kernel lacks the call (it is built without `CONFIG_CHECKPOINT_RESTORE`), or a
    /// sandbox forbids it.
    fn set_at_once(&self) -> bool {
        // SAFETY: the opcode is that of the call, which takes a pointer to a `u64`.
        let ticks = unsafe { Setter::<SET_TICKS, u64>::new(1) };
        // SAFETY: the call reads the `u64` and writes no memory of this process. A descriptor that
        // is not a timerfd rejects the call.
        unsafe { ioctl(&self.0, ticks) }.is_ok()
    }

    /// Sets the timer to expire at once. The interrupt comes a little later.
    fn set_by_time(&self) {
        self.arm(Timespec { tv_sec: 0, tv_nsec: 1 });
    }

    /// Whether poll(2) reports it as readable.
    pub(super) fn is_set(&self) -> bool {
        note(self.0.as_raw_fd());
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&ZERO)) == Ok(1)
    }

    /// Makes it unreadable.
    pub(super) fn clear(&self) {
        note(self.0.as_raw_fd());
        self.arm(ZERO);
    }

    fn arm(&self, at: Timespec) {
        let once = Itimerspec { it_interval: ZERO, it_value: at };
        // It cannot fail: this is a timerfd, and the time is valid.
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &once);
    }
}

impl AsFd for Flag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Flag> for OwnedFd {
    fn from(flag: Flag) -> Self {
        flag.0
    }
}

#[cfg(test)]
mod tests {
    use rustix::{buffer::spare_capacity, event::epoll};

    use super::*;

    fn is_readable(flag: &Flag, time: Timespec) -> bool {
        poll(&mut [PollFd::new(flag, PollFlags::IN)], Some(&time)) == Ok(1)
    }

    /// Both ways to set it, including the one for kernels without the better one.
    const WAYS: [fn(&Flag); 2] = [Flag::set, Flag::set_by_time];

    const LONG: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    fn it_is_readable_while_it_is_set() {
        for set in WAYS {
            let flag = Flag::new().unwrap();
            for _ in 0..100 {
                assert!(!is_readable(&flag, ZERO));
                set(&flag);
                assert!(is_readable(&flag, LONG));
                flag.clear();
            }
            set(&flag);
            flag.clear();
            assert!(!is_readable(&flag, ZERO), "also where it was about to be");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    fn to_set_it_is_an_edge_always() {
        for set in WAYS {
            let flag = Flag::new().unwrap();
            let watch = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            epoll::add(
                &watch,
                &flag,
                epoll::EventData::new_u64(0),
                epoll::EventFlags::IN | epoll::EventFlags::ET,
            )
            .unwrap();
            for _ in 0..100 {
                set(&flag);
                let mut events: Vec<epoll::Event> = Vec::with_capacity(1);
                epoll::wait(&watch, spare_capacity(&mut events), Some(&LONG)).unwrap();
                assert_eq!(events.len(), 1);
            }
        }
    }
}
