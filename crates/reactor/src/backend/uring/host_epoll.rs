//! How another loop hears of an embedded ring: an epoll set over the eventfd that the kernel writes
//! to for the ring, and over some of the watched descriptors.
//!
//! A ring that defers its completions does not wake an epoll set that watches the ring's own
//! descriptor, so the kernel is asked to write to an eventfd. But where the poll that completes is
//! woken by a write to another eventfd, the kernel must not write to a second one then and there:
//! it waits until RCU's grace period is over, which takes milliseconds, and as of Linux 6.18 it
//! does so only once (io_uring/eventfd.c does not clear `io_ev_fd::ops`). So eventfds, and whatever
//! else has no place in a file system and may be one inside, are in the set themselves:
//! edge-triggered, with no payload, and only to wake the host. What they mean the ring tells.
//!
//! What is closed or replaced behind the reactor's back may stay in the set and wake the host for
//! nothing. It carries no address.

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
    backend::last_errno,
    batch::RawEvent,
    interest::{ET, IN, OUT, PRI},
};

/// The eventfds and sets of one turn that are told of at once; more take another call.
const AT_ONCE: usize = 16;

pub(super) struct HostEpoll {
    set: OwnedFd,
    notifier: OwnedFd,
    /// By number: it is in the set.
    watched: Vec<bool>,
}

impl HostEpoll {
    /// The set, and in it the eventfd that is to be registered with the ring.
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

    /// Watches a number, if it is of those that must be in the set.
    ///
    /// # Errors
    /// What epoll_ctl(2) says: `ELOOP` for a set that is nested too deep, `ENOMEM` or `ENOSPC`.
    pub(super) fn watch(&mut self, fd: i32) -> Result<(), Errno> {
        let Ok(index) = usize::try_from(fd) else { return Ok(()) };
        if self.watched.get(index).is_some_and(|watched| *watched) || !is_of_no_file_system(fd) {
            return Ok(());
        }
        if self.watched.len() <= index {
            self.watched.resize(index + 1, false);
        }
        // Whatever the interest is, and will be: what was asked for the ring knows.
        match self.control(libc::EPOLL_CTL_ADD, fd, IN | PRI | OUT) {
            // It is in there already, under a number that was closed and has come back.
            Ok(()) | Err(Errno::EXIST) => self.watched[index] = true,
            // The ring tells.
            Err(Errno::BADF | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    /// The number is not watched any more.
    pub(super) fn forget(&mut self, fd: i32) {
        let watched = usize::try_from(fd).ok().and_then(|index| self.watched.get_mut(index));
        if watched.is_some_and(core::mem::take) {
            // It may have been closed.
            let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0);
        }
    }

    fn control(&self, operation: i32, fd: i32, mask: u32) -> Result<(), Errno> {
        let mut event = libc::epoll_event { events: mask | ET, u64: 0 };
        // SAFETY: the set is open, and the event lives through the call, which writes no memory of
        // ours.
        let outcome =
            unsafe { libc::epoll_ctl(self.set.as_raw_fd(), operation, fd, &raw mut event) };
        if outcome == 0 { Ok(()) } else { Err(last_errno()) }
    }

    /// Takes what the set has told. What comes later makes it readable again.
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

/// Whether a descriptor is of the kind that eventfds are: neither a socket nor a pipe, nor of any
/// file system.
fn is_of_no_file_system(fd: i32) -> bool {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel writes one `struct stat` to memory of that size, or refuses a closed
    // number.
    let outcome = unsafe { libc::fstat(fd, status.as_mut_ptr()) };
    // SAFETY: where the call was successful, the status is written.
    outcome == 0 && unsafe { status.assume_init() }.st_mode & libc::S_IFMT == 0
}
