//! The sends for the next io_uring_enter(2): at most one per stream, with the owner of its bytes.
//!
//! Every send is `MSG_DONTWAIT | MSG_WAITALL`, and posts no completion if it succeeds. So it runs
//! inside the system call that submits it. After that call the completion queue is read. Every send
//! without a completion there has sent all of its bytes. A send with a completion is [`Failed`]:
//! the rest of its bytes returns to the stream.
//!
//! # The protocol of this module
//!
//! 1. A send's bytes are neither changed nor freed before [`Sends::finish`], or before its
//!    [`Failed`] was made. They are in a buffer of the pool that `buffers` holds, kept by an
//!    [`Arc`], or copied to `copies`, whose chunks are not moved.
//! 2. [`Sends::finish`] is called when no send is left in the ring's queue and every completion
//!    that was there afterwards has been passed to [`Sends::fail`].
//! 3. A send that is in the queue, [`pushed`](Sends::pushed), cannot be withdrawn.

#![allow(unsafe_code, reason = "bytes are read by where they are; the protocol above")]

use core::{num::NonZeroU32, slice};
use std::sync::Arc;

use super::{
    copies::{CHUNK, Copied, Copies},
    pool::Held,
};
use crate::backend::completions::{Failed, Rest};

/// The maximum length of a reply that the ring sends from the receive buffer. Longer replies are
/// sent at once, while they are in the processor's cache. Their buffer is then free for the next
/// receive.
pub(crate) const LENT_MAX: usize = 8 << 10;

/// The maximum number of bytes that are copied to be sent by the ring. Copying more costs about as
/// much as the system call that it saves.
pub(crate) const COPIED_MAX: usize = 4 << 10;

/// The maximum number of bytes that are copied once for several streams.
pub(crate) const SHARED_MAX: usize = CHUNK;

#[derive(Clone, Copy)]
struct Send {
    /// The stream's index in its table, or [`NO_STREAM`] if it was removed.
    index: u32,
    /// The stream's socket, or [`NO_FD`] if the send was withdrawn or has failed.
    fd: i32,
    start: *const u8,
    len: u32,
}

/// Stands for the index of a removed stream.
const NO_STREAM: u32 = u32::MAX;

/// Stands for the socket of a send that is no more.
const NO_FD: i32 = -1;

/// The data of a stream that its sends need.
#[derive(Clone, Copy, Default)]
struct Row {
    /// The address of the stream's cell; zero if there is none.
    cell: u64,
    fd: i32,
    /// The number of its last send.
    last: u32,
}

/// A stream that may have a send, and has none.
#[derive(Clone, Copy)]
pub(super) struct Free {
    index: u32,
    fd: i32,
}

/// Bytes to send, and their owner.
pub(crate) enum Source<'b> {
    /// A reply, sent from the buffer where the bytes were received. It must be held.
    Received(&'b [u8]),
    Shared(&'b Arc<[u8]>),
    Copied(&'b [u8]),
    /// Bytes that were already copied in this turn.
    Again(Copied),
}

/// The parts of a send that its queue entry needs.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) number: u32,
    pub(super) fd: i32,
    pub(super) start: *const u8,
    pub(super) len: u32,
}

#[derive(Default)]
pub(crate) struct Sends {
    sends: Vec<Send>,
    /// The number of the first send.
    first: u32,
    /// The number of sends with an entry in the ring's queue.
    pushed: usize,
    /// Indexed by the stream's index.
    rows: Vec<Row>,
    copies: Copies,
    /// Buffers from which replies are sent, and the last one's number.
    buffers: Vec<Held>,
    held: Option<NonZeroU32>,
    /// Shared bytes that are sent. The same bytes to many streams in a row are kept once.
    shared: Vec<Arc<[u8]>>,
    pub(crate) failed: Vec<Failed>,
}

impl Send {
    fn bytes(&self) -> &[u8] {
        // SAFETY: The bytes stay allocated and unchanged as long as the send exists (protocol 1).
        unsafe { slice::from_raw_parts(self.start, self.len as usize) }
    }
}

/// The number of a buffer in a form in which an `Option` is compared as one number.
#[inline(always)]
const fn named(buffer: u16) -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(buffer as u32)
}

