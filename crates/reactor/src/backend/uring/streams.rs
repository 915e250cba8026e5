//! Streams by completion: receives that the kernel repeats, and sends that are submitted with the
//! wait.
//!
//! A stream has one receive in flight, which takes buffers from the [`Pool`]. It is a multishot
//! receive, except for the first one of a stream whose socket is lent: that one ends with the first
//! bytes. Many such streams answer them and are dropped, and then there is nothing to cancel.
//!
//! A completion is kept in [`Uring::done`] as long as the batch contains the event that reports it.
//! A receive that finds no buffer is armed again when the turn's sends are done and have released
//! their buffers. No more receives are armed at a time than there are buffers.
//!
//! A turn's sends are put into the queue when the next wait begins, and are submitted by the system
//! call that waits ([`Sends`](super::sends::Sends)).
//!
//! # The protocol of this module
//!
//! 1. The kernel writes only to memory of the pool. The pool is not freed while a receive may be in
//!    flight: [`Uring::close`] waits until all have ended, or keeps the pool forever.
//! 2. [`Sends`](super::sends::Sends) keeps the memory that a send names until `settle_sends` has
//!    seen the submission queue empty. After that it must have seen the completion queue empty,
//!    with no completion kept back by the kernel.
//! 3. A receive counts among the cell's requests from the moment when it is queued, or waits in
//!    `awaiting_buffer` or `to_receive`, until its final completion was recorded. Therefore a cell
//!    in one of these is allocated.

#![allow(unsafe_code, reason = "queue entries that name memory; the protocol above")]

use std::{collections::VecDeque, sync::Arc};

use io_uring::{opcode, squeue, types};

use super::{
    Cell, Completion, TO_ARM_KEPT, TO_ARM_SPARE, Uring,
    pool::{Claim, Pool, ReceivedPart},
    sends::{COPIED_MAX, Free, LENT_MAX, SHARED_MAX, Source, push},
    tag,
};
use crate::{
    backend::{
        completions::{BROUGHT, COMPLETION, Done, Failed, GOES_ON, Times},
        ring_settings::{PoolSize, RingFeatures},
        shared_bytes::SharedBytes,
    },
    cell::CellFlags as Flags,
};

/// The only group of buffers, that of the pool.
const GROUP: u16 = 0;

/// From linux/io_uring.h.
const IOU_PBUF_RING_INC: u16 = 2;

/// A send does not block, and posts a completion only if it did not send everything. See
/// [`Sends`](super::sends::Sends).
const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

/// Instead of an index of [`Uring::done`]: sends have failed.
const FAILED: u32 = GOES_ON - 1;

/// The maximum number of bytes that a handler gets at a time.
const SCRATCH_MAX: i32 = 64 << 10;

/// A completion that waits for its event to be dispatched.
pub(super) struct Waiting {
    claim: Option<Claim>,
    result: i32,
    has_more: bool,
}

/// Whether streams work by completion.
#[derive(Default)]
pub(super) enum Streams {
    /// No stream was registered yet.
    #[default]
    Untried,
    /// The kernel does not support it: streams work by readiness.
    Unsupported,
    By(Pool),
}

/// The event of a completion of a receive that goes on and [has brought](BROUGHT) bytes. `None` for
/// others. [`Uring::keep_done`] handles those. The caller counts it as untaken.
#[inline(always)]
pub(super) fn keep_brought(
    streams: &Streams,
    done: &mut Vec<Waiting>,
    completion: Completion,
) -> Option<u32> {
    let Streams::By(pool) = streams else { return None };
    let Completion { result, flags, .. } = completion;
    let index = done.len();
    if !(1..=SCRATCH_MAX).contains(&result) || index >= FAILED as usize {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "it is below `FAILED`")]
    let index = index as u32;
    let claim = pool.claim_bytes(result.unsigned_abs(), flags)?;
    push(done, Waiting { claim: Some(claim), result, has_more: true });
    Some(BROUGHT | index)
}

impl Uring {
    /// Whether streams work by completion. The first call creates the pool.
    pub(crate) fn completes(&mut self) -> bool {
        if matches!(self.streams, Streams::Untried) {
            self.streams = self.make_pool().map_or(Streams::Unsupported, Streams::By);
        }
        matches!(self.streams, Streams::By(_))
    }

    fn pool(&self) -> Option<&Pool> {
        match &self.streams {
            Streams::By(pool) => Some(pool),
            _ => None,
        }
    }

    /// The size of the pool in bytes.
    pub(crate) fn pool_bytes(&self) -> usize {
        self.pool().map_or(0, |pool| pool.size().bytes())
    }

    /// Keeps the pool forever, because the ring may write to it after it was closed.
    #[cold]
    pub(super) fn keep_pool(&self) {
        if let Some(pool) = self.pool() {
            pool.keep_for_ever();
        }
    }

