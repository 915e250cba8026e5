//! The two queues of an io_uring(7) and the one system call that serves them.
//!
//! # The protocol of this module
//!
//! 1. The thread that made the ring is the only one that touches it, and the process that made it:
//!    a child of fork(2) shares the queues' memory with its parent, so the caller asks the
//!    [`ForkGuard`](crate::backend::fork::ForkGuard) first.
//! 2. Memory that a pushed entry names stays valid until the entry has completed for good.
//!    [`Ring::push`] is `unsafe` for that reason; [`poll`](Ring::poll) and [`cancel`](Ring::cancel)
//!    name none.
//! 3. An entry that finds no room waits in `spill`, behind which all later ones wait too: the
//!    kernel gets them in the order in which they were pushed.
//! 4. The index under which the ring is registered belongs to this thread and is given back before
//!    the ring is closed: it keeps the ring alive.

#![allow(
    unsafe_code,
    reason = "io_uring_enter(2) and io_uring_register(2) by their numbers, and entries that name memory"
)]

use core::{ffi::c_void, ptr};
use std::{
    collections::VecDeque,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
};

use io_uring::{
    IoUring,
    cqueue::{self, CompletionStatus},
    opcode, squeue, types,
};
use rustix::{
    io::Errno,
    io_uring::{
        IoringEnterFlags as Enter, io_uring_enter, io_uring_enter_arg,
        io_uring_getevents_arg as GetEvents, io_uring_ptr,
    },
    time::Timespec,
};

use super::features::{RingError, RingFeatures, RingSettings, note_close, set_up};
use crate::backend::last_errno;

/// linux/io_uring.h.
const IORING_REGISTER_RING_FDS: u32 = 20;
const IORING_UNREGISTER_RING_FDS: u32 = 21;

/// How long a wait lasts at most while the kernel does not take what was submitted, for want of
/// memory say. Then it is offered again.
const STALLED: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// `struct io_uring_rsrc_update`, as `IORING_REGISTER_RING_FDS` takes it.
#[repr(C)]
struct RingUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

const _: () = {
    assert!(size_of::<RingUpdate>() == 16);
    // `struct __kernel_timespec`.
    assert!(size_of::<Timespec>() == 16);
};

/// One entry of the queue of completions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) user_data: u64,
    /// What the request came to: a count, a set of conditions, or an error number below zero.
    pub(crate) result: i32,
    pub(crate) flags: u32,
}

impl Completion {
    /// Whether the request will complete again.
    #[inline(always)]
    pub(crate) fn has_more(self) -> bool {
        cqueue::more(self.flags)
    }
}

pub(crate) struct Ring {
    ring: IoUring,
    features: RingFeatures,
    /// Whether the queue of completions is empty, at the price of two loads. It looks at the ring's
    /// memory, so it is not used after the ring.
    arrived: CompletionStatus,
    /// What names the ring in io_uring_enter(2): an index, or its descriptor.
    name: RawFd,
    /// `IORING_ENTER_REGISTERED_RING`, where the name is an index.
    name_flag: Enter,
    /// Entries in the queue that the kernel has not taken: it takes some in a call of ours and at
    /// no other time.
    untaken: u32,
    /// Entries that found no room in the queue (protocol 3).
    spill: VecDeque<squeue::Entry>,
    /// See [`RingSettings::stalls`].
    stalls: u32,
}

impl Ring {
    pub(crate) fn new(settings: RingSettings) -> Result<Self, RingError> {
        let (mut ring, features) = set_up(settings)?;
        let name = ring.as_raw_fd();
        // SAFETY: it is kept beside the ring and used by methods of what has both.
        let arrived = unsafe { ring.completion().status() };
        let mut ring = Self {
            ring,
            features,
            arrived,
            name,
            name_flag: Enter::empty(),
            untaken: 0,
            spill: VecDeque::new(),
            stalls: settings.stalls,
        };
        if features.has(RingFeatures::REGISTERED) {
            ring.register();
        }
        // A filter may allow to set a ring up and refuse to enter it.
        match ring.call(0, 0, 0, Enter::GETEVENTS, None) {
            Err(errno @ (Errno::PERM | Errno::ACCESS | Errno::NOSYS)) => {
                Err(RingError::Forbidden(errno))
            }
            // What else may come of an empty call (a signal, say) is no refusal.
            _ => Ok(ring),
        }
    }