/// [`Vec::push`], but the value is written to its place at once.
#[inline(always)]
pub(super) fn push<T>(vec: &mut Vec<T>, value: T) {
    if vec.len() == vec.capacity() {
        make_room(vec);
    }
    let len = vec.len();
    // SAFETY: There is room for one more element behind the present ones.
    let place = unsafe { vec.as_mut_ptr().add(len) };
    // SAFETY: The place is inside the vector's memory, and holds no value yet.
    unsafe { place.write(value) };
    // SAFETY: The element has just been written.
    unsafe { vec.set_len(len + 1) };
}

#[cold]
#[inline(never)]
fn make_room<T>(vec: &mut Vec<T>) {
    vec.reserve(1);
}

impl Sends {
    /// Whether sends wait to be put into the ring's queue.
    #[inline]
    pub(super) fn wait(&self) -> bool {
        self.pushed < self.sends.len()
    }

    /// Whether there are sends whose result is not known yet.
    #[inline]
    pub(super) fn any(&self) -> bool {
        !self.sends.is_empty()
    }

    fn place_of(&self, index: u32) -> Option<usize> {
        let place = self.rows.get(index as usize)?.last.wrapping_sub(self.first) as usize;
        let send = self.sends.get(place)?;
        (send.index == index && send.fd != NO_FD).then_some(place)
    }

    /// Whether a stream has a send.
    #[inline]
    pub(crate) fn has(&self, index: u32) -> bool {
        !self.sends.is_empty() && self.place_of(index).is_some()
    }

    /// Allows sends of a stream. Its cell stays allocated until the stream is
    /// [forgotten](Self::forget).
    pub(crate) fn enroll(&mut self, index: u32, fd: i32, cell: u64) {
        if self.rows.len() <= index as usize {
            self.rows.resize(index as usize + 1, Row::default());
        }
        let row = &mut self.rows[index as usize];
        (row.cell, row.fd) = (cell, fd);
    }

