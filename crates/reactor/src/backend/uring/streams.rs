//! Streams by completion: receives that the kernel repeats by itself, and sends that go out with
//! the wait.
//!
//! A stream has one multishot receive under way, which takes buffers from the [`Pool`]. What it
//! brings stands in [`Uring::done`] for as long as the batch has the event that tells of it. A
//! receive that finds no buffer is armed again when the sends of the turn are gone, and with them
//! their buffers; no more of them at a time than there are buffers.
//!
//! A turn's sends are put into the queue when the next wait begins, and go out in the call that
//! waits ([`Sends`](super::sends::Sends)).
//!
//! # The protocol of this module
//!
//! 1. Memory that the kernel writes to is the pool's, which is not freed while a receive may be
//!    under way: [`Uring::close`] waits for their end, or keeps the pool for ever.
//! 2. Memory that a send names is kept by [`Sends`](super::sends::Sends) until `settle_sends` has
//!    seen the queue of submissions empty and the queue of completions empty after it, none being
//!    kept back by the kernel.
//! 3. A receive is counted among the cell's requests from the moment when it is queued, or waits in
//!    `awaiting_buffer`, until its final completion was noted. A cell of `awaiting_buffer` is
//!    allocated therefore.

#![allow(unsafe_code, reason = "queue entries that name memory; the protocol above")]

use std::{sync::Arc, time::Instant};

use io_uring::{opcode, squeue, types};
use rustix::io::Errno;

use super::{
    COMPLETION, Cell, Completion, Uring,
    features::RingFeatures,
    pool::{Lent, Pool, PoolSize},
    sends::{COPIED_MAX, Failed, LENT_MAX, SHARED_MAX, Source},
    tag,
};
use crate::{cell::Flags, stream::Shared};

/// The group of the pool's buffers, the only one.
const GROUP: u16 = 0;

/// linux/io_uring.h.
const IOU_PBUF_RING_INC: u16 = 2;

/// How a send is made: at once and whole, or it tells what is left. See
/// [`Sends`](super::sends::Sends).
const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

/// In an event's conditions, beside [`COMPLETION`]: it is a receive that goes on and has brought
/// bytes, no more at a time than handlers are told to expect.
const GOES_ON: u32 = COMPLETION >> 1;

/// Both.
pub(crate) const BROUGHT: u32 = COMPLETION | GOES_ON;

/// In place of an index of [`Uring::done`]: sends have failed.
const FAILED: u32 = GOES_ON - 1;

/// The most bytes that a handler is told to expect at a time.
const SCRATCH_MAX: i32 = 64 << 10;

/// A completion of a stream's receive.
pub(crate) struct Done {
    /// How many bytes it has brought, or an error number below zero.
    pub(crate) result: i32,
    /// The receive goes on.
    pub(crate) has_more: bool,
    pub(crate) lent: Option<Lent>,
}

/// Whether streams go by completion.
#[derive(Default)]
pub(super) enum Streams {
    /// There were none yet.
    #[default]
    Untried,
    /// The kernel cannot: they go by readiness.
    Refused,
    By(Pool),
}

impl Uring {
    /// Whether streams go by completion. Makes the pool when it is asked first.
    pub(crate) fn completes(&mut self) -> bool {
        if matches!(self.streams, Streams::Untried) {
            self.streams = self.make_pool().map_or(Streams::Refused, Streams::By);
        }
        matches!(self.streams, Streams::By(_))
    }

    fn pool(&self) -> Option<&Pool> {
        match &self.streams {
            Streams::By(pool) => Some(pool),
            _ => None,
        }
    }

    /// How many bytes the pool has.
    pub(crate) fn pool_bytes(&self) -> usize {
        self.pool().map_or(0, |pool| pool.size().bytes())
    }

    /// The ring may write to the pool after its own end.
    #[cold]
    pub(super) fn keep_pool(&self) {
        if let Some(pool) = self.pool() {
            pool.keep_for_ever();
        }
    }

    fn make_pool(&self) -> Option<Pool> {
        // Multishot receives came with the same kernel as rings for one thread, and no flag tells
        // of them.
        let needed = [RingFeatures::SINGLE_ISSUER, RingFeatures::SKIP_SUCCESS];
        if !needed.iter().all(|feature| self.features().has(*feature)) || self.fork.is_child() {
            return None;
        }
        let sizes = [(PoolSize::INCREMENTAL, IOU_PBUF_RING_INC), (PoolSize::PLAIN, 0)];
        let mut tries = sizes
            .iter()
            .filter(|(_, flags)| *flags == 0 || self.features().has(RingFeatures::INCREMENTAL));
        tries.find_map(|(size, flags)| {
            let pool = Pool::new(self.settings.buffers.unwrap_or(*size), *flags != 0).ok()?;
            self.ring
                .register_buffers(pool.row(), pool.size().count, GROUP, *flags)
                .ok()
                .map(|()| pool)
        })
    }

