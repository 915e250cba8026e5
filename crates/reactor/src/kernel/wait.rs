//! One wait for events, into the batch.

#![allow(unsafe_code, reason = "adopts the events that a wait has written")]

use rustix::{io::Errno, time::Timespec};

use crate::{
    backend::{WaitResult, batch::EventPlace},
    kernel::Kernel,
};

impl Kernel {
    /// The wait of a short turn, into the empty batch. [`open_batch`](Self::open_batch) opens
    /// it with the number of events that this returns.
    #[inline(always)]
    pub(crate) fn wait_short(&mut self, timeout: Option<&Timespec>) -> Result<usize, Errno> {
        match self.backend.usual() {
            Some(epoll) => {
                // SAFETY: the set was made with the capacity of this batch. In a child it is zero.
                let room = unsafe { self.batch.front(epoll.room_unless_child()) };
                epoll.wait_unless_child(room, timeout)
            }
            None => self.wait_on_other(timeout).into(),
        }
    }

    /// Opens the batch after [`wait_short`](Self::wait_short). Returns the place of the first
    /// event.
    ///
    /// # Safety
    /// The batch was empty and closed before the wait, which has written `count` events, at least
    /// one.
    #[inline(always)]
    pub(crate) unsafe fn open_batch(&mut self, count: usize) -> EventPlace {
        // SAFETY: the caller's promise.
        unsafe { self.batch.open_with(count) }
    }

    /// The wait of a short turn on other backends. A function of the kernel, so that the caller
    /// does not compute the address of the backend on epoll too.
    #[inline(never)]
    fn wait_on_other(&mut self, timeout: Option<&Timespec>) -> WaitResult {
        self.backend.wait_packed(self.batch.whole_room(), timeout)
    }

    /// One wait that does not block, into the empty batch.
    pub(crate) fn fetch_at_once(&mut self) -> Result<usize, Errno> {
        self.batch.clear();
        let count = self.wait_short(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        // SAFETY: the wait has written this many events to the front of the room.
        unsafe { self.batch.filled(count) };
        Ok(count)
    }

    /// One wait, into the rest of the batch.
    pub(crate) fn wait_once(&mut self, timeout: Option<&Timespec>) -> Result<usize, Errno> {
        let room = self.batch.room();
        if room.is_empty() {
            // Synthetic events have filled the batch. The kernel's events wait for the next turn.
            return Ok(0);
        }
        let count = self.backend.wait(room, timeout)?;
        // SAFETY: the wait has written this many events to the front of the room.
        unsafe { self.batch.filled(count) };
        Ok(count)
    }
}
