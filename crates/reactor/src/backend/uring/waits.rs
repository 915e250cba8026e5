//! Waits: what goes to the kernel before them, and what comes of them.
//!
//! A wait that has seen as many completions as the kernel makes ready in one call asks for more,
//! unless there are receives among them: those are handled first, while their memory is in the
//! processor's cache, and so that answers do not wait for the handlers of all that is ready.

#![allow(unsafe_code, reason = "completions carry the addresses of cells; see mod.rs")]

use core::mem::MaybeUninit;

use rustix::{
    event::epoll::{EventData, EventFlags},
    io::Errno,
    time::Timespec,
};

use super::{CONDITIONS, Cell, Completion, Uring, tag};
use crate::{
    batch::RawEvent,
    cell::Flags,
    interest::{ERR, HUP, PRI},
};

/// So many completions the kernel makes ready in one call (`IO_LOCAL_TW_DEFAULT_MAX`,
/// io_uring/io_uring.c): who has seen as many asks for more, so that a turn fetches all that is
/// ready, as epoll's does.
pub(super) const AT_ONCE: usize = 20;

/// What has come of looking for completions once.
struct Round {
    /// What the call said, if one was made.
    outcome: Result<(), Errno>,
    events: usize,
    /// How many completions.
    seen: usize,
}

/// Whether a wait may last.
#[inline(always)]
fn may_block(timeout: Option<&Timespec>) -> bool {
    timeout.is_none_or(|time| time.tv_sec != 0 || time.tv_nsec != 0)
}

#[inline(always)]
fn event(address: u64, ready: u32) -> RawEvent {
    RawEvent { flags: EventFlags::from_bits_retain(ready), data: EventData::new_u64(address) }
}

impl Uring {
    /// See [`Driver::wait`](super::Driver::wait).
    #[inline]
    pub(crate) fn wait(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        self.fork.check()?;
        if self.keeps_something() {
            self.prepare();
        }
        let is_usual =
            may_block(timeout) && self.wait_batch.is_none() && self.awaiting_buffer.is_empty();
        if !is_usual || !self.backlog.is_empty() || self.ring.has_completions() {
            return self.wait_otherwise(room, timeout);
        }
        let outcome = self.enter(true, timeout);
        let (events, seen) = self.harvest(room);
        if events > 0 && seen < AT_ONCE && !self.sends.any() {
            return Ok(events);
        }
        self.conclude(room, timeout, Round { outcome, events, seen })
    }

    /// Whether nothing is to be done for a wait, which does not last, told by a few loads.
    #[inline]
    pub(crate) fn has_nothing_for(&mut self, timeout: Option<&Timespec>) -> bool {
        let has_nothing = !may_block(timeout) && !self.keeps_something() && !self.fork.is_child();
        has_nothing && !self.ring.has_completions() && !self.ring.wants_enter()
    }

    /// Whether a wait has more to look after than the queues.
    #[inline]
    fn keeps_something(&self) -> bool {
        self.to_arm.len() | self.backlog.len() | self.done.len() | self.awaiting_buffer.len() != 0
            || self.sends.any()
    }

    /// What comes before the wait: it puts into the queue what is to go out.
    #[inline(never)]
    fn prepare(&mut self) {
        if !self.to_arm.is_empty() {
            self.arm_all();
        }
        if !self.done.is_empty() {
            // What nobody has taken goes back to the pool.
            self.done.clear();
        }
        if !self.awaiting_buffer.is_empty() {
            self.rearm_awaiting_buffer();
        }
        if self.sends.wait() {
            self.push_sends();
        }
        self.pace.begin();
    }

