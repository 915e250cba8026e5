//! The ring: one io_uring_enter(2) that submits and waits, a row of buffers, an arena of what is
//! sent.

#![allow(
    unsafe_code,
    reason = "queue entries name memory, which is kept until they have completed"
)]

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use windlass_bench_driver::Error;

const BUFFERS: u16 = 32;
const BUFFER_BYTES: usize = 32 << 10;
const ARENA_BYTES: usize = 1 << 20;
const GROUP: u16 = 0;

/// How a send is made: at once and whole, or it tells what is left.
const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

/// The high half of what an entry carries; the low one is a descriptor, or a send's place.
const ACCEPT: u64 = 0;
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const POLL: u64 = 3;

/// What has come.
pub(crate) enum Came {
    Connection(usize),
    AcceptOver,
    Bytes { fd: usize, buffer: u16, len: usize },
    NoBuffer(usize),
    End(usize),
    Writable(usize),
}

struct Send {
    fd: usize,
    start: *const u8,
    len: usize,
}

/// `struct io_uring_buf`.
#[repr(C, align(16))]
struct Entry {
    address: u64,
    len: u32,
    buffer: u16,
    tail: u16,
}

#[repr(C, align(4096))]
struct Row([Entry; BUFFERS as usize]);

pub(crate) struct Ring {
    ring: IoUring,
    row: *mut Row,
    tail: u16,
    buffers: *mut u8,
    arena: *mut u8,
    used: usize,
    sends: Vec<Send>,
    failed: VecDeque<(usize, Vec<u8>)>,
    /// Buffers that were handed over, to be given back when the batch's sends have been made.
    lent: Vec<u16>,
    starved: Vec<usize>,
    /// Completions that were met on the way to those of sends.
    kept: VecDeque<(u64, i32, u32)>,
    /// It runs under valgrind, which delivers no signal in io_uring_enter(2): the one that ends it
    /// must come between two waits.
    is_counted: bool,
}