    /// What was had of what was asked for.
    pub(crate) fn features(&self) -> RingFeatures {
        self.features
    }

    /// Has the kernel name the ring by an index. Where it refuses (a kernel before 5.18, or 16
    /// rings of this thread are registered), the descriptor does.
    fn register(&mut self) {
        let mut update = RingUpdate { offset: u32::MAX, reserved: 0, data: 0 };
        update.data = u64::try_from(self.ring.as_raw_fd()).unwrap_or(u64::MAX);
        // SAFETY: one update, which lives through the call.
        let outcome =
            unsafe { self.control(IORING_REGISTER_RING_FDS, (&raw mut update).cast(), 1) };
        match (outcome, i32::try_from(update.offset)) {
            (Ok(_), Ok(index)) => (self.name, self.name_flag) = (index, Enter::REGISTERED_RING),
            _ => self.features = self.features.without(RingFeatures::REGISTERED),
        }
    }

    /// For a child of fork(2), whose thread may have a ring of its own under the same index.
    pub(super) fn disown_index(&mut self) {
        (self.name, self.name_flag) = (self.ring.as_raw_fd(), Enter::empty());
    }

    /// Gives the index back (protocol 4).
    fn unregister(&mut self) {
        if !self.name_flag.is_empty() {
            let mut update =
                RingUpdate { offset: u32::try_from(self.name).unwrap_or(0), reserved: 0, data: 0 };
            // SAFETY: one update, which lives through the call.
            let _ =
                unsafe { self.control(IORING_UNREGISTER_RING_FDS, (&raw mut update).cast(), 1) };
            self.disown_index();
        }
    }