    fn make_pool(&self) -> Option<Pool> {
        // No flag indicates multishot receives. They came with the same kernel as
        // `IORING_SETUP_SINGLE_ISSUER`.
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

    /// Receives from the cell's socket into the pool, until the receive is
    /// [ended](Self::end_receive) or the kernel ends it.
    pub(crate) fn receive(&mut self, cell: Cell) {
        if self.fork.is_child() {
            return;
        }
        cell.request_begins();
        self.queue_receive(cell, Times::Many);
    }

    /// Like [`receive`](Self::receive), but starts when the next wait begins. Until then its end
    /// takes no system call.
    pub(crate) fn receive_soon(&mut self, cell: Cell, times: Times) {
        if !self.fork.is_child() {
            cell.request_begins();
            self.to_receive.push_back((cell.expose(), times));
        }
    }

    /// Starts the receives that have waited for the next wait.
    pub(super) fn start_receives(&mut self) {
        let mut waiting = core::mem::take(&mut self.to_receive);
        let is_far_too_large = waiting.len() < waiting.capacity() / TO_ARM_SPARE;
        for (address, times) in waiting.drain(..) {
            // SAFETY: A cell in `to_receive` is owed a request, so its block is allocated (protocol
            // 3).
            let cell = unsafe { Cell::from_exposed(address) };
            self.queue_receive(cell, times);
        }
        // As with the polls to arm (rule 12).
        if is_far_too_large && waiting.capacity() > TO_ARM_KEPT {
            waiting.shrink_to(TO_ARM_KEPT);
        }
        self.to_receive = waiting;
    }

    /// Ends the receives that have not started, when the reactor is dropped. Otherwise they would
    /// take bytes that nobody gets.
    pub(crate) fn withdraw_receives(&mut self) {
        if self.fork.is_child() {
            return;
        }
        for (address, _) in self.to_receive.drain(..) {
            // SAFETY: As above.
            unsafe { Cell::from_exposed(address) }.request_ends();
        }
    }

    fn queue_receive(&mut self, cell: Cell, times: Times) {
        let fd = types::Fd(cell.fd());
        let entry = match times {
            Times::Many => opcode::RecvMulti::new(fd, GROUP).build(),
            Times::Once => opcode::Recv::new(fd, core::ptr::null_mut(), 0)
                .buf_group(GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT),
        };
        let entry = entry.user_data(cell.expose() | tag::RECEIVE);
        self.named.note(cell.fd());
        self.outstanding += 1;
        // SAFETY: The receive writes only to memory of the pool (protocol 1).
        unsafe { self.ring.push(&entry) };
    }

    /// Like [`receive`](Self::receive), but starts when buffers are free again.
    #[cold]
    pub(crate) fn receive_later(&mut self, cell: Cell) {
        if !self.fork.is_child() {
            cell.request_begins();
            self.awaiting_buffer.push_back(cell.expose());
        }
    }

    /// Ends a receive. True if it has ended; otherwise its final completion reports the end.
    pub(crate) fn end_receive(&mut self, cell: Cell) -> bool {
        if self.fork.is_child() || cell.requests() == 0 {
            // Its final completion may be waiting in the backlog.
            return self.fork.is_child();
        }
        let address = cell.expose();
        if let Some(place) = place_in(&self.awaiting_buffer, |waiting| *waiting == address) {
            self.awaiting_buffer.remove(place);
            cell.request_ends();
            return true;
        }
        if let Some(place) = place_in(&self.to_receive, |(waiting, _)| *waiting == address) {
            self.to_receive.remove(place);
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
            // Buffers that hold replies are free when these are sent.
            self.push_sends();
            let _ = self.enter(false, None);
            self.settle_sends();
        }
        let Some(pool) = self.pool() else { return };
        pool.grow();
        let count = pool.out().min(self.awaiting_buffer.len());
        for _ in 0..count {
            let Some(address) = self.awaiting_buffer.pop_front() else { break };
            // SAFETY: A cell in `awaiting_buffer` is owed a request, so its block is allocated
            // (protocol 3).
            let cell = unsafe { Cell::from_exposed(address) };
            self.queue_receive(cell, Times::Many);
        }
    }

    /// The event of a completion for its stream.
    pub(super) fn keep_done(&mut self, completion: Completion) -> u32 {
        if completion.user_data & tag::MASK == tag::SEND {
            return COMPLETION | FAILED;
        }
        if completion.user_data & !tag::MASK == 0 {
            // It belongs to no stream. If it were kept, many of them would fill the place of those
            // that are reported, and a wait would sleep beside the rest.
            self.give_up_receive(completion);
            return 0;
        }
        self.keep_receive(completion)
    }

    /// Returns the buffer of a completion that is not reported.
    #[cold]
    fn give_up_receive(&self, completion: Completion) {
        let Some(pool) = self.pool() else { return };
        if let Some(claim) = pool.claim(completion.result, completion.flags) {
            pool.give_up(claim);
        }
    }

    /// The event of a receive's completion.
    fn keep_receive(&mut self, completion: Completion) -> u32 {
        let claim = self.pool().and_then(|pool| pool.claim(completion.result, completion.flags));
        // A turn has far fewer completions than there are indices.
        #[expect(clippy::cast_possible_truncation, reason = "bounded right before")]
        let index = self.done.len().min(FAILED as usize) as u32;
        let is_brought = completion.has_more() && (1..=SCRATCH_MAX).contains(&completion.result);
        self.untaken += usize::from(claim.is_some());
        let Completion { result, .. } = completion;
        self.done.push(Waiting { claim, result, has_more: completion.has_more() });
        COMPLETION | index | if is_brought { GOES_ON } else { 0 }
    }

    /// Forgets the completions of the last batch. Those that were not taken return their buffers.
    pub(super) fn forget_done(&mut self) {
        debug_assert_eq!(
            self.untaken,
            self.done.iter().filter(|done| done.claim.is_some()).count(),
            "each completion with bytes was counted once"
        );
        if self.untaken > 0 {
            self.untaken = 0;
            if let Streams::By(pool) = &self.streams {
                self.done
                    .iter_mut()
                    .filter_map(|done| done.claim.take())
                    .for_each(|claim| pool.give_up(claim));
            }
        }
        self.done.clear();
    }

    /// Takes the completion of an event with these conditions. Its bytes can be taken once. `None`
    /// if the event reports failed sends.
    pub(crate) fn take_done(&mut self, ready: u32) -> Option<Done> {
        let Waiting { result, has_more, .. } = *self.done.get((ready & FAILED) as usize)?;
        Some(Done { result, has_more, part: self.take_received(ready) })
    }

    /// Takes only the bytes, for an event that [has brought](BROUGHT) some and means nothing else.
    #[inline(always)]
    pub(crate) fn take_received(&mut self, ready: u32) -> Option<ReceivedPart> {
        let Streams::By(pool) = &self.streams else { return None };
        let claim = self.done.get_mut((ready & FAILED) as usize)?.claim.take()?;
        self.untaken -= 1;
        // SAFETY: It lives in a stream's frame, which borrows the reactor and so its pool.
        let part = unsafe { pool.hand_out(claim) };
        self.current = part.part();
        Some(part)
    }

    /// Submits queued replies if they have waited for long enough. Called before each handler of a
    /// turn.
    #[inline(always)]
    pub(crate) fn submit_if_due(&mut self) {
        if self.pace.looks() {
            self.submit_due();
        }
    }

    /// Submits replies during a turn, if they are due. It does not fetch receives: those that have
    /// completed are handled first.
    #[cold]
    fn submit_due(&mut self) {
        if !self.sends.wait() {
            return self.pace.skip();
        }
        if self.pace.is_due(self.ring.now_ns()) {
            self.push_sends();
            self.submit();
            self.settle_sends();
        }
    }

    /// Whether a stream has a completion that its handler has not seen yet.
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

    /// Stops polling the cell. Its receive still watches it.
    pub(crate) fn unpoll(&mut self, cell: Cell) {
        if !self.fork.is_child() {
            self.withdraw(cell);
        }
        // It may be in the list of polls to arm.
        cell.set_flag(Flags::DROPPED, true);
    }

    /// Allows sends of a stream until it is [forgotten](Self::forget_send).
    pub(crate) fn enroll_sender(&mut self, index: u32, cell: Cell) {
        self.sends.enroll(index, cell.fd(), cell.expose());
    }

    /// Queues a reply or a short output for the next wait. False if the bytes are not suited to the
    /// ring, or if the stream has other bytes there: the caller then sends them.
    ///
    /// This function and [`queue_shared`](Self::queue_shared) choose between a send by the ring and
    /// one at once: see [`LENT_MAX`] and [`COPIED_MAX`].
    #[inline(always)]
    pub(crate) fn queue_send(&mut self, index: u32, bytes: &[u8]) -> bool {
        let Streams::By(pool) = &self.streams else { return false };
        let Some(stream) = self.sends.free(index) else { return false };
        if bytes.len() > LENT_MAX {
            return false;
        }
        if let Some(buffer) = self.current.buffer_of(bytes) {
            if !self.sends.holds(buffer) {
                self.sends.hold(buffer, pool.hold(buffer));
            }
            self.sends.add(stream, Source::Received(bytes));
            return true;
        }
        let is_short = bytes.len() <= COPIED_MAX;
        if is_short {
            self.sends.add(stream, Source::Copied(bytes));
        }
        is_short
    }

    /// Like [`queue_send`](Self::queue_send), for bytes that stay with the caller. They are copied,
    /// also if they are in an input, because a handler may still hold that input and change it.
    #[inline]
    pub(crate) fn queue_copied(&mut self, index: u32, bytes: &[u8]) -> bool {
        let Some(stream) = self.sends.free(index) else { return false };
        let is_short = bytes.len() <= COPIED_MAX;
        if is_short {
            self.sends.add(stream, Source::Copied(bytes));
        }
        is_short
    }

    /// Like [`queue_send`](Self::queue_send), for bytes that may be sent to several streams: they
    /// are copied once per turn.
    ///
    /// They are not sent directly from an input that contains them, because a handler may still
    /// hold that input and change it.
    #[inline]
    pub(crate) fn queue_shared(&mut self, index: u32, shared: &SharedBytes<'_>) -> bool {
        let Some(stream) = self.sends.free(index) else { return false };
        let copied = shared.copied();
        if self.sends.has_copied(copied) {
            self.sends.add(stream, Source::Again(copied));
            return true;
        }
        self.queue_shared_first(stream, shared)
    }

    /// The same for bytes that were not copied in this turn.
    #[inline(never)]
    fn queue_shared_first(&mut self, stream: Free, shared: &SharedBytes<'_>) -> bool {
        let bytes = shared.bytes();
        match shared.if_kept() {
            Some(kept) if bytes.len() > COPIED_MAX => {
                self.sends.add(stream, Source::Shared(kept));
            }
            _ if bytes.len() > SHARED_MAX => return false,
            // For a single stream, one system call costs less than a copy.
            _ if bytes.len() > COPIED_MAX && !shared.is_for_many() => return false,
            _ => {
                let copied = self.sends.copy(bytes);
                shared.note_copied(copied);
                self.sends.add(stream, Source::Again(copied));
            }
        }
        true
    }

    /// Withdraws a stream's send, if it has one, and passes its bytes and their owner to `keep`. If
    /// the kernel may already have the send, it is completed instead, and may then have
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

    /// Whether a stream has a send whose result is not known yet.
    #[inline]
    pub(crate) fn has_send(&self, index: u32) -> bool {
        self.sends.has(index)
    }

    /// The stream is removed.
    pub(crate) fn forget_send(&mut self, index: u32) {
        self.sends.forget(index);
    }

    /// Failed sends that were not handled yet.
    #[inline]
    pub(crate) fn failed(&mut self) -> &mut Vec<Failed> {
        &mut self.sends.failed
    }

    /// Puts the sends into the queue.
    pub(super) fn push_sends(&mut self) {
        if !self.sends.wait() {
            return;
        }
        let Self { ring, sends, named, .. } = self;
        named.note_all();
        let entries = sends.next_entries().map(|send| {
            let entry = opcode::Send::new(types::Fd(send.fd), send.start, send.len);
            let number = u64::from(send.number) << 3 | tag::SEND;
            let entry = entry.flags(SEND_FLAGS).build().user_data(number);
            entry.flags(squeue::Flags::SKIP_SUCCESS)
        });
        // SAFETY: The bytes are kept until the result of the send is known (protocol 2).
        unsafe { ring.push_all(entries) };
        // All of them may have been withdrawn. Then no system call follows that clears the names.
        self.forget_names();
    }

    /// Called after a system call that has submitted sends: records the failed ones, and releases
    /// the bytes of the others.
    #[inline]
    pub(super) fn settle_sends(&mut self) {
        self.reap();
        while self.ring.has_overflowed() {
            // The kernel has kept completions that found no room, and delivers them now.
            if self.enter(false, None).is_err() {
                return;
            }
            self.reap();
        }
        if self.ring.queued() == 0 && !self.sends.wait() {
            self.sends.finish();
        }
    }

    /// Submits the queue and records the results without a wait. For a turn after which the next
    /// wait may be far away.
    pub(crate) fn submit_now(&mut self) {
        if self.fork.is_child() {
            return;
        }
        self.start_receives();
        self.push_sends();
        if self.ring.queued() > 0 {
            // Entries that the kernel rejects now are submitted again by the next wait.
            let _ = self.enter(false, None);
        }
        if self.sends.any() {
            self.settle_sends();
        }
    }
}

/// The place of an element. Looks at both ends first, because streams often end in the order in
/// which they came, or in the opposite one.
pub(super) fn place_in<T>(list: &VecDeque<T>, is_it: impl Fn(&T) -> bool) -> Option<usize> {
    let ends = |near: usize| [near, list.len() - 1 - near];
    (0..list.len().div_ceil(2)).flat_map(ends).find(|place| is_it(&list[*place]))
}

/// The number of a send, from its completion.
pub(super) fn number_of(user_data: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "it was a `u32`")]
    let number = (user_data >> 3) as u32;
    number
}