/// The descriptor that the kernel has made for a connection.
pub(crate) fn owned(fd: usize) -> OwnedFd {
    // SAFETY: a completion has named it just now, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

/// Memory that lives as long as the process.
fn leaked(bytes: usize) -> *mut u8 {
    Box::leak(vec![0u8; bytes].into_boxed_slice()).as_mut_ptr()
}

impl Ring {
    pub(crate) fn new() -> Result<Self, Error> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_cqsize(4096)
            .build(1024)?;
        let row = (0..BUFFERS)
            .map(|_| Entry { address: 0, len: 0, buffer: 0, tail: 0 })
            .collect::<Vec<_>>();
        let Ok(row) = <[Entry; BUFFERS as usize]>::try_from(row) else {
            unreachable!("it has as many")
        };
        let row: *mut Row = Box::leak(Box::new(Row(row)));
        // SAFETY: row and buffers live as long as the process.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(
                row.expose_provenance() as u64,
                BUFFERS,
                GROUP,
                0,
            )
        }?;
        let mut ring = Self {
            ring,
            row,
            tail: 0,
            buffers: leaked(usize::from(BUFFERS) * BUFFER_BYTES),
            arena: leaked(ARENA_BYTES),
            used: 0,
            sends: Vec::new(),
            failed: VecDeque::new(),
            lent: (0..BUFFERS).collect(),
            starved: Vec::new(),
            kept: VecDeque::new(),
            is_counted: std::env::var("LD_PRELOAD").is_ok_and(|loaded| loaded.contains("valgrind")),
        };
        ring.recycle();
        Ok(ring)
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: what an entry names lives as long as the process, and its bytes are kept until
        // the batch is over.
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

    /// Whether a receive waits for buffers.
    pub(crate) fn is_starved(&self) -> bool {
        !self.starved.is_empty()
    }

    /// The same, when buffers have come back.
    pub(crate) fn receive_later(&mut self, fd: usize) {
        self.starved.push(fd);
    }

    pub(crate) fn poll_out(&mut self, fd: usize) {
        let entry = opcode::PollAdd::new(types::Fd(fd as i32), libc::POLLOUT as u32).build();
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

    /// Queues a part of a buffer.
    pub(crate) fn send_from(&mut self, fd: usize, buffer: u16, range: Range<usize>) {
        let start = self.buffers.wrapping_add(usize::from(buffer) * BUFFER_BYTES + range.start);
        self.send(fd, start, range.len());
    }

    /// Copies bytes for this batch, if there is room.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Option<(usize, usize)> {
        let start = self.used;
        if start + bytes.len() > ARENA_BYTES {
            return None;
        }
        self.used += bytes.len();
        // SAFETY: the arena has room for them, and nobody sends from behind `used`.
        unsafe {
            self.arena.wrapping_add(start).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        Some((start, bytes.len()))
    }

    pub(crate) fn send_copy(&mut self, fd: usize, (start, len): (usize, usize)) {
        self.send(fd, self.arena.wrapping_add(start), len);
    }

    /// The bytes of a buffer that was handed over in this batch.
    pub(crate) fn bytes(&mut self, buffer: u16, len: usize) -> &mut [u8] {
        assert!(buffer < BUFFERS && len <= BUFFER_BYTES, "as the kernel says");
        let start = self.buffers.wrapping_add(usize::from(buffer) * BUFFER_BYTES);
        // SAFETY: the kernel has handed them over and gets them back by `recycle` alone, and the
        // caller looks at one at a time.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Submits what is queued, and waits for something.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        let least = usize::from(self.kept.is_empty());
        let outcome = if self.is_counted {
            let time = types::Timespec::new().nsec(50_000_000);
            self.ring.submitter().submit_with_args(least, &types::SubmitArgs::new().timespec(&time))
        } else {
            self.ring.submit_and_wait(least)
        };
        match outcome {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME)) => {}
            Err(error) => return Err(error.into()),
        }
        self.sort();
        Ok(())
    }

    /// Submits what is queued: sends have been made when it returns.
    pub(crate) fn submit(&mut self) -> Result<(), Error> {
        self.ring.submit()?;
        self.sort();
        Ok(())
    }

    /// Takes note of sends that have failed; what else has completed is kept in its order.
    fn sort(&mut self) {
        for entry in self.ring.completion() {
            let (data, result) = (entry.user_data(), entry.result());
            if data >> 32 != SEND {
                self.kept.push_back((data, result, entry.flags()));
                continue;
            }
            let send = &self.sends[data as u32 as usize];
            let sent = match result {
                0.. => result as usize,
                // One that is gone is noticed when it is read from.
                _ if result != -libc::EAGAIN => send.len,
                _ => 0,
            };
            if sent < send.len {
                // SAFETY: the bytes are kept until the batch is over.
                let bytes = unsafe { std::slice::from_raw_parts(send.start, send.len) };
                self.failed.push_back((send.fd, bytes[sent..].to_vec()));
            }
        }
    }

    pub(crate) fn next_failed(&mut self) -> Option<(usize, Vec<u8>)> {
        self.failed.pop_front()
    }

    /// What a connection's send has left.
    pub(crate) fn take_failed(&mut self, fd: usize) -> Option<Vec<u8>> {
        let place = self.failed.iter().position(|(failed, _)| *failed == fd)?;
        self.failed.remove(place).map(|(_, bytes)| bytes)
    }

    /// All sends have been made: buffers go back to the kernel.
    pub(crate) fn recycle(&mut self) {
        self.sends.clear();
        self.used = 0;
        for buffer in self.lent.drain(..) {
            let place = usize::from(self.tail & (BUFFERS - 1));
            let address =
                self.buffers.wrapping_add(usize::from(buffer) * BUFFER_BYTES).expose_provenance()
                    as u64;
            let entry = self.row.cast::<Entry>().wrapping_add(place);
            // The tail of the row lies in the first entry, so the fields are written one by one.
            // SAFETY: the place is one of the row, which the kernel reads when the tail has passed
            // it.
            unsafe { (*entry).address = address };
            // SAFETY: as above.
            unsafe { (*entry).len = BUFFER_BYTES as u32 };
            // SAFETY: as above.
            unsafe { (*entry).buffer = buffer };
            self.tail = self.tail.wrapping_add(1);
        }
        let tail = self.row.cast::<u16>().wrapping_add(std::mem::offset_of!(Entry, tail) / 2);
        // SAFETY: the first entry's last field, which is aligned, and which only this thread
        // writes.
        let tail = unsafe { AtomicU16::from_ptr(tail) };
        tail.store(self.tail, Ordering::Release);
        while let Some(fd) = self.starved.pop() {
            self.receive(fd);
        }
    }

    /// What has come, but for sends.
    pub(crate) fn next(&mut self) -> Option<Came> {
        loop {
            let (data, result, flags) = self.kept.pop_front()?;
            let fd = data as u32 as usize;
            let has_more = cqueue::more(flags);
            return Some(match data >> 32 {
                ACCEPT if !has_more => Came::AcceptOver,
                ACCEPT if result < 0 => continue,
                ACCEPT => Came::Connection(result as usize),
                POLL => Came::Writable(fd),
                _ => match result {
                    1.. => {
                        let buffer = cqueue::buffer_select(flags)?;
                        self.lent.push(buffer);
                        if !has_more {
                            self.starved.push(fd);
                        }
                        Came::Bytes { fd, buffer, len: result as usize }
                    }
                    _ if result == -libc::ENOBUFS => Came::NoBuffer(fd),
                    _ => Came::End(fd),
                },
            });
        }
    }
}