    /// Has what the cell's socket receives put into the pool, until it [ends](Self::end_receive) or
    /// the kernel ends it.
    pub(crate) fn receive(&mut self, cell: Cell) {
        if self.fork.is_child() {
            return;
        }
        cell.request_begins();
        self.queue_receive(cell);
    }

    fn queue_receive(&mut self, cell: Cell) {
        let entry = opcode::RecvMulti::new(types::Fd(cell.fd()), GROUP)
            .build()
            .user_data(cell.expose() | tag::RECEIVE);
        self.named.note(cell.fd());
        self.outstanding += 1;
        // SAFETY: the memory is the pool's (protocol 1).
        unsafe { self.ring.push(&entry) };
    }

    /// As [`receive`](Self::receive), but when there are buffers again.
    #[cold]
    pub(crate) fn receive_later(&mut self, cell: Cell) {
        if !self.fork.is_child() {
            cell.request_begins();
            self.awaiting_buffer.push_back(cell.expose());
        }
    }

    /// Ends a receive. True when it has ended; otherwise its final completion tells.
    pub(crate) fn end_receive(&mut self, cell: Cell) -> bool {
        if self.fork.is_child() || cell.requests() == 0 {
            // Its final completion may wait to be reported.
            return self.fork.is_child();
        }
        let address = cell.expose();
        if let Some(place) =
            self.awaiting_buffer.iter().position(|awaiting_buffer| *awaiting_buffer == address)
        {
            self.awaiting_buffer.remove(place);
            cell.request_ends();
            return true;
        }
        self.ring.cancel(address | tag::RECEIVE, tag::CONTROL);
        false
    }

    /// Arms receives that have found no buffer.
    #[cold]
    pub(super) fn rearm_awaiting_buffer(&mut self) {
        if self.sends.any() {
            // Buffers that hold answers are free when these are out.
            self.push_sends();
            let _ = self.enter(false, None);
            self.settle_sends();
        }
        let Some(pool) = self.pool() else { return };
        pool.grow();
        let count = pool.out().min(self.awaiting_buffer.len());
        for _ in 0..count {
            let Some(address) = self.awaiting_buffer.pop_front() else { break };
            // SAFETY: a cell of `awaiting_buffer` is owed a request, so its block is allocated
            // (protocol 3).
            let cell = unsafe { Cell::from_exposed(address) };
            self.queue_receive(cell);
        }
    }

    /// What a completion is to its stream.
    #[inline]
    pub(super) fn keep_done(&mut self, completion: Completion) -> u32 {
        if completion.user_data & tag::MASK == tag::SEND {
            return COMPLETION | FAILED;
        }
        let lent = self.pool().and_then(|pool| pool.claim(completion.result, completion.flags));
        // A turn has far fewer than there are indices.
        let index = u32::try_from(self.done.len()).unwrap_or(FAILED).min(FAILED);
        let is_brought = completion.has_more() && (1..=SCRATCH_MAX).contains(&completion.result);
        self.done.push(Some(Done {
            result: completion.result,
            has_more: completion.has_more(),
            lent,
        }));
        COMPLETION | index | if is_brought { GOES_ON } else { 0 }
    }

    /// What an event with these conditions is about, once; nothing when it is sends that have
    /// failed.
    ///
    /// It is asked before the completion is handled: answers of those before it are submitted if
    /// they have waited for long enough.
    #[inline]
    pub(crate) fn take_done(&mut self, ready: u32) -> Option<Done> {
        if self.sends.wait() && self.pace.looks() {
            self.submit_due();
        }
        self.done.get_mut((ready & FAILED) as usize)?.take()
    }

    /// Submits answers in the middle of a turn, if they are due. Receives are not asked for: what
    /// is there is handled first.
    #[cold]
    fn submit_due(&mut self) {
        if self.pace.is_due(Instant::now()) {
            self.push_sends();
            self.submit();
            self.settle_sends();
        }
    }

    /// Whether something has come for a stream that its handler has not been told of.
    #[cold]
    pub(crate) fn has_news(&mut self, cell: Cell) -> bool {
        if !self.fork.is_child() {
            let _ = self.enter(false, None);
            self.reap();
        }
        let address = cell.expose();
        self.awaiting_buffer.contains(&address)
            || self.backlog.iter().any(|kept| kept.user_data == address | tag::RECEIVE)
    }

    /// The cell is not polled any more, though it is still watched by its receive.
    pub(crate) fn unpoll(&mut self, cell: Cell) {
        if !self.fork.is_child() {
            self.withdraw(cell);
        }
        // It may be listed.
        cell.set_flag(Flags::DROPPED, true);
    }

    /// A stream may have sends from now on, until it is [forgotten](Self::forget_send).
    pub(crate) fn enroll_sender(&mut self, index: u32, cell: Cell) {
        self.sends.enroll(index, cell.fd(), cell.expose());
    }