    /// A wait that does not last, or that something was kept for.
    #[inline(never)]
    fn wait_otherwise(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        // What has come since it was looked at last may be followed by more of the same poll's.
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

    /// Enters the kernel if there is a reason to, and looks at what has come.
    fn round(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        blocks: bool,
        timeout: Option<&Timespec>,
    ) -> Round {
        let mut outcome = Ok(());
        if blocks {
            outcome = self.enter_for_batch(timeout);
        } else if self.ring.wants_enter() {
            outcome = self.enter(false, None);
        }
        let (events, seen) = self.harvest(room);
        if let Some(wait_batch) = self.wait_batch.as_mut().filter(|_| blocks) {
            wait_batch.learn(seen);
        }
        Round { outcome, events, seen }
    }

    /// What comes after the first round: more of them, where the kernel may have more, and what the
    /// wait says.
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
                // Receives are handled before there are more.
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
                    // The kernel makes a few completions ready at a time: all have been looked at
                    // only when it has no more. What it says is true only as long as it makes some:
                    // who wakes a poll sets the flag after he has queued the work, which may be
                    // done by then.
                    Ok(()) if !may_block(timeout) => {
                        if round.seen == 0 || !self.ring.holds_more() {
                            return Ok(0);
                        }
                    }
                    // All that came was nobody's, or the end of the time or a signal has come after
                    // something was submitted.
                    Ok(()) => return Err(Errno::INTR),
                    Err(errno) => return Err(errno),
                }
            }
            if !self.backlog.is_empty() {
                // What was taken from the queue to look for sends came before what is there now.
                count += self.report_backlog(&mut room[count..]);
                return if count > 0 { Ok(count) } else { Err(Errno::INTR) };
            }
            round = self.round(&mut room[count..], false, None);
        }
    }

    /// Reports what was kept, with what has come since.
    #[cold]
    fn report_backlog(&mut self, room: &mut [MaybeUninit<RawEvent>]) -> usize {
        if self.ring.wants_enter() {
            // What it refuses now it is offered again by the next wait.
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

    /// Moves completions from the queue to the room, as far as it goes. Says how many events they
    /// were, and how many completions.
    #[inline]
    fn harvest(&mut self, room: &mut [MaybeUninit<RawEvent>]) -> (usize, usize) {
        let (mut count, mut seen) = (0, 0);
        while count < room.len() {
            let Some(completion) = self.ring.next_completion() else { break };
            seen += 1;
            let (address, ready) = self.event_of(completion);
            if ready != 0 {
                room[count].write(event(address, ready));
                count += 1;
            }
        }
        (count, seen)
    }

    /// Waits for a completion, or for some if the settings say so.
    #[inline]
    fn enter_for_batch(&mut self, timeout: Option<&Timespec>) -> Result<(), Errno> {
        if self.wait_batch.is_none() {
            return self.enter(true, timeout);
        }
        let longest = i64::from(self.settings.batch_wait_us) * 1_000;
        let is_short = timeout.is_some_and(|time| time.tv_sec == 0 && time.tv_nsec <= longest);
        let Some(wait_batch) =
            self.wait_batch.filter(|wait_batch| wait_batch.batch() > 1 && !is_short)
        else {
            return self.enter(true, timeout);
        };
        let outcome = self.ring.enter_for(wait_batch.batch(), self.settings.batch_wait_us, timeout);
        self.forget_names();
        outcome
    }

    /// The event that a completion is: a cell's address, and conditions, which are zero if it is
    /// none. It is taken note of.
    #[inline(always)]
    fn event_of(&mut self, completion: Completion) -> (u64, u32) {
        let tag = completion.user_data & tag::MASK;
        // What a multishot poll has found, and nothing more: the rest is for `note` and `report`,
        // which would say the same.
        if tag < tag::RECEIVE && completion.has_more() {
            let address = completion.user_data & !tag::MASK;
            // SAFETY: the kernel hands back what it was given with a poll of the cell's, and the
            // cell is owed more of it (protocol 1).
            let cell = unsafe { Cell::from_exposed(address) };
            if tag == u64::from(cell.generation())
                && cell.armed_bits() & (Flags::QUIET.bits() | PRI) == 0
            {
                // Below zero it would be an error, of which there is no more.
                let found = u32::try_from(completion.result).unwrap_or(0);
                return (address, found & (cell.armed_mask() & CONDITIONS | ERR | HUP));
            }
        }
        self.event_noted(completion)
    }

    #[inline(never)]
    fn event_noted(&mut self, mut completion: Completion) -> (u64, u32) {
        if self.note(&mut completion) { self.report(completion) } else { (0, 0) }
    }

    /// The event that a noted completion is: see [`event_of`](Self::event_of).
    #[inline]
    fn report(&mut self, completion: Completion) -> (u64, u32) {
        let tag = completion.user_data & tag::MASK;
        let address = completion.user_data & !tag::MASK;
        if tag >= tag::RECEIVE {
            let ready = self.keep_done(completion);
            // Nobody's: its buffer goes back.
            return (address, if address == 0 { 0 } else { ready });
        }
        // SAFETY: it was noted just now, or is in the backlog: the block is allocated (protocol 1).
        let cell = unsafe { Cell::from_exposed(address) };
        (address, self.conditions(cell, completion))
    }
}
