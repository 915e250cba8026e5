//! The ring: one io_uring_enter(2) that submits and waits, a provided-buffer ring, and an arena for
//! output.

#![allow(
    unsafe_code,
    reason = "queue entries name memory, which is kept until they have completed"
)]

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use windlass_bench_driver::Error;

/// The kernel makes up to 20 receives ready while the 20 buffers of the batch before are in use.
/// With fewer than 40 buffers, receives end for lack of one.
const BUFFERS: u16 = 128;
const BUFFER_BYTES: usize = 32 << 10;
const ARENA_BYTES: usize = 1 << 20;
const GROUP: u16 = 0;

/// A send does not wait, and sends as much as fits.
const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

/// The high half of an entry's user data. The low half is a descriptor, or a send's index.
const ACCEPT: u64 = 0;
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const POLL: u64 = 3;

/// A completion other than that of a send.
pub(crate) enum Completion {
    Accepted(usize),
    /// The multishot accept has ended and must be submitted again.
    AcceptEnded,
    Received {
        fd: usize,
        buffer: u16,
        len: usize,
    },
    /// The receive has ended because no buffer was free.
    NoBuffer(usize),
    Closed(usize),
    Writable(usize),
    /// The process was asked to end.
    Terminate,
}

struct Send {
    fd: usize,
    start: *const u8,
    len: usize,
}

/// `struct io_uring_buf`.
#[repr(C, align(16))]
struct BufEntry {
    address: u64,
    len: u32,
    buffer: u16,
    tail: u16,
}

/// The provided-buffer ring, which the kernel reads.
#[repr(C, align(4096))]
struct BufRing([BufEntry; BUFFERS as usize]);

pub(crate) struct Ring {
    ring: IoUring,
    buf_ring: *mut BufRing,
    tail: u16,
    buffers: *mut u8,
    arena: *mut u8,
    used: usize,
    sends: Vec<Send>,
    failed: VecDeque<(usize, Vec<u8>)>,
    /// Buffers in use by this batch. They return to the kernel when its sends have completed.
    in_use: Vec<u16>,
    /// Connections whose receive waits for a free buffer.
    awaiting_buffer: Vec<usize>,
    /// Completions that were read together with those of sends.
    completions: VecDeque<(u64, i32, u32)>,
    /// The descriptor that is readable when the process is asked to end.
    terminate: usize,
}