    /// io_uring_register(2).
    ///
    /// # Safety
    /// The argument is what the operation takes, `count` of them.
    pub(crate) unsafe fn control(
        &self,
        operation: u32,
        argument: *mut c_void,
        count: u32,
    ) -> Result<i32, Errno> {
        // SAFETY: the ring is open; the rest is the caller's promise.
        let outcome = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                self.ring.as_raw_fd(),
                operation,
                argument,
                count,
            )
        };
        i32::try_from(outcome).ok().filter(|outcome| *outcome >= 0).ok_or_else(last_errno)
    }

    /// Has the kernel write to an eventfd whenever a completion comes, or is ready to be made.
    pub(crate) fn notify(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        let outcome = self.ring.submitter().register_eventfd(eventfd.as_raw_fd());
        outcome.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }

    /// Takes [`notify`](Self::notify) back.
    pub(crate) fn notify_no_more(&self) -> Result<(), Errno> {
        let outcome = self.ring.submitter().unregister_eventfd();
        outcome.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }

    /// Queues an entry. It goes to the kernel with the next [`enter`](Self::enter) or
    /// [`submit`](Self::submit), or now if the queue is full.
    ///
    /// # Safety
    /// Protocol 2, for the memory that the entry names.
    #[inline]
    pub(crate) unsafe fn push(&mut self, entry: &squeue::Entry) {
        if self.spill.is_empty() {
            // SAFETY: the caller's promise is what the queue asks for.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                self.untaken += 1;
                return;
            }
        }
        self.push_spilled(entry);
    }

    #[cold]
    fn push_spilled(&mut self, entry: &squeue::Entry) {
        // What it says now it says again when somebody waits.
        let _ = self.submit();
        self.spill.push_back(entry.clone());
        self.unspill();
    }

    /// Moves entries that found no room to where there is some now.
    #[inline]
    fn unspill(&mut self) {
        while let Some(entry) = self.spill.front() {
            // SAFETY: whoever pushed it has made the promise.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                return;
            }
            self.untaken += 1;
            self.spill.pop_front();
        }
    }

    /// Queues a poll of a descriptor, by its number: once, or for every change until it is
    /// cancelled.
    #[inline]
    pub(crate) fn poll(&mut self, fd: i32, mask: u32, is_multishot: bool, user_data: u64) {
        let entry = opcode::PollAdd::new(types::Fd(fd), mask)
            .multi(is_multishot)
            .build()
            .user_data(user_data);
        // SAFETY: a poll names no memory.
        unsafe { self.push(&entry) };
    }

    /// Queues the end of a request. That it succeeds is told by the request's own final completion
    /// alone, where the kernel can be silent.
    pub(crate) fn cancel(&mut self, user_data: u64, control: u64) {
        let mut entry = opcode::AsyncCancel::new(user_data).build().user_data(control);
        if self.features.has(RingFeatures::SKIP_SUCCESS) {
            entry = entry.flags(squeue::Flags::SKIP_SUCCESS);
        }
        // SAFETY: a cancellation names a request by its number, and no memory.
        unsafe { self.push(&entry) };
    }

    /// How many entries there is room for.
    pub(crate) fn capacity(&mut self) -> usize {
        self.ring.submission().capacity()
    }

    /// How many entries wait to be submitted.
    #[inline]
    pub(crate) fn queued(&self) -> usize {
        self.untaken as usize + self.spill.len()
    }

    /// Whether completions can be looked at without asking the kernel.
    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Whether the kernel must be entered for what is due: entries to submit, completions to be
    /// made ready, or kept for want of room.
    #[inline(always)]
    pub(crate) fn wants_enter(&mut self) -> bool {
        if self.queued() > 0 {
            return true;
        }
        let features = self.features;
        let queue = self.ring.submission();
        if features.has(RingFeatures::TASKRUN_FLAG) {
            queue.taskrun() || queue.cq_overflow()
        } else {
            // Without the flag, whoever defers completions must ask for them.
            features.has(RingFeatures::DEFER_TASKRUN) || queue.cq_overflow()
        }
    }

    /// Whether the kernel has completions that it has not put into the queue, as far as it says so.
    /// It makes at most twenty ready at a time.
    #[inline]
    pub(crate) fn holds_more(&mut self) -> bool {
        let is_told = self.features.has(RingFeatures::TASKRUN_FLAG);
        let queue = self.ring.submission();
        queue.cq_overflow() || is_told && queue.taskrun()
    }

    /// Whether the kernel can wait for several completions and be content with fewer after a time
    /// (`IORING_FEAT_MIN_TIMEOUT`, Linux 6.12).
    pub(crate) fn can_wait_for_batch(&self) -> bool {
        self.ring.params().is_feature_min_timeout()
    }

    /// Whether the kernel keeps completions that found no room in the queue.
    #[inline]
    pub(crate) fn has_overflowed(&mut self) -> bool {
        self.ring.submission().cq_overflow()
    }

    /// Makes a row of buffers known that receives take from.
    pub(crate) fn register_buffers(
        &self,
        row: u64,
        count: u16,
        group: u16,
        flags: u16,
    ) -> Result<(), Errno> {
        // SAFETY: the caller keeps row and buffers for as long as a request may take from them: the
        // pool's first protocol.
        let outcome =
            unsafe { self.ring.submitter().register_buf_ring_with_flags(row, count, group, flags) };
        outcome.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }

    /// The oldest completion, which leaves the queue.
    #[inline(always)]
    pub(crate) fn next_completion(&mut self) -> Option<Completion> {
        let entry = self.ring.completion().next()?;
        Some(Completion {
            user_data: entry.user_data(),
            result: entry.result(),
            flags: entry.flags(),
        })
    }

    /// Submits what is queued, as far as the kernel takes it, and neither waits nor asks for
    /// completions.
    ///
    /// # Errors
    /// What io_uring_enter(2) says; what was not taken stays queued.
    pub(crate) fn submit(&mut self) -> Result<(), Errno> {
        loop {
            let queued = self.queued();
            let taken = match self.enter_once(0, 0, Enter::empty(), None) {
                Ok(taken) => taken,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            self.unspill();
            if taken == 0 || taken >= queued {
                return Ok(());
            }
        }
    }

    /// Submits what is queued, makes completions ready, and waits for one if `waits`: until
    /// `timeout` is over (`None`: for ever).
    ///
    /// # Errors
    /// What io_uring_enter(2) says: `ETIME` when the time is over, `EINTR` when a signal came. It
    /// is `Ok` also where a signal or the end of the time came after something was submitted, and
    /// where the kernel has not taken all that was queued.
    #[inline]
    pub(crate) fn enter(&mut self, waits: bool, timeout: Option<&Timespec>) -> Result<(), Errno> {
        if self.queued() == 0 {
            return self.call(0, u32::from(waits), 0, Enter::GETEVENTS, timeout).map(|_| ());
        }
        self.enter_for(u32::from(waits), 0, timeout)
    }

    /// As [`enter`](Self::enter), and waits for so many completions, if there are some, no longer
    /// than `batch_wait_us` microseconds.
    #[inline(never)]
    pub(crate) fn enter_for(
        &mut self,
        least: u32,
        batch_wait_us: u32,
        timeout: Option<&Timespec>,
    ) -> Result<(), Errno> {
        loop {
            let queued = self.queued();
            // What has found no room must be submitted before anybody waits for it.
            let least = if self.spill.is_empty() { least } else { 0 };
            let taken = match self.enter_once(least, batch_wait_us, Enter::GETEVENTS, timeout) {
                Ok(taken) => taken,
                // No memory for a request, or for completions that it keeps.
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) if queued > 0 => 0,
                Err(errno) => return Err(errno),
            };
            self.unspill();
            if taken >= queued {
                return Ok(());
            }
            if taken == 0 {
                break;
            }
        }
        if least > 0 { self.wait_stalled(timeout) } else { Ok(()) }
    }

    /// Where the kernel has not taken all, it has not waited either. What it does not take now it
    /// may take later.
    #[cold]
    fn wait_stalled(&mut self, timeout: Option<&Timespec>) -> Result<(), Errno> {
        if self.has_completions() {
            return Ok(());
        }
        let less =
            timeout.filter(|time| (time.tv_sec, time.tv_nsec) < (STALLED.tv_sec, STALLED.tv_nsec));
        match self.call(0, 1, 0, Enter::GETEVENTS, Some(less.unwrap_or(&STALLED))) {
            // The caller's time is not over.
            Err(Errno::TIME) if less.is_none() => Ok(()),
            outcome => outcome.map(|_| ()),
        }
    }

    #[inline]
    fn enter_once(
        &mut self,
        least: u32,
        batch_wait_us: u32,
        flags: Enter,
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        if self.untaken == 0 {
            return self.call(0, least, batch_wait_us, flags, timeout);
        }
        if self.stalls > 0 {
            self.stalls -= 1;
            return Ok(0);
        }
        let outcome = self.call(self.untaken, least, batch_wait_us, flags, timeout);
        self.untaken = u32::try_from(self.ring.submission().len()).unwrap_or(u32::MAX);
        outcome
    }

    /// io_uring_enter(2).
    #[inline]
    fn call(
        &self,
        submit: u32,
        least: u32,
        batch_wait_us: u32,
        flags: Enter,
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        // SAFETY: it is lent for the call below, which looks the ring up under it: the ring is
        // open, or registered under the index by this thread. Neither number is -1.
        let name = unsafe { BorrowedFd::borrow_raw(self.name) };
        let flags = flags | self.name_flag;
        let taken = if timeout.is_none() && batch_wait_us == 0 {
            // SAFETY: the entries' memory is valid (protocol 2), and the flags name no argument.
            unsafe { io_uring_enter(name, submit, least, flags) }
        } else {
            let argument = GetEvents {
                sigmask: io_uring_ptr::null(),
                sigmask_sz: 0,
                min_wait_usec: batch_wait_us,
                ts: io_uring_ptr::from(
                    timeout.map_or(ptr::null_mut(), |time| ptr::from_ref(time).cast_mut().cast()),
                ),
            };
            // SAFETY: as above; the argument and the time live through the call, which only reads
            // them, and no mask of signals is given.
            unsafe {
                io_uring_enter_arg(name, submit, least, flags | Enter::EXT_ARG, Some(&argument))
            }
        };
        taken.map(|taken| taken as usize)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        note_close();
        self.unregister();
    }
}
