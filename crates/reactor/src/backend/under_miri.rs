//! Replaces `epoll.rs` under Miri, so that the rest of the crate runs there unchanged.
//!
//! Miri's epoll supports edge-triggered entries for read, write, read-hangup, error and hang-up. It
//! has neither `epoll_pwait2` nor one-shots. So every entry is made edge-triggered. A `MOD` before
//! each wait makes the level-triggered ones fire again, and one-shots that have fired are disarmed
//! here.

#![allow(
    unsafe_code,
    reason = "epoll_ctl takes numbers here, which may be closed; epoll_wait(2) comes from libc"
)]

use core::{
    mem::MaybeUninit,
    sync::atomic::{AtomicU64, Ordering},
};
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    io::Errno,
    time::Timespec,
};

use crate::backend::{
    batch::RawEvent,
    napi::{NapiError, NapiPoll},
};

const KNOWN: EventFlags = EventFlags::IN
    .union(EventFlags::OUT)
    .union(EventFlags::RDHUP)
    .union(EventFlags::ERR)
    .union(EventFlags::HUP);

pub(crate) struct Epoll {
    set: OwnedFd,
    serial: u64,
    /// The requested mask and the address, by number.
    entries: BTreeMap<i32, (EventFlags, u64)>,
    room: u32,
}

impl Epoll {
    pub(crate) fn new(room: u32) -> Result<Self, Errno> {
        static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self {
            set,
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
            entries: BTreeMap::new(),
            room,
        })
    }

    /// Miri has no network cards.
    pub(crate) fn set_napi(&mut self, _: NapiPoll) -> Result<(), NapiError> {
        Err(NapiError::Missing(Errno::NOTTY))
    }

    pub(crate) fn room_unless_child(&self) -> usize {
        self.room as usize
    }

    pub(crate) fn wait_unless_child(
        &mut self,
        room: &mut [RawEvent],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        let whole = core::ptr::from_mut(room) as *mut [MaybeUninit<RawEvent>];
        // SAFETY: only whole events are written to it.
        self.wait(unsafe { &mut *whole }, timeout)
    }

    pub(crate) fn watchable(&self) -> (BorrowedFd<'_>, u64) {
        (self.set.as_fd(), self.serial)
    }

    /// Miri has no fork(2).
    pub(crate) fn check_owner(&self) -> Result<(), Errno> {
        Ok(())
    }

    pub(crate) fn fork_guard(&self) -> Option<super::fork::ForkGuard> {
        None
    }

    pub(crate) fn reserve(&mut self) {}

    pub(crate) fn replace(&mut self) -> Result<(), Errno> {
        *self = Self::new(self.room)?;
        Ok(())
    }

    pub(crate) fn add(&mut self, fd: i32, mask: u32, address: u64) -> Result<(), Errno> {
        let mask = EventFlags::from_bits_retain(mask);
        epoll::add(
            &self.set,
            borrow(fd),
            EventData::new_u64(address),
            mask & KNOWN | EventFlags::ET,
        )?;
        self.entries.insert(fd, (mask, address));
        Ok(())
    }

    pub(crate) fn modify(&mut self, fd: i32, mask: u32, address: u64) -> Result<(), Errno> {
        let mask = EventFlags::from_bits_retain(mask);
        self.set_mask(fd, mask, address)?;
        self.entries.insert(fd, (mask, address));
        Ok(())
    }

    pub(crate) fn delete(&mut self, fd: i32) -> Result<(), Errno> {
        self.entries.remove(&fd);
        epoll::delete(&self.set, borrow(fd))
    }

    fn set_mask(&self, fd: i32, mask: EventFlags, address: u64) -> Result<(), Errno> {
        epoll::modify(
            &self.set,
            borrow(fd),
            EventData::new_u64(address),
            mask & KNOWN | EventFlags::ET,
        )
    }

    pub(crate) fn wait(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        for (fd, (mask, address)) in &self.entries {
            if !mask.intersects(EventFlags::ET | EventFlags::ONESHOT) {
                self.set_mask(*fd, *mask, *address)?;
            }
        }
        let milliseconds = timeout.map_or(-1, |time| {
            let whole = time.tv_sec.saturating_mul(1000);
            i32::try_from(whole.saturating_add((time.tv_nsec + 999_999) / 1_000_000))
                .unwrap_or(i32::MAX)
        });
        let length = i32::try_from(room.len()).unwrap_or(i32::MAX);
        // SAFETY: The set is open. At most `length` events are written to `room`, which has that
        // size.
        let count = unsafe {
            libc::epoll_wait(self.set.as_raw_fd(), room.as_mut_ptr().cast(), length, milliseconds)
        };
        let count = usize::try_from(count).map_err(|_| Errno::INTR)?;
        for event in &room[..count] {
            // SAFETY: The call has written this event.
            let address = unsafe { event.assume_init_ref() }.data.u64();
            for (fd, (mask, own)) in &self.entries {
                if *own == address && mask.contains(EventFlags::ONESHOT) {
                    self.set_mask(*fd, EventFlags::empty(), address)?;
                }
            }
        }
        Ok(count)
    }
}

/// Removes a number from an epoll set, if it is present.
pub(crate) fn forget(set: BorrowedFd<'_>, fd: i32) {
    let _ = epoll::delete(set, borrow(fd));
}

fn borrow(fd: i32) -> BorrowedFd<'static> {
    assert!(fd >= 0, "the tests under Miri close nothing behind the reactor's back");
    // SAFETY: The number is not -1. The borrow is used for one call, which checks the number.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
