//! Waits: the submissions before them, and the completions that they return.
//!
//! If a wait has seen as many completions as the kernel delivers in one call, it asks for more,
//! unless there are receives among them. Receives are handled first, while their memory is in the
//! processor's cache. This way replies do not wait for the handlers of everything that is ready.

#![allow(unsafe_code, reason = "completions carry the addresses of cells; see mod.rs")]

use core::mem::MaybeUninit;

use rustix::{
    event::epoll::{EventData, EventFlags},
    io::Errno,
    time::Timespec,
};

use super::{
    CONDITIONS, Cell, Completion, Uring,
    streams::{Streams, keep_brought},
    tag,
};
use crate::{
    api::interest::{ERR, HUP, PRI},
    backend::{WaitResult, batch::RawEvent, fork::NOT_OWNER},
    cell::CellFlags as Flags,
};

/// The number of completions that the kernel delivers in one call (`IO_LOCAL_TW_DEFAULT_MAX`,
/// io_uring/io_uring.c). A wait that has seen this many asks for more, so that a turn fetches
/// everything that is ready, as with epoll.
pub(super) const AT_ONCE: usize = 20;

/// The result of one check for completions.
struct Round {
    /// The result of the system call, if one was made.
    outcome: Result<(), Errno>,
    events: usize,
    /// The number of completions.
    seen: usize,
}

/// Whether a wait may block.
#[inline(always)]
fn may_block(timeout: Option<&Timespec>) -> bool {
    timeout.is_none_or(|time| time.tv_sec != 0 || time.tv_nsec != 0)
}

#[inline(always)]
fn event(address: u64, ready: u32) -> RawEvent {
    RawEvent { flags: EventFlags::from_bits_retain(ready), data: EventData::new_u64(address) }
}

/// The conditions that a completion reports, if it is of a multishot poll that goes on and there is
/// nothing to record. [`Uring::event_noted`] handles the rest, and would give the same result here.
#[inline(always)]
fn found_by_usual_poll(completion: Completion) -> Option<u32> {
    let tag = completion.user_data & tag::MASK;
    if !completion.has_more() || tag >= tag::RECEIVE {
        return None;
    }
    // SAFETY: The kernel returns the value that it was given with a poll of this cell. The cell is
    // owed more completions of it, so it is allocated (protocol 1).
    let cell = unsafe { Cell::from_exposed(completion.user_data & !tag::MASK) };
    let is_usual =
        tag == u64::from(cell.generation()) && cell.armed_bits() & (Flags::QUIET.bits() | PRI) == 0;
    // A negative result would be an error, and an error ends a multishot poll.
    let found = u32::try_from(completion.result).unwrap_or(0);
    let ready = found & (cell.armed_mask() & CONDITIONS | ERR | HUP);
    (is_usual && ready != 0).then_some(ready)
}

/// Takes completions while there is room and `ready_of` knows the conditions of their events, and
/// writes these events. Returns the completion that it does not know. Every other one taken is an
/// event.
#[inline(always)]
fn take_usual(
    room: &mut [MaybeUninit<RawEvent>],
    completions: &mut impl Iterator<Item = Completion>,
    mut ready_of: impl FnMut(Completion) -> Option<u32>,
) -> Option<Completion> {
    for place in room {
        let completion = completions.next()?;
        let Some(ready) = ready_of(completion) else { return Some(completion) };
        place.write(event(completion.user_data & !tag::MASK, ready));
    }
    None
}

