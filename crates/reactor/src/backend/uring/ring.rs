//! The two queues of an io_uring(7), and the system call that serves them.
//!
//! # The protocol of this module
//!
//! 1. Only the thread and the process that made the ring use it. A child of fork(2) shares the
//!    memory of the queues with its parent, so the caller first checks the
//!    [`ForkGuard`](crate::backend::fork::ForkGuard).
//! 2. Memory that a pushed entry names stays valid until the entry's final completion.
//!    [`Ring::push`] is `unsafe` for that reason; [`poll`](Ring::poll) and [`cancel`](Ring::cancel)
//!    name none.
//! 3. An entry without room in the queue waits in `spill`, and all later entries wait behind it:
//!    the kernel gets them in the order in which they were pushed.
//! 4. The index under which the ring is registered belongs to this thread. It is returned before
//!    the ring is closed, because it keeps the ring alive.

#![allow(
    unsafe_code,
    reason = "io_uring_enter(2) and io_uring_register(2) by their numbers, and entries that name \
              memory"
)]

use core::{ffi::c_void, hint, ptr};
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

use super::{
    features::{note_close, set_up},
    pace,
};
use crate::{
    RingError,
    backend::{
        last_errno,
        napi::{NapiError, NapiPoll},
        pollable,
        ring_settings::{RingFeatures, RingSettings},
    },
};

/// From linux/io_uring.h.
const IORING_REGISTER_RING_FDS: u32 = 20;
const IORING_UNREGISTER_RING_FDS: u32 = 21;
const IORING_REGISTER_NAPI: u32 = 27;

/// The longest wait while the kernel does not take submitted entries, for example for lack of
/// memory. Then they are submitted again.
const STALLED: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// `struct io_uring_rsrc_update`, the argument of `IORING_REGISTER_RING_FDS`.
#[repr(C)]
struct RingUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// `struct io_uring_napi`, the argument of `IORING_REGISTER_NAPI`, of Linux 6.9. Zeros in the rest
/// mean the same to later kernels.
#[repr(C)]
struct RingNapi {
    busy_poll_to: u32,
    prefer_busy_poll: u8,
    pad: [u8; 3],
    reserved: u64,
}

const _: () = {
    assert!(size_of::<RingUpdate>() == 16);
    assert!(size_of::<RingNapi>() == 16);
    // `struct __kernel_timespec`.
    assert!(size_of::<Timespec>() == 16);
};

/// An entry of the completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) user_data: u64,
    /// The result of the request: a count, a set of conditions, or a negative error number.
    pub(crate) result: i32,
    pub(crate) flags: u32,
}

impl Completion {
    #[inline(always)]
    fn of(entry: cqueue::Entry) -> Self {
        Self { user_data: entry.user_data(), result: entry.result(), flags: entry.flags() }
    }

    /// Whether further completions of the request follow.
    #[inline(always)]
    pub(crate) fn has_more(self) -> bool {
        cqueue::more(self.flags)
    }
}

