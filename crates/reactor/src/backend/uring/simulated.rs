//! A ring in a simulation: the queues and calls of [`Ring`](super::ring::Ring), on simulated
//! sockets.
//!
//! 1. It takes the entries that the kernel would get, and reads them by the layout of
//!    `struct io_uring_sqe`. It takes buffers from the row as the kernel does.
//! 2. As with `IORING_SETUP_DEFER_TASKRUN`, completions come only in a call that asks for them, at
//!    most [`AT_ONCE`] of what has become ready. Those without room wait until such a call finds
//!    room, and so do all that come after them.
//! 3. A send is tried once, when it is submitted. A receive is tried then too, and again whenever a
//!    poll of its own has found something: the simulated kernel chooses when, and whether the poll
//!    and its cancellation come late.
//! 4. No call waits. The wait of a turn ends as if its time was over, and
//!    [`SimBackend::wait`](crate::backend::sim::SimBackend) lets the simulation go on. Other calls
//!    wait for requests that were cancelled, and what is late comes at once then.
//!
//! Entries name memory by its address. It is valid as for the kernel (protocol 2 of
//! [`ring`](super::ring)), and the buffers of the row are the ring's (protocol 2 of
//! [`pool`](super::pool)).

#![allow(unsafe_code, reason = "entries and buffers by their addresses, as the kernel has them")]

use core::{
    cell::RefCell,
    ptr,
    sync::atomic::{AtomicU16, Ordering},
};
use std::collections::{BTreeMap, HashMap, VecDeque};

use io_uring::{opcode, squeue};
use rustix::io::Errno;
use windlass_sim::{ActorId, Fd, Kernel as SimKernel, RingRequest, WakeHandle, mask};

use super::{ring::Completion, waits::AT_ONCE};
use crate::{
    backend::ring_settings::{RingFeatures, RingSettings},
    world::errno,
};

/// From linux/io_uring.h.
const IORING_POLL_ADD_MULTI: u32 = 1;
const IORING_RECV_MULTISHOT: u16 = 1 << 1;
const CQE_F_BUFFER: u32 = 1;
const CQE_F_MORE: u32 = 1 << 1;
const CQE_F_BUF_MORE: u32 = 1 << 4;
const CQE_BUFFER_SHIFT: u32 = 16;

/// A multishot receive lets others go first after so many parts (`MULTISHOT_MAX_RETRY`,
/// io_uring/net.c).
const PARTS_MAX: usize = 32;

/// The beginning of `struct io_uring_sqe`.
#[repr(C)]
struct Submission {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    offset: u64,
    address: u64,
    len: u32,
    op_flags: u32,
    user_data: u64,
}

const _: () = assert!(
    size_of::<squeue::Entry>() == 64
        && align_of::<squeue::Entry>() >= align_of::<Submission>()
        && size_of::<Submission>() == 40
);

impl Submission {
    fn of(entry: &squeue::Entry) -> Self {
        // SAFETY: An entry is a `struct io_uring_sqe`, which begins with these fields and is
        // longer. All of its bytes are initialized, and each value of them is one of the fields.
        unsafe { ptr::from_ref(entry).cast::<Self>().read() }
    }
}

/// A request that has not had its last completion.
struct Request {
    user_data: u64,
    fd: Fd,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Poll,
    Receive { is_multishot: bool, is_cancelled: bool },
}

pub(crate) struct SimRing {
    kernel: SimKernel,
    /// The polls of the requests, by the numbers of these.
    polls: windlass_sim::Ring,
    /// Makes the reactor run again.
    wake: WakeHandle,
    settings: RingSettings,
    submissions: VecDeque<Submission>,
    completions: VecDeque<Completion>,
    /// The room of that queue. A fault makes it full until the reactor has taken something.
    room: usize,
    /// Completions that have found no room.
    overflow: VecDeque<Completion>,
    /// Polls that have ended and were not looked at.
    fetched: VecDeque<windlass_sim::Completion>,
    /// Receives that others went ahead of.
    interrupted: Vec<u64>,
    requests: BTreeMap<u64, Request>,
    /// The numbers of requests by their user data. Its order is not used.
    numbers: HashMap<u64, u64>,
    next_number: u64,
    row: RefCell<Option<Row>>,
    scratch: Vec<u8>,
    /// Rule 4.
    is_in_wait: bool,
}