    /// The number of the next send.
    #[inline]
    fn next_number(&self) -> u32 {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "numbers come round, and are told apart by the stream"
        )]
        let count = self.sends.len() as u32;
        self.first.wrapping_add(count)
    }

    /// The stream, if it may have a send and has none. Its next send must be [added](Self::add)
    /// before another stream is asked for.
    #[inline(always)]
    pub(super) fn free(&mut self, index: u32) -> Option<Free> {
        let number = self.next_number();
        let row = self.rows.get_mut(index as usize).filter(|row| row.cell != 0)?;
        if let Some(send) = self.sends.get(row.last.wrapping_sub(self.first) as usize) {
            if send.index == index && send.fd != NO_FD {
                return None;
            }
        }
        // Without a send of this number, or with another stream's, the row has no send.
        row.last = number;
        Some(Free { index, fd: row.fd })
    }

    /// Adds a send of a stream that is free.
    #[inline(always)]
    pub(super) fn add(&mut self, stream: Free, source: Source<'_>) {
        let Free { index, fd } = stream;
        debug_assert!(
            self.rows[index as usize].last == self.next_number(),
            "two sends at a time would mix their bytes"
        );
        let (start, len) = match source {
            // Derives the pointer from the reference that the handler has given up. The handler's
            // frame is still on the stack, and has exclusive access to the bytes through that
            // reference and pointers derived from it.
            Source::Received(bytes) => (bytes.as_ptr(), bytes.len()),
            Source::Shared(bytes) => {
                if !self.shared.last().is_some_and(|last| Arc::ptr_eq(last, bytes)) {
                    self.shared.push(Arc::clone(bytes));
                }
                (bytes.as_ptr(), bytes.len())
            }
            Source::Copied(bytes) => (self.copies.keep(bytes), bytes.len()),
            Source::Again(copied) => self.copies.find(copied),
        };
        let len = u32::try_from(len).expect("what is sent by the ring is short");
        push(&mut self.sends, Send { index, fd, start, len });
    }

    /// Whether a buffer is held until the next [`finish`](Self::finish).
    #[inline(always)]
    pub(super) fn holds(&self, buffer: u16) -> bool {
        // Replies of a turn come from a few buffers, one after the other.
        self.held == Some(named(buffer))
    }

    /// Holds a buffer from which replies are sent.
    #[cold]
    pub(super) fn hold(&mut self, buffer: u16, held: Held) {
        self.held = Some(named(buffer));
        self.buffers.push(held);
    }

    /// Copies bytes that may be sent to several streams in this turn.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Copied {
        self.copies.copy(bytes)
    }

    /// Whether those bytes were copied in this turn.
    #[inline]
    pub(crate) fn has_copied(&self, copied: Copied) -> bool {
        self.copies.has(copied)
    }

    /// The sends that are not in the ring's queue yet. The caller puts all of them there.
    #[inline(always)]
    pub(super) fn next_entries(&mut self) -> impl Iterator<Item = Entry> {
        let from = core::mem::replace(&mut self.pushed, self.sends.len());
        #[expect(clippy::cast_possible_truncation, reason = "numbers come round")]
        let mut number = self.first.wrapping_add(from as u32).wrapping_sub(1);
        // A send that is not in the queue yet has a stream: before a stream is removed, its send is
        // withdrawn or submitted.
        self.sends[from..].iter().filter_map(move |send| {
            number = number.wrapping_add(1);
            let Send { fd, start, len, .. } = *send;
            (fd != NO_FD).then_some(Entry { number, fd, start, len })
        })
    }

    /// The owner of a send's bytes, if they are shared.
    fn owner(&self, send: Send) -> Option<&Arc<[u8]>> {
        self.shared.iter().find(|bytes| bytes.as_ptr() == send.start)
    }

    fn rest(&self, send: Send, sent: usize) -> Rest {
        match self.owner(send) {
            Some(bytes) => Rest::Shared(Arc::clone(bytes), sent),
            None => Rest::Own(send.bytes()[sent..].to_vec()),
        }
    }

    /// Withdraws a stream's send and passes its bytes and their owner to `keep`. False if it is
    /// already in the ring's queue (protocol 3).
    pub(crate) fn take_back(
        &mut self,
        index: u32,
        keep: impl FnOnce(&[u8], Option<&Arc<[u8]>>),
    ) -> bool {
        let Some(place) = self.place_of(index).filter(|place| *place >= self.pushed) else {
            return false;
        };
        let send = self.sends[place];
        self.sends[place].fd = NO_FD;
        keep(send.bytes(), self.owner(send));
        true
    }

    /// The stream is removed: the result of its send is not reported. A send that is not in the
    /// queue yet is dropped.
    pub(crate) fn forget(&mut self, index: u32) {
        if let Some(place) = self.place_of(index) {
            let send = &mut self.sends[place];
            if place >= self.pushed {
                send.fd = NO_FD;
            } else {
                send.index = NO_STREAM;
            }
        }
        self.failed.retain(|failed| failed.index != index);
        if let Some(row) = self.rows.get_mut(index as usize) {
            row.cell = 0;
        }
    }

    /// Records that a send has failed, and returns the cell to notify.
    #[cold]
    pub(super) fn fail(&mut self, number: u32, result: i32) -> Option<u64> {
        let place = self.sends.get_mut(number.wrapping_sub(self.first) as usize)?;
        let send = *place;
        if send.fd == NO_FD {
            return None;
        }
        place.fd = NO_FD;
        let index = send.index;
        let cell = self.rows.get(index as usize).map(|row| row.cell).filter(|cell| *cell != 0)?;
        let sent = usize::try_from(result).unwrap_or(0).min(send.len as usize);
        let rest = self.rest(send, sent);
        self.failed.push(Failed { index, result, rest });
        Some(cell)
    }

    /// All sends that have not failed have sent all of their bytes (protocol 2).
    #[inline]
    pub(super) fn finish(&mut self) {
        #[expect(clippy::cast_possible_truncation, reason = "numbers come round")]
        let count = self.sends.len() as u32;
        self.first = self.first.wrapping_add(count);
        self.sends.clear();
        self.pushed = 0;
        self.copies.clear();
        self.held = None;
        self.buffers.clear();
        self.shared.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With `streams` streams, whose cells are at multiples of eight.
    fn sends_of(streams: u32) -> Sends {
        let mut sends = Sends::default();
        (0..streams).for_each(|index| sends.enroll(index, 3, 8 * u64::from(index + 1)));
        sends
    }

    fn add(sends: &mut Sends, index: u32, source: Source<'_>) {
        let stream = sends.free(index).expect("it has no send");
        sends.add(stream, source);
    }

    fn push_all(sends: &mut Sends) -> Vec<Entry> {
        sends.next_entries().collect()
    }

    fn own(rest: Rest) -> Vec<u8> {
        match rest {
            Rest::Own(bytes) => bytes,
            Rest::Shared(bytes, from) => bytes[from..].to_vec(),
        }
    }

    #[test]
    fn a_send_is_taken_back_before_it_is_in_the_queue_and_not_after() {
        let mut sends = sends_of(8);
        add(&mut sends, 0, Source::Copied(b"one"));
        add(&mut sends, 5, Source::Copied(b"two"));
        assert!(sends.has(0) && sends.has(5) && !sends.has(1) && !sends.has(9));
        assert!(
            sends.take_back(0, |bytes, shared| assert_eq!((bytes, shared), (&b"one"[..], None)))
        );
        assert!(!sends.has(0));
        let entries = push_all(&mut sends);
        assert_eq!((entries.len(), entries[0].number, entries[0].len), (1, 1, 3));
        assert!(!sends.wait() && push_all(&mut sends).is_empty());
        assert!(sends.free(5).is_none() && sends.free(9).is_none());
        assert!(!sends.take_back(5, |_, _| unreachable!("it is in the queue")) && sends.has(5));
        sends.finish();
        assert!(!sends.has(5) && !sends.any());
    }

    #[test]
    fn what_was_not_sent_is_the_streams_again() {
        let mut sends = sends_of(3);
        let shared: Arc<[u8]> = Arc::from(&b"shared"[..]);
        add(&mut sends, 0, Source::Copied(b"hello"));
        add(&mut sends, 1, Source::Shared(&shared));
        add(&mut sends, 2, Source::Copied(b"gone"));
        assert_eq!(push_all(&mut sends).len(), 3);
        sends.forget(2);
        assert_eq!(sends.fail(0, 2), Some(8));
        assert_eq!(sends.fail(1, -11), Some(16));
        assert_eq!(sends.fail(2, -32), None);
        assert_eq!(sends.fail(0, 2), None, "once");
        sends.finish();
        let rests: Vec<_> =
            sends.failed.drain(..).map(|failed| (failed.result, own(failed.rest))).collect();
        assert_eq!(rests, [(2, b"llo".to_vec()), (-11, b"shared".to_vec())]);
        assert_eq!(sends.fail(1, 0), None, "numbers do not come again at once");
    }

    #[test]
    fn bytes_for_many_are_copied_once_a_turn() {
        let mut sends = sends_of(3);
        let copied = sends.copy(b"for all");
        assert!(sends.has_copied(copied) && !sends.has_copied(Copied::NONE));
        (0..3).for_each(|index| add(&mut sends, index, Source::Again(copied)));
        let starts: Vec<_> =
            push_all(&mut sends).iter().map(|entry| (entry.start, entry.len)).collect();
        assert_eq!((starts.len(), starts[0], starts[1]), (3, starts[2], starts[2]));
        assert_eq!(sends.fail(1, 3), Some(16));
        assert_eq!(own(sends.failed.remove(0).rest), b" all");
        sends.finish();
        assert!(!sends.has_copied(copied), "it is gone with the turn");
        assert!(!sends_of(1).has_copied(copied), "another reactor has not copied it");
    }

    #[test]
    fn who_is_forgotten_is_sent_nothing_and_told_nothing() {
        let mut sends = sends_of(3);
        (0..2).for_each(|index| add(&mut sends, index, Source::Copied(b"hello")));
        let numbers: Vec<_> = push_all(&mut sends).iter().map(|entry| entry.number).collect();
        assert_eq!(numbers, [0, 1]);
        add(&mut sends, 2, Source::Copied(b"hello"));
        assert_eq!(sends.fail(0, -32), Some(8));
        (0..3).for_each(|index| sends.forget(index));
        assert!(sends.failed.is_empty() && push_all(&mut sends).is_empty());
        // The index now belongs to another stream.
        sends.enroll(1, 4, 800);
        assert!(sends.free(1).is_some() && sends.fail(1, -32).is_none());
        assert!(sends.failed.is_empty());
    }

    #[test]
    fn a_stream_that_was_asked_for_in_vain_has_no_send() {
        let mut sends = sends_of(3);
        assert!(sends.free(0).is_some());
        // The number that the first stream would have had.
        add(&mut sends, 1, Source::Copied(b"second"));
        assert!(!sends.has(0) && sends.has(1));
        add(&mut sends, 0, Source::Copied(b"first"));
        let entries = push_all(&mut sends);
        assert_eq!(entries.iter().map(|entry| entry.len).collect::<Vec<_>>(), [6, 5]);
        assert_eq!((sends.fail(0, 0), sends.fail(1, 0)), (Some(16), Some(8)));
    }
}
