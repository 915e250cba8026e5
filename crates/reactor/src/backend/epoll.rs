//! epoll(7): one epoll_ctl(2) per change, one epoll_pwait2(2) per turn.

#![allow(
    unsafe_code,
    reason = "epoll_ctl(2) by numbers, which may be closed, and epoll_wait(2), both from libc"
)]

use core::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::{
    event::epoll::{self, CreateFlags},
    io::Errno,
    time::Timespec,
};

use super::{fork::ForkGuard, last_errno, next_serial};
use crate::backend::batch::RawEvent;

/// Set if the tests force the path for kernels before 5.11.
const FORCE_EPOLL_WAIT: bool = cfg!(windlass_force_epoll_wait);

/// The lowest number that [`create_high`] tries.
const HIGH_NUMBER: i32 = 512;

pub(crate) struct Epoll {
    /// Never lent, duplicated or exposed (rule 11), except to the outer set of an embedded reactor.
    set: OwnedFd,
    /// Distinguishes this set from all others of the process.
    serial: u64,
    has_pwait2: bool,
    /// The set for a rebuild. It is created as soon as a rebuild may become necessary.
    spare: Option<OwnedFd>,
    fork: ForkGuard,
}

impl Epoll {
    /// `room` is the size of the batch that waits write to, not zero.
    pub(crate) fn new(room: u32) -> Result<Self, Errno> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        let has_pwait2 = !FORCE_EPOLL_WAIT && probe_pwait2(&set);
        Ok(Self {
            set,
            serial: next_serial(),
            has_pwait2,
            spare: None,
            fork: ForkGuard::new(room)?,
        })
    }

    /// Whether this kernel has epoll_pwait2(2).
    pub(crate) fn has_pwait2(&self) -> bool {
        self.has_pwait2
    }

    pub(crate) fn watchable(&self) -> (BorrowedFd<'_>, u64) {
        (self.set.as_fd(), self.serial)
    }

    pub(crate) fn reserve(&mut self) {
        if self.spare.is_none() {
            self.spare = create_high().ok();
        }
    }

    pub(crate) fn replace(&mut self) -> Result<(), Errno> {
        self.set = match self.spare.take() {
            Some(spare) => spare,
            None => create_high()?,
        };
        self.serial = next_serial();
        Ok(())
    }

    /// The set is shared with the parent. Entries added in a child would carry addresses that mean
    /// nothing in the parent (rule 11).
    pub(crate) fn check_owner(&self) -> Result<(), Errno> {
        self.fork.check()
    }

    pub(crate) fn fork_guard(&self) -> Option<ForkGuard> {
        Some(self.fork.clone())
    }

    pub(crate) fn add(&mut self, fd: i32, mask: u32, address: u64) -> Result<(), Errno> {
        self.check_owner()?;
        match self.control(libc::EPOLL_CTL_ADD, fd, mask, address) {
            // The number is free in our table, so the entry is a stale one whose file has returned
            // under the same number (rule 7). DEL removes exactly this entry, because the key is
            // (file, number).
            Err(Errno::EXIST) => {
                self.delete(fd)?;
                self.control(libc::EPOLL_CTL_ADD, fd, mask, address)
            }
            done => done,
        }
    }

    pub(crate) fn modify(&mut self, fd: i32, mask: u32, address: u64) -> Result<(), Errno> {
        self.check_owner()?;
        self.control(libc::EPOLL_CTL_MOD, fd, mask, address)
    }

    /// In a child the entry stays, because it belongs to the parent. The child never gets an event
    /// of it, since its waits fail.
    pub(crate) fn delete(&mut self, fd: i32) -> Result<(), Errno> {
        if self.fork.is_child() {
            return Ok(());
        }
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&self, operation: i32, fd: i32, mask: u32, address: u64) -> Result<(), Errno> {
        control(self.set.as_fd(), operation, fd, mask, address)
    }

    #[inline(always)]
    pub(crate) fn wait(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        // The parent's events carry addresses that have another meaning here.
        self.fork.check()?;
        let (events, _) = epoll::wait(&self.set, room, timeout)?;
        Ok(events.len())
    }

    /// The size of the batch; zero in a child of fork(2).
    #[inline(always)]
    pub(crate) fn room_unless_child(&self) -> usize {
        self.fork.number_or_zero() as usize
    }

    /// Like `wait`, for a room of [`room_unless_child`](Self::room_unless_child): in a child the
    /// kernel returns `EINVAL`, before it looks at the set (epoll_wait(2)).
    #[inline(always)]
    pub(crate) fn wait_unless_child(
        &mut self,
        room: &mut [RawEvent],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        // For a slice that is initialised, this returns the number without a check of its length.
        epoll::wait(&self.set, room, timeout)
    }

    /// Like `wait`, without epoll_pwait2(2).
    pub(crate) fn wait_in_milliseconds(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        self.fork.check()?;
        wait_in_milliseconds(&self.set, room, timeout)
    }
}