impl SimRing {
    pub(crate) fn new(kernel: &SimKernel, actor: ActorId, settings: RingSettings) -> Self {
        let polls = SimKernel::ring(kernel, actor, settings.completions as usize);
        Self {
            polls,
            wake: kernel.wake_handle(actor),
            kernel: kernel.clone(),
            settings,
            submissions: VecDeque::new(),
            completions: VecDeque::new(),
            room: settings.completions as usize,
            overflow: VecDeque::new(),
            fetched: VecDeque::new(),
            interrupted: Vec::new(),
            requests: BTreeMap::new(),
            numbers: HashMap::new(),
            next_number: 0,
            row: RefCell::default(),
            scratch: Vec::new(),
            is_in_wait: false,
        }
    }

    /// Whether waits are those of a turn from here on (rule 4).
    pub(crate) fn set_in_wait(&mut self, is_in_wait: bool) {
        self.is_in_wait = is_in_wait;
    }

    pub(super) fn features(&self) -> RingFeatures {
        self.settings.features
    }

    pub(super) fn capacity(&self) -> usize {
        self.settings.submissions as usize
    }

    pub(super) fn queued(&self) -> usize {
        self.submissions.len()
    }

    /// The virtual time in nanoseconds. Not zero.
    pub(super) fn now_ns(&self) -> u64 {
        self.kernel.now_ns().max(1)
    }

    pub(super) fn push(&mut self, entry: &squeue::Entry) {
        if self.queued() >= self.capacity() {
            self.submit();
        }
        self.submissions.push_back(Submission::of(entry));
    }

    pub(super) fn register_buffers(&self, start: u64, count: u16, flags: u16) {
        let row = Row { start, count, is_incremental: flags != 0, head: 0, filled: 0 };
        self.row.replace(Some(row));
    }

    pub(super) fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    pub(super) fn has_overflowed(&self) -> bool {
        !self.overflow.is_empty()
    }

    pub(super) fn holds_more(&self) -> bool {
        self.has_overflowed()
            || !self.fetched.is_empty()
            || !self.interrupted.is_empty()
            || self.polls.is_ready()
    }

    pub(super) fn completions(&mut self) -> &mut VecDeque<Completion> {
        &mut self.completions
    }

    /// Takes all entries.
    pub(super) fn submit(&mut self) {
        while let Some(entry) = self.submissions.pop_front() {
            self.begin(&entry);
        }
    }

    /// Submits the queue, and delivers completions. See rule 4 for a call that `waits`.
    ///
    /// # Errors
    /// `ETIME` for the wait of a turn without completions.
    pub(super) fn enter(&mut self, waits: bool) -> Result<(), Errno> {
        self.submit();
        if self.polls.has_ended() {
            self.cancel_all();
        }
        if waits && !self.is_in_wait {
            self.polls.settle();
        }
        self.deliver();
        let is_over = waits && self.is_in_wait && !self.has_completions();
        if is_over { Err(Errno::TIME) } else { Ok(()) }
    }

    /// Rule 2.
    fn deliver(&mut self) {
        if self.completions.len() < self.room {
            self.room = self.settings.completions as usize;
        }
        while self.completions.len() < self.room {
            let Some(completion) = self.overflow.pop_front() else { break };
            self.completions.push_back(completion);
        }
        for number in core::mem::take(&mut self.interrupted) {
            self.receive(number);
        }
        let mut found = Vec::new();
        self.polls.reap(&mut found);
        self.fetched.extend(found);
        for _ in 0..AT_ONCE {
            let Some(done) = self.fetched.pop_front() else { break };
            self.poll_ends(&done);
        }
        if self.holds_more() {
            // The reactor must not sleep beside it.
            self.wake.wake();
        }
    }

