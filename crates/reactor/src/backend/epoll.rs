//! epoll(7): one epoll_ctl(2) per change, and per turn the cheapest wait that keeps the contract.
//!
//! A wait without a limit, and one that must not block, is epoll_wait(2). Only a limit between
//! these needs the nanoseconds of epoll_pwait2(2), which costs more even if an event is
//! ready: the kernel reads its clock twice (docs/technical.md, "Prices of system calls").

#![allow(
    unsafe_code,
    reason = "epoll_ctl(2) of libc by numbers, which may be closed, and epoll_wait(2)"
)]

use core::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::{
    event::epoll::{self, CreateFlags},
    io::Errno,
    time::Timespec,
};

use super::{
    epoll_wait::epoll_wait,
    fork::{self, ForkGuard},
    last_errno,
    napi::{NapiError, NapiPoll},
    next_serial, with_high_number,
};
use crate::backend::batch::RawEvent;

/// Set if the tests force the path for kernels before 5.11.
const FORCE_EPOLL_WAIT: bool = cfg!(windlass_force_epoll_wait);

pub(crate) struct Epoll {
    /// Never passed on, duplicated or exposed (rule 11), except to the outer set of an embedded
    /// reactor.
    set: OwnedFd,
    /// Distinguishes this set from all others of the process.
    serial: u64,
    has_pwait2: bool,
    /// The set for a rebuild. It is created as soon as a rebuild may become necessary.
    spare: Option<OwnedFd>,
    /// Also of the sets that follow.
    napi: Option<NapiPoll>,
    fork: ForkGuard,
}

impl Epoll {
    /// `room` is the size of the batch that waits write to, not zero.
    pub(crate) fn new(room: u32) -> Result<Self, Errno> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        let has_pwait2 = !FORCE_EPOLL_WAIT && probe_pwait2(&set);
        let fork = ForkGuard::new(room)?;
        Ok(Self { set, serial: next_serial(), has_pwait2, spare: None, napi: None, fork })
    }

    pub(crate) fn set_napi(&mut self, napi: NapiPoll) -> Result<(), NapiError> {
        napi.set_on_epoll(self.set.as_fd())?;
        self.napi = Some(napi);
        Ok(())
    }

    /// A set for a rebuild.
    fn new_set(&self) -> Result<OwnedFd, Errno> {
        let set = with_high_number(epoll::create(CreateFlags::CLOEXEC)?);
        if let Some(napi) = self.napi {
            // It was accepted before. If the process has lost the privilege since then, the set
            // serves without it.
            let _ = napi.set_on_epoll(set.as_fd());
        }
        Ok(set)
    }

    pub(crate) fn watchable(&self) -> (BorrowedFd<'_>, u64) {
        (self.set.as_fd(), self.serial)
    }

    pub(crate) fn reserve(&mut self) {
        if self.spare.is_none() {
            self.spare = self.new_set().ok();
        }
    }

    pub(crate) fn replace(&mut self) -> Result<(), Errno> {
        self.set = match self.spare.take() {
            Some(spare) => spare,
            None => self.new_set()?,
        };
        self.serial = next_serial();
        Ok(())
    }

    /// The set is shared with the parent. Entries added in a child would carry addresses that mean
    /// nothing in the parent (rule 11).
    pub(crate) fn check_owner(&self) -> Result<(), Errno> {
        fork::check(&self.fork)
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

    pub(crate) fn wait(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        // The parent's events carry addresses that have another meaning here.
        fork::check(&self.fork)?;
        self.wait_unchecked(room, timeout)
    }

    /// The size of the batch; zero in a child of fork(2).
    #[inline(always)]
    pub(crate) fn room_unless_child(&self) -> usize {
        self.fork.number_or_zero() as usize
    }

    /// Like `wait`, for a room of [`room_unless_child`](Self::room_unless_child): in a child the
    /// kernel returns `EINVAL`, before it looks at the set (epoll_wait(2)).
    ///
    /// The kind of limit is a constant for the callers, so that they do not test it.
    #[inline(always)]
    pub(crate) fn wait_unless_child(
        &mut self,
        room: &mut [RawEvent],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        debug_assert_eq!(room.len(), self.room_unless_child(), "a child would wait");
        let room = core::ptr::from_mut(room) as *mut [MaybeUninit<RawEvent>];
        // SAFETY: the same memory, to which `wait_unchecked` writes whole events alone.
        self.wait_unchecked(unsafe { &mut *room }, timeout)
    }

    #[inline(always)]
    fn wait_unchecked(
        &self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        match timeout {
            None => epoll_wait(self.set.as_fd(), room, -1),
            Some(Timespec { tv_sec: 0, tv_nsec: 0 }) => epoll_wait(self.set.as_fd(), room, 0),
            Some(time) => self.wait_exactly(room, time),
        }
    }

    /// A wait that may block, with a limit.
    #[inline(never)]
    fn wait_exactly(
        &self,
        room: &mut [MaybeUninit<RawEvent>],
        time: &Timespec,
    ) -> Result<usize, Errno> {
        if !self.has_pwait2 {
            return epoll_wait(self.set.as_fd(), room, milliseconds(time));
        }
        let (events, _) = epoll::wait(&self.set, room, Some(time))?;
        Ok(events.len())
    }
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

/// A limit for kernels before 5.11: rounded up to whole milliseconds.
fn milliseconds(time: &Timespec) -> i32 {
    let whole = time.tv_sec.saturating_mul(1000);
    i32::try_from(whole.saturating_add((time.tv_nsec + 999_999) / 1_000_000)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_round_up_and_do_not_overflow() {
        for (tv_sec, tv_nsec, expected) in [
            (0, 1, 1),
            (0, 1_000_000, 1),
            (0, 1_000_001, 2),
            (2, 0, 2000),
            (i64::MAX, 999_999_999, i32::MAX),
        ] {
            assert_eq!(milliseconds(&Timespec { tv_sec, tv_nsec }), expected);
        }
    }

    #[test]
    fn each_set_has_a_serial_of_its_own() {
        let (a, b) = (Epoll::new(1).unwrap(), Epoll::new(1).unwrap());
        assert_ne!(a.serial, b.serial);
    }
}