pub(crate) struct Ring {
    ring: IoUring,
    features: RingFeatures,
    /// Checks with two loads whether the completion queue is empty. It reads the ring's memory, so
    /// it must not be used after the ring is dropped.
    arrived: CompletionStatus,
    /// The ring's name for io_uring_enter(2): an index, or its descriptor.
    name: RawFd,
    /// `IORING_ENTER_REGISTERED_RING` if the name is an index.
    name_flag: Enter,
    /// Queued entries that the kernel has not taken. It takes entries only during our system calls.
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
        // SAFETY: It is stored beside the ring, and only methods of the struct that owns both use
        // it.
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
        // A seccomp filter may allow creating a ring but forbid entering it.
        match ring.call(0, 0, Enter::GETEVENTS, None) {
            Err(errno @ (Errno::PERM | Errno::ACCESS | Errno::NOSYS)) => {
                Err(RingError::Forbidden(errno))
            }
            // Other results of an empty call, such as a signal, are not a rejection.
            _ => Ok(ring),
        }
    }

    /// The features that the ring has, of those requested.
    pub(crate) fn features(&self) -> RingFeatures {
        self.features
    }

    /// Registers the ring, so that the kernel finds it by an index. If that fails (a kernel before
    /// 5.18, or 16 registered rings of this thread), the descriptor is used.
    fn register(&mut self) {
        let mut update = RingUpdate { offset: u32::MAX, reserved: 0, data: 0 };
        update.data = u64::try_from(self.ring.as_raw_fd()).unwrap_or(u64::MAX);
        // SAFETY: There is one update, which lives through the call.
        let outcome =
            unsafe { self.control(IORING_REGISTER_RING_FDS, (&raw mut update).cast(), 1) };
        match (outcome, i32::try_from(update.offset)) {
            (Ok(_), Ok(index)) => (self.name, self.name_flag) = (index, Enter::REGISTERED_RING),
            _ => self.features = self.features.without(RingFeatures::REGISTERED),
        }
    }

    /// Makes the kernel poll network cards in waits.
    pub(super) fn set_napi(&self, napi: NapiPoll) -> Result<(), NapiError> {
        let (busy_poll_to, prefer_busy_poll) = (napi.usecs, napi.prefer.into());
        let mut argument = RingNapi { busy_poll_to, prefer_busy_poll, pad: [0; 3], reserved: 0 };
        // SAFETY: There is one argument, which lives through the call. The kernel writes the
        // previous settings to it, a value of the same type.
        let outcome = unsafe { self.control(IORING_REGISTER_NAPI, (&raw mut argument).cast(), 1) };
        outcome.map(drop).map_err(|errno| match errno {
            // Older kernels do not know the operation.
            Errno::INVAL | Errno::OPNOTSUPP => NapiError::Missing(errno),
            errno => NapiError::Os(errno),
        })
    }

    /// For a child of fork(2): its thread may have a ring of its own under the same index.
    pub(super) fn disown_index(&mut self) {
        (self.name, self.name_flag) = (self.ring.as_raw_fd(), Enter::empty());
    }

    /// Returns the index (protocol 4).
    fn unregister(&mut self) {
        if !self.name_flag.is_empty() {
            let mut update =
                RingUpdate { offset: u32::try_from(self.name).unwrap_or(0), reserved: 0, data: 0 };
            // SAFETY: There is one update, which lives through the call.
            let _ =
                unsafe { self.control(IORING_UNREGISTER_RING_FDS, (&raw mut update).cast(), 1) };
            self.disown_index();
        }
    }

    /// io_uring_register(2).
    ///
    /// # Safety
    /// `argument` must point to `count` values of the type that the operation takes.
    pub(crate) unsafe fn control(
        &self,
        operation: u32,
        argument: *mut c_void,
        count: u32,
    ) -> Result<i32, Errno> {
        // SAFETY: The ring is open. The caller guarantees the rest.
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

    /// Makes the kernel write to an eventfd whenever a completion is posted or can be delivered.
    pub(crate) fn notify(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        let outcome = self.ring.submitter().register_eventfd(eventfd.as_raw_fd());
        outcome.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }

    /// Undoes [`notify`](Self::notify).
    pub(crate) fn notify_no_more(&self) -> Result<(), Errno> {
        let outcome = self.ring.submitter().unregister_eventfd();
        outcome.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }

    /// Queues an entry. The next [`enter`](Self::enter) or [`submit`](Self::submit) submits it, or
    /// this call if the queue is full.
    ///
    /// # Safety
    /// Protocol 2 must hold for the memory that the entry names.
    #[inline]
    pub(crate) unsafe fn push(&mut self, entry: &squeue::Entry) {
        if self.spill.is_empty() {
            // SAFETY: The caller's guarantee is the one that the queue requires.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                self.untaken += 1;
                return;
            }
        }
        self.push_spilled(entry);
    }

    /// Queues entries. It reads and writes the queue's ends once.
    ///
    /// # Safety
    /// As for [`push`](Self::push), for each entry.
    #[inline(always)]
    pub(crate) unsafe fn push_all(&mut self, mut entries: impl Iterator<Item = squeue::Entry>) {
        loop {
            if self.spill.is_empty() {
                let mut queue = self.ring.submission();
                let before = queue.len();
                while !queue.is_full() {
                    let Some(entry) = entries.next() else { break };
                    // SAFETY: The caller's guarantee is the one that the queue requires. There is
                    // room.
                    let _ = unsafe { queue.push(&entry) };
                }
                let count = queue.len() - before;
                drop(queue);
                self.untaken += u32::try_from(count).unwrap_or(u32::MAX);
            }
            // Submitting the full queue makes room for many more, not only for this entry.
            let Some(entry) = entries.next() else { return };
            self.push_spilled(&entry);
        }
    }

    #[cold]
    fn push_spilled(&mut self, entry: &squeue::Entry) {
        // The next wait reports this error again.
        let _ = self.submit();
        self.spill.push_back(entry.clone());
        self.unspill();
    }

    /// Moves entries from `spill` to the queue as far as there is room.
    #[inline]
    fn unspill(&mut self) {
        while let Some(entry) = self.spill.front() {
            // SAFETY: The caller that pushed the entry has given the guarantee.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                return;
            }
            self.untaken += 1;
            self.spill.pop_front();
        }
    }

    /// Queues a poll of a descriptor by its number: for one event, or for every event until it is
    /// cancelled.
    #[inline]
    pub(crate) fn poll(&mut self, fd: i32, mask: u32, is_multishot: bool, user_data: u64) {
        let entry = Self::poll_entry(fd, mask, is_multishot, user_data);
        // SAFETY: A poll names no memory.
        unsafe { self.push(&entry) };
    }

    #[inline(always)]
    pub(super) fn poll_entry(
        fd: i32,
        mask: u32,
        is_multishot: bool,
        user_data: u64,
    ) -> squeue::Entry {
        let poll = opcode::PollAdd::new(types::Fd(fd), mask).multi(is_multishot);
        poll.build().user_data(user_data)
    }

    /// Queues the cancellation of a request. If the kernel supports it, a successful cancellation
    /// posts no completion of its own; only the request's final completion shows it.
    pub(crate) fn cancel(&mut self, user_data: u64, control: u64) {
        let entry = Self::cancel_entry(self.features, user_data, control);
        // SAFETY: A cancellation names a request by its number, and no memory.
        unsafe { self.push(&entry) };
    }

    #[inline(always)]
    pub(super) fn cancel_entry(
        features: RingFeatures,
        user_data: u64,
        control: u64,
    ) -> squeue::Entry {
        let entry = opcode::AsyncCancel::new(user_data).build().user_data(control);
        if features.has(RingFeatures::SKIP_SUCCESS) {
            return entry.flags(squeue::Flags::SKIP_SUCCESS);
        }
        entry
    }

    /// Whether poll(2) finds priority data.
    pub(super) fn has_priority(&self, fd: i32) -> bool {
        pollable::has_priority(fd)
    }

    /// The time in nanoseconds by a clock that never goes back. Not zero.
    #[inline(always)]
    pub(super) fn now_ns(&self) -> u64 {
        pace::now()
    }

    /// The size of the submission queue.
    pub(crate) fn capacity(&mut self) -> usize {
        self.ring.submission().capacity()
    }

    /// The number of entries that wait for submission.
    #[inline]
    pub(crate) fn queued(&self) -> usize {
        self.untaken as usize + self.spill.len()
    }

    /// Whether completions can be read without a system call.
    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Whether a system call is due: for entries to submit, for completions to deliver, or for
    /// completions kept for lack of room.
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
            // Without the flag, a ring that defers completions must always ask for them.
            features.has(RingFeatures::DEFER_TASKRUN) || queue.cq_overflow()
        }
    }

    /// Whether the kernel reports completions that are not in the queue yet. It delivers at most
    /// twenty at a time.
    #[inline]
    pub(crate) fn holds_more(&mut self) -> bool {
        let is_told = self.features.has(RingFeatures::TASKRUN_FLAG);
        let queue = self.ring.submission();
        queue.cq_overflow() || is_told && queue.taskrun()
    }

    /// Whether the kernel keeps completions that found no room in the queue.
    #[inline]
    pub(crate) fn has_overflowed(&mut self) -> bool {
        self.ring.submission().cq_overflow()
    }

    /// Registers a ring of buffers for receives.
    pub(crate) fn register_buffers(
        &self,
        row: u64,
        count: u16,
        group: u16,
        flags: u16,
    ) -> Result<(), Errno> {
        // SAFETY: The caller keeps the row and the buffers for as long as a request may take from
        // them (protocol 1 of the pool).
        let outcome =
            unsafe { self.ring.submitter().register_buf_ring_with_flags(row, count, group, flags) };
        outcome.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }

    /// Takes the completions that are in the queue now, in their order. Those taken leave the queue
    /// when the result is dropped.
    #[inline(always)]
    pub(crate) fn completions(&mut self) -> impl ExactSizeIterator<Item = Completion> {
        self.ring.completion().map(Completion::of)
    }

    /// Takes the oldest completion from the queue.
    #[inline(always)]
    pub(crate) fn next_completion(&mut self) -> Option<Completion> {
        self.ring.completion().next().map(Completion::of)
    }

    /// Submits the queue, as far as the kernel takes it. It neither waits nor asks for completions.
    ///
    /// # Errors
    /// The errors of io_uring_enter(2). Entries that were not taken stay queued.
    pub(crate) fn submit(&mut self) -> Result<(), Errno> {
        loop {
            let queued = self.queued();
            let taken = match self.enter_once(0, Enter::empty(), None) {
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

    /// Submits the queue and asks for completions. If `waits`, it waits for one until `timeout` has
    /// expired (`None`: no limit).
    ///
    /// # Errors
    /// The errors of io_uring_enter(2): `ETIME` if the time has expired, `EINTR` after a signal.
    /// The result is `Ok` if either came after a submission. It is also `Ok` if the kernel has not
    /// taken all queued entries.
    #[inline]
    pub(crate) fn enter(&mut self, waits: bool, timeout: Option<&Timespec>) -> Result<(), Errno> {
        if self.queued() == 0 {
            return self.call(0, u32::from(waits), Enter::GETEVENTS, timeout).map(|_| ());
        }
        self.enter_for(u32::from(waits), timeout)
    }

    /// Like [`enter`](Self::enter). It waits for `least` completions.
    #[inline(never)]
    pub(crate) fn enter_for(
        &mut self,
        least: u32,
        timeout: Option<&Timespec>,
    ) -> Result<(), Errno> {
        loop {
            let queued = self.queued();
            // Entries in `spill` must be submitted before a wait for them.
            let least = if self.spill.is_empty() { least } else { 0 };
            let taken = match self.enter_once(least, Enter::GETEVENTS, timeout) {
                Ok(taken) => taken,
                // No memory for a request, or for the completions that the kernel keeps.
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

    /// If the kernel has not taken all entries, it has not waited either. It may take them later.
    #[cold]
    fn wait_stalled(&mut self, timeout: Option<&Timespec>) -> Result<(), Errno> {
        if self.has_completions() {
            return Ok(());
        }
        let less =
            timeout.filter(|time| (time.tv_sec, time.tv_nsec) < (STALLED.tv_sec, STALLED.tv_nsec));
        match self.call(0, 1, Enter::GETEVENTS, Some(less.unwrap_or(&STALLED))) {
            // The caller's timeout has not expired yet.
            Err(Errno::TIME) if less.is_none() => Ok(()),
            outcome => outcome.map(|_| ()),
        }
    }

    #[inline]
    fn enter_once(
        &mut self,
        least: u32,
        flags: Enter,
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        if self.untaken == 0 {
            return self.call(0, least, flags, timeout);
        }
        if self.stalls > 0 {
            self.stalls -= 1;
            return Ok(0);
        }
        let outcome = self.call(self.untaken, least, flags, timeout);
        self.untaken = u32::try_from(self.ring.submission().len()).unwrap_or(u32::MAX);
        outcome
    }

    /// io_uring_enter(2).
    #[inline]
    fn call(
        &self,
        submit: u32,
        least: u32,
        flags: Enter,
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        // SAFETY: The name is a descriptor or an index, which the kernel has given out. Without
        // this, the next line tests it.
        unsafe { hint::assert_unchecked(self.name != -1) };
        // SAFETY: The descriptor is borrowed for the call below only. Under this name the ring is
        // open, or registered under the index by this thread. Neither number is -1.
        let name = unsafe { BorrowedFd::borrow_raw(self.name) };
        let flags = flags | self.name_flag;
        let taken = if let Some(time) = timeout {
            let argument = GetEvents {
                sigmask: io_uring_ptr::null(),
                sigmask_sz: 0,
                min_wait_usec: 0,
                ts: io_uring_ptr::from(ptr::from_ref(time).cast_mut().cast::<c_void>()),
            };
            // SAFETY: The memory of the entries is valid (protocol 2). The argument and the time
            // live through the call, which only reads them. No signal mask is given.
            unsafe {
                io_uring_enter_arg(name, submit, least, flags | Enter::EXT_ARG, Some(&argument))
            }
        } else {
            // SAFETY: As above, and the flags name no argument.
            unsafe { io_uring_enter(name, submit, least, flags) }
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