impl Uring {
    /// See [`ActiveBackend::wait`](crate::backend::ActiveBackend::wait).
    #[inline(never)]
    pub(crate) fn wait(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> WaitResult {
        debug_assert!(!room.is_empty(), "no room for an event");
        if self.fork.is_child() {
            return Err(NOT_OWNER).into();
        }
        let mut is_usual = may_block(timeout);
        if self.keeps_something() {
            self.prepare();
            is_usual &= self.awaiting_buffer.is_empty() && self.backlog.is_empty();
        }
        if !is_usual || self.ring.has_completions() {
            return self.wait_otherwise(room, timeout).into();
        }
        if let Err(errno) = self.enter(true, timeout) {
            return self.wait_failed(room, timeout, errno).into();
        }
        let (events, seen) = self.harvest(room);
        if events > 0 && seen < AT_ONCE && !self.sends.any() {
            return Ok(events).into();
        }
        self.conclude(room, timeout, Round { outcome: Ok(()), events, seen }).into()
    }

    /// Whether a wait that must not block has nothing to do, found by a few loads.
    #[inline]
    pub(crate) fn has_nothing_for(&mut self, timeout: Option<&Timespec>) -> bool {
        let has_nothing = !may_block(timeout) && !self.keeps_something() && !self.fork.is_child();
        has_nothing && !self.ring.has_completions() && !self.ring.wants_enter()
    }

    /// Whether a wait has work other than the two queues.
    #[inline]
    fn keeps_something(&self) -> bool {
        self.to_arm.len()
            | self.backlog.len()
            | self.done.len()
            | self.awaiting_buffer.len()
            | self.to_receive.len()
            != 0
            || self.sends.any()
    }

    /// Prepares the wait: puts everything that must be submitted into the queue.
    #[inline(never)]
    fn prepare(&mut self) {
        if !self.to_arm.is_empty() {
            self.arm_all();
        }
        self.forget_done();
        if !self.awaiting_buffer.is_empty() {
            self.rearm_awaiting_buffer();
        }
        if !self.to_receive.is_empty() {
            self.start_receives();
        }
        if self.sends.wait() {
            self.push_sends();
        }
        self.pace.begin();
    }

    /// A wait that must not block, or for which completions were kept.
    #[inline(never)]
    fn wait_otherwise(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        // Newer completions of the same poll may have arrived since the last check.
        if !self.backlog.is_empty() || self.ring.has_completions() {
            let count = self.report_backlog(room);
            if count > 0 {
                return Ok(count);
            }
        }
        let blocks =
            may_block(timeout) && !self.ring.has_completions() && self.awaiting_buffer.is_empty();
        let round = self.round(room, blocks, timeout);
        self.conclude(room, timeout, round)
    }

    /// Enters the kernel if necessary, and checks for completions.
    fn round(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        blocks: bool,
        timeout: Option<&Timespec>,
    ) -> Round {
        let mut outcome = Ok(());
        if blocks {
            outcome = self.enter(true, timeout);
        } else if self.ring.wants_enter() {
            outcome = self.enter(false, None);
        }
        let (events, seen) = self.harvest(room);
        Round { outcome, events, seen }
    }

    /// The call of a usual wait has failed. Completions may have come nevertheless.
    #[cold]
    #[inline(never)]
    fn wait_failed(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
        errno: Errno,
    ) -> Result<usize, Errno> {
        let (events, seen) = self.harvest(room);
        self.conclude(room, timeout, Round { outcome: Err(errno), events, seen })
    }

    /// Continues after the first round: further rounds if the kernel may have more completions, and
    /// the result of the wait.
    #[inline(never)]
    fn conclude(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
        mut round: Round,
    ) -> Result<usize, Errno> {
        let mut count = 0;
        loop {
            count += round.events;
            if self.sends.any() {
                self.settle_sends();
            }
            if count > 0 {
                // Receives are handled before more completions are fetched.
                if round.seen < AT_ONCE
                    || !self.done.is_empty()
                    || count == room.len()
                    || !self.ring.holds_more()
                {
                    return Ok(count);
                }
            } else {
                match round.outcome {
                    Err(Errno::TIME) => return Ok(0),
                    // The kernel delivers a few completions at a time, so the wait is complete only
                    // when it has no more. Its flag is reliable only while it delivers some: the
                    // thread that wakes a poll sets the flag after it has queued the work, and the
                    // work may be done by then.
                    Ok(()) if !may_block(timeout) => {
                        if round.seen == 0 || !self.ring.holds_more() {
                            return Ok(0);
                        }
                    }
                    // All the completions were discarded, or the end of the time or a signal came
                    // after a submission.
                    Ok(()) => return Err(Errno::INTR),
                    Err(errno) => return Err(errno),
                }
            }
            if !self.backlog.is_empty() {
                // Completions taken from the queue to check for sends are older than those in the
                // queue now.
                count += self.report_backlog(&mut room[count..]);
                return if count > 0 { Ok(count) } else { Err(Errno::INTR) };
            }
            round = self.round(&mut room[count..], false, None);
        }
    }

    /// Reports kept completions, together with new ones.
    #[cold]
    fn report_backlog(&mut self, room: &mut [MaybeUninit<RawEvent>]) -> usize {
        if self.ring.wants_enter() {
            // Entries that the kernel rejects now are submitted again by the next wait.
            let _ = self.enter(false, None);
        }
        self.settle_sends();
        let mut count = 0;
        while count < room.len() && self.done.len() < AT_ONCE {
            let Some(completion) = self.backlog.pop_front() else { break };
            let (address, ready) = self.report(completion);
            if ready != 0 {
                room[count].write(event(address, ready));
                count += 1;
            }
        }
        count
    }

    /// Moves completions from the queue to `room`, as far as there is room. Returns the number of
    /// events and the number of completions.
    ///
    /// Usual completions are taken in one pass, which writes the queue's head once. There are two
    /// loops for this. The compiler keeps all values of the small one in registers.
    #[inline(always)]
    fn harvest(&mut self, room: &mut [MaybeUninit<RawEvent>]) -> (usize, usize) {
        if matches!(self.streams, Streams::By(_)) {
            return self.harvest_all(room, None);
        }
        let mut completions = self.ring.completions();
        let waiting = completions.len();
        let other = take_usual(room, &mut completions, found_by_usual_poll);
        let seen = waiting - completions.len();
        drop(completions);
        if other.is_none() {
            return (seen, seen);
        }
        let (events, others) = self.harvest_all(&mut room[seen - 1..], other);
        (seen - 1 + events, seen + others)
    }

    /// The same with receives, after a completion that was taken. The result does not count that
    /// completion, only its event.
    #[inline(never)]
    fn harvest_all(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        mut other: Option<Completion>,
    ) -> (usize, usize) {
        let (mut count, mut seen) = (0, 0);
        loop {
            if let Some(completion) = other {
                let (address, ready) = self.event_noted(completion);
                if ready != 0 {
                    // A completion is only taken if there is room for its event.
                    room[count].write(event(address, ready));
                    count += 1;
                }
            }
            let Self { ring, streams, done, untaken, .. } = self;
            let mut completions = ring.completions();
            let (waiting, kept) = (completions.len(), done.len());
            other = take_usual(&mut room[count..], &mut completions, |completion| {
                if completion.has_more() && completion.user_data & tag::MASK == tag::RECEIVE {
                    keep_brought(streams, done, completion)
                } else {
                    found_by_usual_poll(completion)
                }
            });
            *untaken += done.len() - kept;
            let taken = waiting - completions.len();
            seen += taken;
            if other.is_none() {
                return (count + taken, seen);
            }
            count += taken - 1;
        }
    }

    /// Records a completion and converts it to an event: a cell's address, and conditions.
    /// Conditions of zero mean that there is no event.
    #[inline(never)]
    fn event_noted(&mut self, mut completion: Completion) -> (u64, u32) {
        if self.note(&mut completion) { self.report(completion) } else { (0, 0) }
    }

    /// The event of a recorded completion: see [`event_noted`](Self::event_noted).
    #[inline]
    fn report(&mut self, completion: Completion) -> (u64, u32) {
        let tag = completion.user_data & tag::MASK;
        let address = completion.user_data & !tag::MASK;
        if tag >= tag::RECEIVE {
            let ready = self.keep_done(completion);
            // It belongs to no stream: its buffer returns to the pool.
            return (address, if address == 0 { 0 } else { ready });
        }
        // SAFETY: It was recorded just now, or is in the backlog: the block is allocated (protocol
        // 1).
        let cell = unsafe { Cell::from_exposed(address) };
        (address, self.conditions(cell, completion))
    }
}
