//! epoll(7): one epoll_ctl(2) per change, one epoll_pwait2(2) per turn.

#![allow(unsafe_code, reason = "epoll_ctl takes numbers here, which may be closed; epoll_wait(2) comes from libc")]

use core::{
    mem::MaybeUninit,
    sync::atomic::{AtomicU64, Ordering},
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    io::Errno,
    time::Timespec,
};

use crate::batch::RawEvent;

/// Whether the tests force the path for kernels before 5.11.
const FORCE_EPOLL_WAIT: bool = cfg!(windlass_force_epoll_wait);

pub(crate) struct Epoll {
    /// Never lent, duplicated or shown (rule 11), but to the outer set of an embedded reactor.
    set: OwnedFd,
    /// Tells this set from any other that the process has had.
    serial: u64,
    has_pwait2: bool,
}

impl Epoll {
    pub(crate) fn new() -> Result<Self, Errno> {
        static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        let has_pwait2 = !FORCE_EPOLL_WAIT && probe_pwait2(&set);
        Ok(Self { set, serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed), has_pwait2 })
    }

    pub(crate) fn watchable(&self) -> (BorrowedFd<'_>, u64) {
        (self.set.as_fd(), self.serial)
    }

    pub(crate) fn add(&mut self, fd: i32, mask: u32, address: u64) -> Result<(), Errno> {
        match self.control(fd, |set, fd| epoll::add(set, fd, data(address), flags(mask))) {
            // The number is free in our table, so the entry is a ghost's, whose file has come back under the number
            // (rule 7). DEL names exactly it: (file, number).
            Err(Errno::EXIST) => {
                self.delete(fd)?;
                self.control(fd, |set, fd| epoll::add(set, fd, data(address), flags(mask)))
            }
            done => done,
        }
    }

    pub(crate) fn modify(&mut self, fd: i32, mask: u32, address: u64) -> Result<(), Errno> {
        self.control(fd, |set, fd| epoll::modify(set, fd, data(address), flags(mask)))
    }

    pub(crate) fn delete(&mut self, fd: i32) -> Result<(), Errno> {
        self.control(fd, |set, fd| epoll::delete(set, fd))
    }

    fn control(&self, fd: i32, call: impl FnOnce(&OwnedFd, BorrowedFd<'_>) -> Result<(), Errno>) -> Result<(), Errno> {
        if fd < 0 {
            return Err(Errno::BADF);
        }
        // SAFETY: not -1. That the number is open is not known here, and the kernel does not need it for memory
        // safety: epoll_ctl(2) answers EBADF for one that is not, and the borrow ends with the call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        call(&self.set, fd)
    }

    #[inline]
    pub(crate) fn wait(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        if self.has_pwait2 {
            let (events, _) = epoll::wait(&self.set, room, timeout)?;
            Ok(events.len())
        } else {
            wait_in_milliseconds(&self.set, room, timeout)
        }
    }
}

fn data(address: u64) -> EventData {
    EventData::new_u64(address)
}

fn flags(mask: u32) -> EventFlags {
    EventFlags::from_bits_retain(mask)
}

/// Whether the kernel has epoll_pwait2(2): since Linux 5.11, and where no seccomp filter forbids it.
fn probe_pwait2(set: &OwnedFd) -> bool {
    let mut room = [MaybeUninit::<RawEvent>::uninit()];
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(epoll::wait(set, &mut room, Some(&zero)), Err(Errno::NOSYS | Errno::PERM))
}

/// epoll_wait(2), for kernels before 5.11: the timeout is rounded up to whole milliseconds.
#[cold]
fn wait_in_milliseconds(
    set: &OwnedFd,
    room: &mut [MaybeUninit<RawEvent>],
    timeout: Option<&Timespec>,
) -> Result<usize, Errno> {
    let milliseconds = timeout.map_or(-1, |time| {
        let whole = time.tv_sec.saturating_mul(1000);
        i32::try_from(whole.saturating_add((time.tv_nsec + 999_999) / 1_000_000)).unwrap_or(i32::MAX)
    });
    let length = i32::try_from(room.len()).unwrap_or(i32::MAX);
    let fd = std::os::fd::AsRawFd::as_raw_fd(set);
    // SAFETY: the set is open, and the kernel writes at most `length` events to the room, which is that large.
    // rustix's `Event` has the layout of `struct epoll_event`.
    let count = unsafe { libc::epoll_wait(fd, room.as_mut_ptr().cast(), length, milliseconds) };
    match usize::try_from(count) {
        Ok(count) => Ok(count),
        Err(_) => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

const _: () = {
    assert!(size_of::<RawEvent>() == size_of::<libc::epoll_event>());
    assert!(core::mem::offset_of!(RawEvent, flags) == core::mem::offset_of!(libc::epoll_event, events));
    assert!(core::mem::offset_of!(RawEvent, data) == core::mem::offset_of!(libc::epoll_event, u64));
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_round_up_and_do_not_overflow() {
        let set = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let mut room = [MaybeUninit::uninit(); 1];
        let start = std::time::Instant::now();
        let time = Timespec { tv_sec: 0, tv_nsec: 1 };
        assert_eq!(wait_in_milliseconds(&set, &mut room, Some(&time)), Ok(0));
        assert!(start.elapsed() >= std::time::Duration::from_millis(1), "one nanosecond waits a whole millisecond");
    }

    #[test]
    fn each_set_has_a_serial_of_its_own() {
        let (a, b) = (Epoll::new().unwrap(), Epoll::new().unwrap());
        assert_ne!(a.serial, b.serial);
    }
}