    fn begin(&mut self, entry: &Submission) {
        let Submission { user_data, len, .. } = *entry;
        if entry.opcode == opcode::AsyncCancel::CODE {
            if let Err(errno) = self.cancel(entry.address) {
                self.post(user_data, -errno.raw_os_error(), 0);
            }
            return;
        }
        let slot = u32::try_from(entry.fd - 1).ok();
        let Some(fd) = slot.and_then(|slot| self.kernel.fd_at(slot)) else {
            return self.post(user_data, -Errno::BADF.raw_os_error(), 0);
        };
        match entry.opcode {
            opcode::PollAdd::CODE => {
                let multishot = len & IORING_POLL_ADD_MULTI != 0;
                let number = self.add(Request { user_data, fd, kind: Kind::Poll });
                let mask = entry.op_flags;
                self.polls.submit(number, RingRequest::Poll { fd, mask, multishot });
            }
            opcode::Recv::CODE => {
                let is_multishot = entry.ioprio & IORING_RECV_MULTISHOT != 0;
                let kind = Kind::Receive { is_multishot, is_cancelled: false };
                let number = self.add(Request { user_data, fd, kind });
                self.receive(number);
            }
            opcode::Send::CODE => self.send(entry, fd),
            other => unreachable!("the reactor does not use the operation {other}"),
        }
    }

    fn add(&mut self, request: Request) -> u64 {
        self.next_number += 1;
        self.numbers.entry(request.user_data).or_insert(self.next_number);
        self.requests.insert(self.next_number, request);
        self.next_number
    }

    /// As a send with `MSG_DONTWAIT` and `IOSQE_CQE_SKIP_SUCCESS`.
    fn send(&mut self, entry: &Submission, fd: Fd) {
        let start = ptr::with_exposed_provenance::<u8>(entry.address as usize);
        // SAFETY: The bytes of a send are valid until its result is known (protocol 2 of `ring`),
        // and the kernel may read them until then, so they do not change.
        let bytes = unsafe { core::slice::from_raw_parts(start, entry.len as usize) };
        let sent = loop {
            match self.kernel.send(fd, bytes).map_err(errno) {
                Err(Errno::INTR) => {}
                sent => break sent,
            }
        };
        match sent {
            Ok(sent) if sent == bytes.len() => {}
            Ok(sent) => self.post(entry.user_data, result(sent), 0),
            Err(errno) => self.post(entry.user_data, -errno.raw_os_error(), 0),
        }
    }

    /// Cancels a request, which has a last completion all the same.
    ///
    /// # Errors
    /// `ENOENT` if there is none, and `EALREADY` if it completes in the usual way.
    fn cancel(&mut self, user_data: u64) -> Result<(), Errno> {
        let number = *self.numbers.get(&user_data).ok_or(Errno::NOENT)?;
        let request = self.requests.get_mut(&number).ok_or(Errno::NOENT)?;
        if let Kind::Receive { is_cancelled, .. } = &mut request.kind {
            *is_cancelled = true;
            if let Some(place) = self.interrupted.iter().position(|other| *other == number) {
                self.interrupted.remove(place);
                self.end(number, -Errno::CANCELED.raw_os_error(), 0);
                return Ok(());
            }
        }
        self.polls.cancel(number).map_err(errno)
    }

    /// The process was killed. Its programs are dropped nevertheless, and wait for their requests.
    #[cold]
    fn cancel_all(&mut self) {
        self.interrupted.clear();
        let numbers: Vec<u64> = self.requests.keys().copied().collect();
        for number in numbers {
            self.end(number, -Errno::CANCELED.raw_os_error(), 0);
        }
    }

    /// The poll of a request has found something, or has ended.
    fn poll_ends(&mut self, done: &windlass_sim::Completion) {
        let number = done.user_data;
        let Some(request) = self.requests.get(&number) else { return };
        match request.kind {
            Kind::Poll if done.more => self.post(request.user_data, done.result, CQE_F_MORE),
            Kind::Receive { is_cancelled: true, .. } => {
                self.end(number, -Errno::CANCELED.raw_os_error(), 0);
            }
            Kind::Receive { .. } if done.result >= 0 => self.receive(number),
            Kind::Poll | Kind::Receive { .. } => self.end(number, done.result, 0),
        }
    }