/// Takes ownership of the socket that a completion of an accept names.
pub(crate) fn accepted_socket(fd: usize) -> OwnedFd {
    // SAFETY: the completion has just named the descriptor, and no other code owns it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

/// Allocates memory that lives as long as the process.
fn leaked(bytes: usize) -> *mut u8 {
    Box::leak(vec![0u8; bytes].into_boxed_slice()).as_mut_ptr()
}

impl Ring {
    /// Creates the ring. It waits until `terminate` is readable, which must stay open.
    pub(crate) fn new(terminate: BorrowedFd<'_>) -> Result<Self, Error> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_cqsize(4096)
            .build(1024)?;
        let empty = || BufEntry { address: 0, len: 0, buffer: 0, tail: 0 };
        let entries = std::array::from_fn(|_| empty());
        let buf_ring: *mut BufRing = Box::leak(Box::new(BufRing(entries)));
        // SAFETY: the memory of the ring and of its buffers lives as long as the process.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(
                buf_ring.expose_provenance() as u64,
                BUFFERS,
                GROUP,
                0,
            )
        }?;
        let mut ring = Self {
            ring,
            buf_ring,
            tail: 0,
            buffers: leaked(usize::from(BUFFERS) * BUFFER_BYTES),
            arena: leaked(ARENA_BYTES),
            used: 0,
            sends: Vec::new(),
            failed: VecDeque::new(),
            in_use: (0..BUFFERS).collect(),
            awaiting_buffer: Vec::new(),
            completions: VecDeque::new(),
            terminate: terminate.as_raw_fd() as usize,
        };
        ring.return_buffers();
        ring.poll(ring.terminate, libc::POLLIN);
        Ok(ring)
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: memory that an entry names lives as long as the process, and its bytes do not
        // change until the batch has ended.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            let _ = self.ring.submit();
        }
    }

    pub(crate) fn accept(&mut self, listener: i32) {
        let entry = opcode::AcceptMulti::new(types::Fd(listener)).flags(libc::SOCK_CLOEXEC).build();
        self.push(&entry.user_data(ACCEPT << 32));
    }

    pub(crate) fn receive(&mut self, fd: usize) {
        let entry = opcode::RecvMulti::new(types::Fd(fd as i32), GROUP).build();
        self.push(&entry.user_data(RECEIVE << 32 | fd as u64));
    }

    /// Returns whether a receive waits for a free buffer.
    pub(crate) fn is_awaiting_buffer(&self) -> bool {
        !self.awaiting_buffer.is_empty()
    }

    /// Receives when buffers have been returned.
    pub(crate) fn receive_later(&mut self, fd: usize) {
        self.awaiting_buffer.push(fd);
    }

    pub(crate) fn poll_out(&mut self, fd: usize) {
        self.poll(fd, libc::POLLOUT);
    }

    fn poll(&mut self, fd: usize, events: i16) {
        let entry = opcode::PollAdd::new(types::Fd(fd as i32), events as u32).build();
        self.push(&entry.user_data(POLL << 32 | fd as u64));
    }

    fn send(&mut self, fd: usize, start: *const u8, len: usize) {
        let entry =
            opcode::Send::new(types::Fd(fd as i32), start, len as u32).flags(SEND_FLAGS).build();
        let entry = entry
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(SEND << 32 | self.sends.len() as u64);
        self.sends.push(Send { fd, start, len });
        self.push(&entry);
    }

    /// Queues a send of a part of a receive buffer.
    pub(crate) fn send_from(&mut self, fd: usize, buffer: u16, range: Range<usize>) {
        let start = self.buffers.wrapping_add(usize::from(buffer) * BUFFER_BYTES + range.start);
        self.send(fd, start, range.len());
    }

    /// Copies bytes to the arena for this batch, if there is space. Returns their range.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Option<(usize, usize)> {
        let start = self.used;
        if start + bytes.len() > ARENA_BYTES {
            return None;
        }
        self.used += bytes.len();
        // SAFETY: the arena has space for them, and no send reads memory from `start` on.
        unsafe {
            self.arena.wrapping_add(start).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        Some((start, bytes.len()))
    }

    pub(crate) fn send_copy(&mut self, fd: usize, (start, len): (usize, usize)) {
        self.send(fd, self.arena.wrapping_add(start), len);
    }

    /// Returns the bytes of a buffer that was received in this batch.
    pub(crate) fn bytes(&mut self, buffer: u16, len: usize) -> &mut [u8] {
        assert!(buffer < BUFFERS && len <= BUFFER_BYTES, "the kernel names registered buffers");
        let start = self.buffers.wrapping_add(usize::from(buffer) * BUFFER_BYTES);
        // SAFETY: the kernel does not write to the buffer until `return_buffers` returns it, and
        // the borrow of `self` excludes a second reference.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Submits the queued entries, and waits for a completion.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        match self.ring.submit_and_wait(usize::from(self.completions.is_empty())) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.sort();
        Ok(())
    }

    /// Submits the queued entries. All sends have completed when it returns.
    pub(crate) fn submit(&mut self) -> Result<(), Error> {
        self.ring.submit()?;
        self.sort();
        Ok(())
    }

    /// Reads all completions: notes the failed sends, and keeps the others in their order.
    fn sort(&mut self) {
        for entry in self.ring.completion() {
            let (data, result) = (entry.user_data(), entry.result());
            if data >> 32 != SEND {
                self.completions.push_back((data, result, entry.flags()));
                continue;
            }
            let send = &self.sends[data as u32 as usize];
            let sent = match result {
                0.. => result as usize,
                // The end of a connection is noticed by its receive.
                _ if result != -libc::EAGAIN => send.len,
                _ => 0,
            };
            if sent < send.len {
                // SAFETY: the bytes live, and do not change, until the batch has ended.
                let bytes = unsafe { std::slice::from_raw_parts(send.start, send.len) };
                self.failed.push_back((send.fd, bytes[sent..].to_vec()));
            }
        }
    }

    pub(crate) fn next_failed(&mut self) -> Option<(usize, Vec<u8>)> {
        self.failed.pop_front()
    }

    /// Takes the bytes that a connection's send in this batch has left.
    pub(crate) fn take_failed(&mut self, fd: usize) -> Option<Vec<u8>> {
        let index = self.failed.iter().position(|(failed, _)| *failed == fd)?;
        self.failed.remove(index).map(|(_, bytes)| bytes)
    }

    /// Returns all buffers to the kernel, after all sends of the batch have completed.
    pub(crate) fn return_buffers(&mut self) {
        self.sends.clear();
        self.used = 0;
        for buffer in self.in_use.drain(..) {
            let index = usize::from(self.tail & (BUFFERS - 1));
            let address =
                self.buffers.wrapping_add(usize::from(buffer) * BUFFER_BYTES).expose_provenance()
                    as u64;
            let entry = self.buf_ring.cast::<BufEntry>().wrapping_add(index);
            // The ring's tail lies in the first entry, so the fields are written one by one.
            // SAFETY: the entry is one of the ring, and the kernel reads it only after the tail has
            // passed it.
            unsafe { (*entry).address = address };
            // SAFETY: as above.
            unsafe { (*entry).len = BUFFER_BYTES as u32 };
            // SAFETY: as above.
            unsafe { (*entry).buffer = buffer };
            self.tail = self.tail.wrapping_add(1);
        }
        let offset = std::mem::offset_of!(BufEntry, tail) / 2;
        let tail = self.buf_ring.cast::<u16>().wrapping_add(offset);
        // SAFETY: the first entry's last field, which is aligned, and which only this thread
        // writes.
        let tail = unsafe { AtomicU16::from_ptr(tail) };
        tail.store(self.tail, Ordering::Release);
        while let Some(fd) = self.awaiting_buffer.pop() {
            self.receive(fd);
        }
    }

    /// Returns the next completion other than that of a send.
    pub(crate) fn next(&mut self) -> Option<Completion> {
        loop {
            let (data, result, flags) = self.completions.pop_front()?;
            let fd = data as u32 as usize;
            let has_more = cqueue::more(flags);
            return Some(match data >> 32 {
                ACCEPT if !has_more => Completion::AcceptEnded,
                ACCEPT if result < 0 => continue,
                ACCEPT => Completion::Accepted(result as usize),
                POLL if fd == self.terminate => Completion::Terminate,
                POLL => Completion::Writable(fd),
                _ => match result {
                    1.. => {
                        let buffer = cqueue::buffer_select(flags)?;
                        self.in_use.push(buffer);
                        if !has_more {
                            self.awaiting_buffer.push(fd);
                        }
                        Completion::Received { fd, buffer, len: result as usize }
                    }
                    _ if result == -libc::ENOBUFS => Completion::NoBuffer(fd),
                    _ => Completion::Closed(fd),
                },
            });
        }
    }
}