/// Creates a set with a high number, if possible. This happens when user code reuses descriptor
/// numbers: it has freed the low ones and may take them again by dup2(2).
fn create_high() -> Result<OwnedFd, Errno> {
    let set = epoll::create(CreateFlags::CLOEXEC)?;
    Ok(rustix::io::fcntl_dupfd_cloexec(&set, HIGH_NUMBER).unwrap_or(set))
}

/// Removes a number from an epoll set, if it is present.
pub(crate) fn forget(set: BorrowedFd<'_>, fd: i32) {
    // It may be absent, so an error is ignored.
    let _ = control(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
}

/// epoll_ctl(2). It takes a number, because the descriptor may have been closed without our
/// knowledge. The kernel then returns `EBADF`.
fn control(
    set: BorrowedFd<'_>,
    operation: i32,
    fd: i32,
    mask: u32,
    address: u64,
) -> Result<(), Errno> {
    let mut event = libc::epoll_event { events: mask, u64: address };
    // SAFETY: The set is open. The event lives through the call, and the call writes no memory of
    // ours.
    let outcome = unsafe { libc::epoll_ctl(set.as_raw_fd(), operation, fd, &raw mut event) };
    if outcome == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Whether the kernel has epoll_pwait2(2): from Linux 5.11 on, unless a seccomp filter forbids it.
fn probe_pwait2(set: &OwnedFd) -> bool {
    let mut room = [MaybeUninit::<RawEvent>::uninit()];
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(epoll::wait(set, &mut room, Some(&zero)), Err(Errno::NOSYS | Errno::PERM))
}

/// epoll_wait(2), for kernels before 5.11: the timeout is rounded up to whole milliseconds.
fn wait_in_milliseconds(
    set: &OwnedFd,
    room: &mut [MaybeUninit<RawEvent>],
    timeout: Option<&Timespec>,
) -> Result<usize, Errno> {
    let milliseconds = timeout.map_or(-1, |time| {
        let whole = time.tv_sec.saturating_mul(1000);
        i32::try_from(whole.saturating_add((time.tv_nsec + 999_999) / 1_000_000))
            .unwrap_or(i32::MAX)
    });
    let length = i32::try_from(room.len()).unwrap_or(i32::MAX);
    // SAFETY: The set is open. The kernel writes at most `length` events to `room`, which has that
    // size. rustix's `Event` has the layout of `struct epoll_event`.
    let count = unsafe {
        libc::epoll_wait(set.as_raw_fd(), room.as_mut_ptr().cast(), length, milliseconds)
    };
    usize::try_from(count).map_err(|_| last_errno())
}

const _: () = {
    assert!(size_of::<RawEvent>() == size_of::<libc::epoll_event>());
    assert!(
        core::mem::offset_of!(RawEvent, flags) == core::mem::offset_of!(libc::epoll_event, events)
    );
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
        assert!(
            start.elapsed() >= std::time::Duration::from_millis(1),
            "one nanosecond waits a whole millisecond"
        );
    }

    #[test]
    fn each_set_has_a_serial_of_its_own() {
        let (a, b) = (Epoll::new(1).unwrap(), Epoll::new(1).unwrap());
        assert_ne!(a.serial, b.serial);
    }
}