    /// Receives what is there, into buffers of the row.
    fn receive(&mut self, number: u64) {
        let Some(request) = self.requests.get(&number) else { return };
        let Request { user_data, fd, kind } = *request;
        let is_multishot = matches!(kind, Kind::Receive { is_multishot: true, .. });
        for _ in 0..PARTS_MAX {
            let room = self.row.get_mut().as_mut().map_or(0, |row| row.room());
            if room == 0 {
                return self.end(number, -Errno::NOBUFS.raw_os_error(), 0);
            }
            self.scratch.resize(room, 0);
            match self.kernel.recv(fd, &mut self.scratch).map_err(errno) {
                Ok(0) => return self.end(number, 0, 0),
                Ok(count) => {
                    let bytes = &self.scratch[..count];
                    let flags = self.row.get_mut().as_mut().map_or(0, |row| row.fill(bytes));
                    if !is_multishot || self.has_no_room() {
                        return self.end(number, result(count), flags);
                    }
                    let flags = flags | CQE_F_MORE;
                    // Not `post`: whether it overflows is decided already.
                    self.completions.push_back(Completion {
                        user_data,
                        result: result(count),
                        flags,
                    });
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let poll = RingRequest::Poll { fd, mask: mask::IN, multishot: false };
                    return self.polls.submit(number, poll);
                }
                Err(errno) => return self.end(number, -errno.raw_os_error(), 0),
            }
        }
        self.interrupted.push(number);
    }

    /// Whether the next completion overflows. A fault may decide that, but leaves one in the queue:
    /// it is there for a completion that is not taken.
    fn has_no_room(&mut self) -> bool {
        if self.completions.len() >= self.room || self.has_overflowed() {
            return true;
        }
        let overflows = self.has_completions() && self.polls.overflows();
        if overflows {
            self.room = self.completions.len();
        }
        overflows
    }

    fn post(&mut self, user_data: u64, result: i32, flags: u32) {
        let completion = Completion { user_data, result, flags };
        if self.has_no_room() {
            self.overflow.push_back(completion);
        } else {
            self.completions.push_back(completion);
        }
    }

    /// The last completion of a request.
    fn end(&mut self, number: u64, result: i32, flags: u32) {
        let Some(Request { user_data, .. }) = self.requests.remove(&number) else { return };
        if self.numbers.get(&user_data) == Some(&number) {
            self.numbers.remove(&user_data);
        }
        self.post(user_data, result, flags);
    }
}

fn result(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// The ring of provided buffers (`struct io_uring_buf_ring`), as the kernel reads it.
struct Row {
    start: u64,
    count: u16,
    is_incremental: bool,
    /// The entry that is taken next, or that is being filled.
    head: u16,
    /// The bytes of its buffer that were handed over.
    filled: u32,
}

/// The layout of `struct io_uring_buf`. The tail of the row is behind the first one's number.
const ENTRY_BYTES: usize = 16;
const LEN_OFFSET: usize = 8;
const NUMBER_OFFSET: usize = 12;
const TAIL_OFFSET: usize = 14;

impl Row {
    fn at(&self, offset: usize) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.start as usize + offset)
    }

    /// The room of the buffer that is filled next. Zero if there is none.
    fn room(&self) -> usize {
        // SAFETY: The row is mapped while the ring exists, and its first entry has the tail. The
        // reactor writes it as an atomic.
        let tail = unsafe { AtomicU16::from_ptr(self.at(TAIL_OFFSET).cast()) };
        if tail.load(Ordering::Acquire) == self.head {
            return 0;
        }
        // SAFETY: The entry is inside the row, is complete, and does not change before the buffer
        // was handed over.
        let len = unsafe { self.at(self.entry() + LEN_OFFSET).cast::<u32>().read() };
        (len - self.filled) as usize
    }

    fn entry(&self) -> usize {
        usize::from(self.head & (self.count - 1)) * ENTRY_BYTES
    }

    /// Writes bytes to the buffer, which has [room](Self::room) for them, and hands them over.
    /// Returns the flags of their completion.
    fn fill(&mut self, bytes: &[u8]) -> u32 {
        let is_last = !self.is_incremental || bytes.len() == self.room();
        let entry = self.entry();
        // SAFETY: As for the length in `room`.
        let address = unsafe { self.at(entry).cast::<u64>().read() };
        // SAFETY: As above.
        let number = unsafe { self.at(entry + NUMBER_OFFSET).cast::<u16>().read() };
        let place = address as usize + self.filled as usize;
        let to = ptr::with_exposed_provenance_mut::<u8>(place);
        // SAFETY: The buffer has room for the bytes, which lie elsewhere. This part of it is the
        // ring's until its completion is seen (protocol 2 of the pool).
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        self.filled += u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        if is_last {
            (self.head, self.filled) = (self.head.wrapping_add(1), 0);
        }
        let more = if is_last { 0 } else { CQE_F_BUF_MORE };
        CQE_F_BUFFER | more | u32::from(number) << CQE_BUFFER_SHIFT
    }
}