    /// Queues an answer, or a short output, to be sent with the next wait. False when the bytes are
    /// not for the ring, or the stream has others there: the caller sends them.
    ///
    /// The choice between a send by the ring and one at once is made here and in
    /// [`queue_shared`](Self::queue_shared): see [`LENT_MAX`] and [`COPIED_MAX`].
    #[inline]
    pub(crate) fn queue_send(&mut self, index: u32, bytes: &[u8]) -> bool {
        let Streams::By(pool) = &self.streams else { return false };
        if !self.sends.is_free(index) {
            return false;
        }
        let source = match pool.lend_again(bytes) {
            Some(lent) if bytes.len() <= LENT_MAX => Source::Lent(lent, bytes),
            _ if bytes.len() <= COPIED_MAX => Source::Copied(bytes),
            _ => return false,
        };
        self.sends.add(index, source);
        true
    }

    /// As [`queue_send`](Self::queue_send), for bytes that others may be sent too: they are copied
    /// once a turn.
    ///
    /// A handler may still have the input that they lie in, and change it, so they are not sent
    /// from there.
    #[inline]
    pub(crate) fn queue_shared(&mut self, index: u32, shared: &Shared<'_>) -> bool {
        if !self.sends.is_free(index) {
            return false;
        }
        let bytes = shared.bytes();
        let source = match (self.sends.copied(shared.copied()), shared.if_kept()) {
            (Some(copied), _) => {
                Source::Again(copied, u32::try_from(bytes.len()).unwrap_or(u32::MAX))
            }
            (None, Some(kept)) if bytes.len() > COPIED_MAX => Source::Shared(kept),
            (None, _) if bytes.len() > SHARED_MAX => return false,
            // Where it is for one alone, one call costs less than a copy.
            (None, _) if bytes.len() > COPIED_MAX && !shared.is_for_many() => return false,
            (None, _) => {
                let copied = self.sends.copy(bytes);
                shared.note_copied(copied);
                Source::Again(copied, u32::try_from(bytes.len()).unwrap_or(u32::MAX))
            }
        };
        self.sends.add(index, source);
        true
    }

    /// Takes a stream's send back, if it has one, and gives its bytes to `keep`, and what they can
    /// be kept by. One that is in the kernel's hands already is seen through: then it may have
    /// [failed](Self::failed).
    pub(crate) fn take_send_back(
        &mut self,
        index: u32,
        keep: impl FnOnce(&[u8], Option<&Arc<[u8]>>),
    ) {
        if self.sends.has(index) && !self.sends.take_back(index, keep) {
            self.see_sends_through();
        }
    }

    #[cold]
    fn see_sends_through(&mut self) {
        self.retry_submit();
        self.settle_sends();
    }

    /// Whether a stream has a send of which it is not known what has become of it.
    #[inline]
    pub(crate) fn has_send(&self, index: u32) -> bool {
        self.sends.has(index)
    }

    /// The stream is gone.
    pub(crate) fn forget_send(&mut self, index: u32) {
        self.sends.forget(index);
    }

    /// Sends that have failed and that nobody has looked at.
    #[inline]
    pub(crate) fn failed(&mut self) -> &mut Vec<Failed> {
        &mut self.sends.failed
    }

    /// Puts the sends into the queue.
    pub(super) fn push_sends(&mut self) {
        while let Some(send) = self.sends.next() {
            let entry = opcode::Send::new(types::Fd(send.fd), send.start, send.len)
                .flags(SEND_FLAGS)
                .build();
            let entry = entry
                .flags(squeue::Flags::SKIP_SUCCESS)
                .user_data(u64::from(send.number) << 3 | tag::SEND);
            self.named.note(send.fd);
            // SAFETY: the bytes are kept until the send's outcome is known (protocol 2).
            unsafe { self.ring.push(&entry) };
        }
    }

    /// After a call that has submitted sends: notes those that have failed, and lets go of the
    /// bytes of the others.
    #[inline]
    pub(super) fn settle_sends(&mut self) {
        self.reap();
        while self.ring.has_overflowed() {
            // The kernel keeps completions that found no room. It brings them now.
            if self.enter(false, None).is_err() {
                return;
            }
            self.reap();
        }
        if self.ring.queued() == 0 && !self.sends.wait() {
            self.sends.finish();
        }
    }

    /// Submits all that is queued and notes what becomes of it, without a wait: for a turn after
    /// which the next wait may be long in coming.
    pub(crate) fn submit_now(&mut self) {
        if self.fork.is_child() {
            return;
        }
        self.push_sends();
        if self.ring.queued() > 0 {
            // What it refuses now it is offered again by the next wait.
            let _ = self.enter(false, None);
        }
        if self.sends.any() {
            self.settle_sends();
        }
    }
}

/// A completion of a send: its number.
pub(super) fn number_of(user_data: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "it was a `u32`")]
    let number = (user_data >> 3) as u32;
    number
}

/// The receive has found no buffer.
pub(crate) const NO_BUFFER: Errno = Errno::NOBUFS;
