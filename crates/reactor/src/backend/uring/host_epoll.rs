//! Wakes another loop for an embedded ring. This is an epoll set over some of the watched
//! descriptors, and over the eventfd that the kernel writes to for the ring.
//!
//! A ring that defers its completions does not wake an epoll set that watches the ring's own
//! descriptor. So the kernel is asked to write to an eventfd. But if a write to another eventfd
//! wakes the poll that completes, the kernel must not write to a second eventfd immediately. It
//! waits until RCU's grace period is over, which takes milliseconds. As of Linux 6.18 it does so
//! only once (io_uring/eventfd.c does not clear `io_ev_fd::ops`).
//!
//! So the set itself contains eventfds, and all other descriptors that belong to no file system and
//! may use an eventfd internally. They are added edge-triggered and without payload, only to wake
//! the host. The ring reports their events.
//!
//! A descriptor that was closed or replaced without the reactor's knowledge may stay in the set and
//! cause spurious wake-ups of the host. Its entry carries no address.

#![allow(unsafe_code, reason = "fstat(2) and epoll_ctl(2) by numbers, which may be closed")]

use core::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::{
    event::{
        EventfdFlags,
        epoll::{self, CreateFlags, EventData, EventFlags},
        eventfd,
    },
    io::Errno,
    time::Timespec,
};

use crate::{
    api::interest::{ET, IN, OUT, PRI},
    backend::{batch::RawEvent, last_errno},
};

/// The number of events that one call reads from the set; more need another call.
const AT_ONCE: usize = 16;

pub(super) struct HostEpoll {
    set: OwnedFd,
    notifier: OwnedFd,
    /// Indexed by number: whether it is in the set.
    watched: Vec<bool>,
}

impl HostEpoll {
    /// Creates the set, with the eventfd in it that must be registered with the ring.
    pub(super) fn new() -> Result<Self, Errno> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        let notifier = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&set, &notifier, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)?;
        Ok(Self { set, notifier, watched: Vec::new() })
    }

    pub(super) fn set(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    pub(super) fn notifier(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }

    /// Watches a number if it is of a kind that must be in the set.
    ///
    /// # Errors
    /// The errors of epoll_ctl(2): `ELOOP` for a set that is nested too deep, `ENOMEM` or `ENOSPC`.
    pub(super) fn watch(&mut self, fd: i32) -> Result<(), Errno> {
        let Ok(index) = usize::try_from(fd) else { return Ok(()) };
        if self.watched.get(index).is_some_and(|watched| *watched) || !is_of_no_file_system(fd) {
            return Ok(());
        }
        if self.watched.len() <= index {
            self.watched.resize(index + 1, false);
        }
        // Independent of the present and future interest: the ring filters the conditions.
        match self.control(libc::EPOLL_CTL_ADD, fd, IN | PRI | OUT) {
            // It is already in the set, under a number that was closed and is in use again.
            Ok(()) | Err(Errno::EXIST) => self.watched[index] = true,
            // The ring reports these errors.
            Err(Errno::BADF | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    /// The number is no longer watched.
    pub(super) fn forget(&mut self, fd: i32) {
        let watched = usize::try_from(fd).ok().and_then(|index| self.watched.get_mut(index));
        if watched.is_some_and(core::mem::take) {
            // It may have been closed, so an error is ignored.
            let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0);
        }
    }

    fn control(&self, operation: i32, fd: i32, mask: u32) -> Result<(), Errno> {
        let mut event = libc::epoll_event { events: mask | ET, u64: 0 };
        // SAFETY: The set is open. The event lives through the call, which writes no memory of
        // ours.
        let outcome =
            unsafe { libc::epoll_ctl(self.set.as_raw_fd(), operation, fd, &raw mut event) };
        if outcome == 0 { Ok(()) } else { Err(last_errno()) }
    }

    /// Consumes the set's events. Later events make it readable again.
    pub(super) fn quiet(&self) -> Result<(), Errno> {
        let mut room = [const { MaybeUninit::<RawEvent>::uninit() }; AT_ONCE];
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            match epoll::wait(&self.set, &mut room, Some(&zero)) {
                Ok((told, _)) if told.len() == AT_ONCE => {}
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// Whether a descriptor is of the same kind as eventfds: not a socket, not a pipe, and in no file
/// system.
fn is_of_no_file_system(fd: i32) -> bool {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: The kernel writes one `struct stat`, and the memory has that size. It rejects a
    // closed number.
    let outcome = unsafe { libc::fstat(fd, status.as_mut_ptr()) };
    // SAFETY: If the call was successful, the kernel has written the status.
    outcome == 0 && unsafe { status.assume_init() }.st_mode & libc::S_IFMT == 0
}
