//! io_uring(7): polls in place of epoll's entries, and one io_uring_enter(2) per turn that submits and waits.
//!
//! A level-triggered registration is a one-shot poll that is armed again before the next wait; an edge-triggered one is a multishot poll, which the
//! kernel ends when it has no room for a completion: then it is armed again, told by the flag and not by the sign of its result. What is added, changed or has fired is
//! noted in a list, and its poll is queued when the next wait begins. So the changes of a turn are merged, a registration that comes and goes within one costs nothing,
//! and between waits the queue holds no poll that names a number (rule 14).
//!
//! A poll carries the cell's address and, in the low bits, a generation. To change or delete a registration, its poll is cancelled by what it carries, and what it may
//! report until its final completion, which always comes, is of an old generation and nobody's. So nothing is ever reported of a file that was closed or replaced
//! under its number, and there are no ghosts on a ring (rule 7).
//!
//! The kernel adds a hang-up of the peer's writing to every poll. Where that is all that holds and nobody asked for it, a level-triggered poll would complete for ever: such
//! a cell is [`QUIET`](Flags::QUIET), watched by a multishot poll until something else comes.
//!
//! # The protocol of this module
//!
//! 1. A cell's address is with the kernel from the moment when its poll is queued until the completion that says it is the last (`!F_MORE`), and in `listed` while
//!    [`Flags::LISTED`] is set. Header and block stay for as long as [`CellPtr::owed`] says either, or `backlog` holds anything: `graves.rs` asks for both (rule 2).
//! 2. Every completion is taken note of once, when it leaves the queue ([`Uring::reap`]), in a cell that is owed it, hence allocated.
//! 3. A completion in `backlog` is noted and not yet reported. What is noted of a poll there is discarded when the cell is changed or deleted.
//! 4. In a child of fork(2) nothing but the guard is looked at: the queues' memory is the parent's too.

#![allow(unsafe_code, reason = "completions carry the addresses of cells; the protocol above")]

mod features;
mod patience;
mod pool;
mod ring;
mod sends;
mod shadow;
mod streams;

use core::mem::{self, MaybeUninit};
use std::{
    collections::VecDeque,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::epoll::{EventData, EventFlags},
    io::Errno,
    time::Timespec,
};

pub(crate) use features::RingSettings;
pub use features::{RingError, RingFeature, RingFeatures};
use patience::Patience;
pub(crate) use pool::{Lent, PoolSize};
use ring::{Completion, Ring};
use sends::Sends;
pub(crate) use sends::{Copied, Failed, Rest};
use shadow::Shadow;
pub(crate) use streams::{BROUGHT, Done, NO_BUFFER};

use crate::{
    Reactor,
    backend::{COMPLETION, fork::ForkGuard, next_serial},
    batch::RawEvent,
    cell::{CellPtr, Flags},
    interest::{ERR, ET, HUP, IN, ONESHOT, OUT, PRI, RDHUP},
};

type Cell = CellPtr<Reactor>;

/// What stands in the low bits of what a request carries. Below [`RECEIVE`](tag::RECEIVE) it is a poll's generation.
pub(crate) mod tag {
    pub(crate) const MASK: u64 = 7;
    pub(crate) const RECEIVE: u64 = 4;
    pub(crate) const SEND: u64 = 5;
    /// Cancellations and the like: nobody looks at their result, and the address may be zero.
    pub(crate) const CONTROL: u64 = 7;
}

/// The conditions that an interest can name.
const CONDITIONS: u32 = IN | PRI | OUT | ERR | HUP | RDHUP;

/// Among so many completions that wait an earlier one of the same poll is looked for. What is not found is an event more than there need be.
const MERGED_MAX: usize = 64;

/// How long to wait for requests to end that were cancelled. They do so at once unless something is very wrong.
const CANCEL_MAX: Duration = Duration::from_secs(1);

/// For so many registrations the list of what is to be armed keeps its memory; for more only while a turn needs one in [`LISTED_SPARE`] of its places.
const LISTED_KEPT: usize = 1024;
const LISTED_SPARE: usize = 16;

/// So many completions the kernel makes ready in one call (`IO_LOCAL_TW_DEFAULT_MAX`, io_uring/io_uring.c): who has seen as many asks for more, so that a turn
/// fetches all that is ready, as epoll's does.
const AT_ONCE: usize = 20;

pub(crate) struct Uring {
    ring: Ring,
    /// Addresses of cells that a poll is to be armed for when the next wait begins.
    listed: Vec<u64>,
    /// Completions that were taken from the queue while nobody waited (protocol 3).
    backlog: VecDeque<Completion>,
    /// Completions of streams in the present batch, by the index that their events carry.
    done: Vec<Option<Done>>,
    streams: streams::Streams,
    sends: Sends,
    /// Addresses of cells whose receive has found no buffer.
    starved: VecDeque<u64>,
    settings: RingSettings,
    /// How many completions a wait waits for; `None` for one.
    patience: Option<Patience>,
    /// Numbers that entries in the queue name, by their lowest bits.
    named: Named,
    /// Requests that have not completed for good.
    outstanding: usize,
    /// How an outer loop hears of the ring, once there is one.
    shadow: Option<Shadow>,
    serial: u64,
    fork: ForkGuard,
}

/// Which numbers are named by what waits to be submitted: a set of their lowest bits, which may say yes where it should say no.
#[derive(Default)]
struct Named([u64; 4]);

impl Named {
    fn bit(fd: i32) -> (usize, u64) {
        let low = fd.rem_euclid(256).unsigned_abs();
        (low as usize / 64, 1 << (low % 64))
    }

    fn note(&mut self, fd: i32) {
        let (word, bit) = Self::bit(fd);
        self.0[word] |= bit;
    }

    fn may_have(&self, fd: i32) -> bool {
        let (word, bit) = Self::bit(fd);
        self.0[word] & bit != 0
    }

    fn clear(&mut self) {
        self.0 = [0; 4];
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.fork.is_child() {
            self.ring.disown_index();
        }
    }
}

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
    pub(crate) fn new(settings: RingSettings) -> Result<Self, RingError> {
        let ring = Ring::new(settings)?;
        Ok(Self {
            patience: (settings.patience > 0 && ring.can_be_patient()).then(Patience::new),
            ring,
            listed: Vec::new(),
            backlog: VecDeque::with_capacity(MERGED_MAX),
            done: Vec::new(),
            streams: streams::Streams::default(),
            sends: Sends::default(),
            starved: VecDeque::new(),
            settings,
            named: Named::default(),
            outstanding: 0,
            shadow: None,
            serial: next_serial(),
            fork: ForkGuard::new().map_err(RingError::Os)?,
        })
    }

    /// Refuses to work in a child of fork(2).
    pub(crate) fn check_owner(&self) -> Result<(), Errno> {
        self.fork.check()
    }

    pub(crate) fn fork_guard(&self) -> Option<ForkGuard> {
        Some(self.fork.clone())
    }

    /// What was had of what was asked for.
    pub(crate) fn features(&self) -> RingFeatures {
        self.ring.features()
    }

    /// Whether completions wait that were noted and not reported: dead cells stay meanwhile (protocol 1).
    pub(crate) fn holds_events(&self) -> bool {
        !self.backlog.is_empty()
    }

    pub(crate) fn add(&mut self, cell: Cell) -> Result<(), Errno> {
        self.fork.check()?;
        cell.set_flag(Flags::DROPPED, false);
        self.list(cell);
        Ok(())
    }

    pub(crate) fn modify(&mut self, cell: Cell) -> Result<(), Errno> {
        self.fork.check()?;
        self.withdraw(cell);
        self.list(cell);
        Ok(())
    }

    /// Ends the watch. The cell is owed its final completions.
    pub(crate) fn delete(&mut self, cell: Cell) {
        cell.set_flag(Flags::DROPPED, true);
        if self.fork.is_child() {
            return;
        }
        self.withdraw(cell);
        if cell.has_flag(Flags::LISTED) && self.listed.last() == Some(&cell.expose()) {
            // Added and deleted within one turn: without this its block would wait for the next wait.
            self.listed.pop();
            cell.set_flag(Flags::LISTED, false);
        }
        if let Some(shadow) = &mut self.shadow {
            shadow.forget(cell.fd());
        }
        // Its final completion is not waited for here.
        let _ = self.end_receive(cell);
        // Rule 14: the number may be given away now.
        if self.named.may_have(cell.fd()) {
            self.submit();
            if self.ring.queued() > 0 {
                self.insist();
            }
        }
    }

    /// The kernel has not taken all that is queued, for want of memory say: it is offered again, for a bounded time.
    #[cold]
    fn insist(&mut self) {
        let end = Instant::now() + CANCEL_MAX;
        while self.ring.queued() > 0 && Instant::now() < end {
            let _ = self.enter(false, None);
            self.reap();
        }
    }

    /// Waits until the kernel has let go of a deleted cell's file, for a bounded time. For outside a turn: within one, the next wait does it.
    pub(crate) fn release(&mut self, cell: Cell) {
        self.settle_while(|_| cell.has_requests());
    }

    /// Submits and reaps while something is so and requests are under way. False when it has lasted too long.
    fn settle_while(&mut self, mut is_so: impl FnMut(&Self) -> bool) -> bool {
        if self.fork.is_child() {
            return false;
        }
        let mut end = None;
        self.reap();
        while is_so(self) && self.outstanding > 0 {
            let now = Instant::now();
            if now >= *end.get_or_insert(now + CANCEL_MAX) {
                return false;
            }
            let patience = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            // A signal, the end of the patience: it is tried again. So is anything else, for as long as there is time.
            let _ = self.enter(true, Some(&patience));
            self.reap();
        }
        true
    }

    /// Cancels the present poll, if there is one, and discards what it has reported.
    fn withdraw(&mut self, cell: Cell) {
        let address = cell.expose();
        if !self.backlog.is_empty() {
            self.backlog
                .retain(|kept| kept.user_data & !tag::MASK != address || kept.user_data & tag::MASK >= tag::RECEIVE);
        }
        if cell.has_flag(Flags::IN_FLIGHT) {
            self.ring.cancel(address | u64::from(cell.generation()), tag::CONTROL);
            cell.next_generation();
        }
    }

    /// Notes that a poll is to be armed for the cell.
    #[inline]
    fn list(&mut self, cell: Cell) {
        if !cell.has_flag(Flags::LISTED) {
            cell.set_flag(Flags::LISTED, true);
            self.listed.push(cell.expose());
        }
    }

    /// Queues the polls that are to be armed.
    fn arm_listed(&mut self) {
        let mut listed = mem::take(&mut self.listed);
        let is_far_too_large = listed.len() < listed.capacity() / LISTED_SPARE;
        for address in listed.drain(..) {
            // SAFETY: a listed cell is owed, so its block is allocated (protocol 1).
            let cell = unsafe { Cell::from_exposed(address) };
            cell.set_flag(Flags::LISTED, false);
            if !cell.has_flag(Flags::DROPPED) && !cell.has_flag(Flags::IN_FLIGHT) {
                self.arm(cell);
            }
        }
        // What was listed meanwhile waits for the next time; the larger memory is kept (rule 12), unless many have been added at once and few fire.
        if is_far_too_large && listed.capacity() > LISTED_KEPT {
            listed.shrink_to(LISTED_KEPT);
        }
        listed.append(&mut self.listed);
        self.listed = listed;
    }

    fn arm(&mut self, cell: Cell) {
        if cell.is_too_old() && !self.settle_while(|_| cell.is_too_old()) {
            self.list(cell);
            return;
        }
        let mask = cell.armed_mask();
        let is_multishot = cell.has_flag(Flags::QUIET) || mask & (ET | ONESHOT) == ET;
        self.named.note(cell.fd());
        self.ring.poll(cell.fd(), mask & !(ET | ONESHOT), is_multishot, cell.expose() | u64::from(cell.generation()));
        cell.poll_begins();
        self.outstanding += 1;
    }

    /// Submits what is queued. What the kernel does not take now stays queued.
    fn submit(&mut self) {
        let _ = self.ring.submit();
        self.forget_names();
    }

    /// Waits for a completion, or for some if the settings say so.
    #[inline]
    fn enter_patiently(&mut self, timeout: Option<&Timespec>) -> Result<(), Errno> {
        if self.patience.is_none() {
            return self.enter(true, timeout);
        }
        let longest = i64::from(self.settings.patience) * 1_000;
        let is_short = timeout.is_some_and(|time| time.tv_sec == 0 && time.tv_nsec <= longest);
        let Some(patience) = self.patience.filter(|patience| patience.batch() > 1 && !is_short) else {
            return self.enter(true, timeout);
        };
        let outcome = self.ring.enter_for(patience.batch(), self.settings.patience, timeout);
        self.forget_names();
        outcome
    }

    #[inline]
    fn enter(&mut self, waits: bool, timeout: Option<&Timespec>) -> Result<(), Errno> {
        let queued = self.ring.queued();
        let outcome = self.ring.enter(waits, timeout);
        if queued > 0 {
            self.forget_names();
        }
        outcome
    }

    #[inline]
    fn forget_names(&mut self) {
        if self.ring.queued() == 0 {
            self.named.clear();
        }
    }

    /// Takes all completions from the queue and keeps them for the next wait.
    fn reap(&mut self) {
        while let Some(mut completion) = self.ring.next_completion() {
            if self.note(&mut completion) && !self.is_merged(completion) {
                self.backlog.push_back(completion);
            }
        }
    }

    /// Adds what a poll has found to what it has found before, if that waits: one edge after another is one event, as epoll's is.
    fn is_merged(&mut self, completion: Completion) -> bool {
        if completion.user_data & tag::MASK >= tag::RECEIVE {
            return false;
        }
        let same = |kept: &&mut Completion| kept.user_data == completion.user_data && kept.result >= 0;
        match self.backlog.iter_mut().rev().take(MERGED_MAX).find(same) {
            Some(kept) if completion.result >= 0 => {
                kept.result |= completion.result;
                kept.flags = completion.flags;
                true
            }
            _ => false,
        }
    }

    /// Takes note of a completion (protocol 2); true when it may have to be reported.
    #[inline]
    fn note(&mut self, completion: &mut Completion) -> bool {
        let tag = completion.user_data & tag::MASK;
        if tag == tag::CONTROL {
            return false;
        }
        if tag == tag::SEND {
            let cell = self.sends.fail(streams::number_of(completion.user_data), completion.result);
            completion.user_data = cell.unwrap_or(0) | tag::SEND;
            return cell.is_some();
        }
        // SAFETY: the kernel hands back what it was given with a request of the cell's, and the cell is owed this completion (protocol 1).
        let cell = unsafe { Cell::from_exposed(completion.user_data & !tag::MASK) };
        let is_poll = tag < tag::RECEIVE;
        let is_present = tag == u64::from(cell.generation());
        if !completion.has_more() {
            if is_poll {
                self.outstanding -= 1;
                cell.poll_ends();
                if is_present {
                    cell.set_flag(Flags::IN_FLIGHT, false);
                }
            } else {
                self.outstanding -= 1;
                cell.request_ends();
            }
        }
        !is_poll || is_present
    }

    /// The event that a completion is: a cell's address, and conditions, which are zero if it is none. It is taken note of.
    #[inline(always)]
    fn event_of(&mut self, completion: Completion) -> (u64, u32) {
        let tag = completion.user_data & tag::MASK;
        // What a multishot poll has found, and nothing more: the rest is for `note` and `report`, which would say the same.
        if tag < tag::RECEIVE && completion.has_more() {
            let address = completion.user_data & !tag::MASK;
            // SAFETY: the kernel hands back what it was given with a poll of the cell's, and the cell is owed more of it (protocol 1).
            let cell = unsafe { Cell::from_exposed(address) };
            if tag == u64::from(cell.generation()) && !cell.has_flag(Flags::QUIET) {
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
            return (address, self.keep_done(completion));
        }
        // SAFETY: it was noted just now, or is in the backlog: the block is allocated (protocol 1).
        let cell = unsafe { Cell::from_exposed(address) };
        (address, self.conditions(cell, completion))
    }

    /// What a poll has found, as far as it was asked for, and what becomes of the poll.
    #[inline]
    fn conditions(&mut self, cell: Cell, completion: Completion) -> u32 {
        let mask = cell.armed_mask();
        let Ok(found) = u32::try_from(completion.result) else {
            return self.refused(cell, completion);
        };
        let ready = found & (mask & CONDITIONS | ERR | HUP);
        if completion.has_more() {
            if ready != 0 && cell.has_flag(Flags::QUIET) {
                // What was asked for has come: from here on it is watched in its own manner again.
                self.withdraw(cell);
                if mask & ONESHOT == 0 {
                    self.list(cell);
                }
            }
        } else if mask & ONESHOT == 0 || ready == 0 {
            cell.set_flag(Flags::QUIET, ready == 0 && mask & (ET | ONESHOT) != ET);
            self.list(cell);
        }
        ready
    }

    /// The kernel has refused a poll, or given it up.
    #[cold]
    fn refused(&mut self, cell: Cell, completion: Completion) -> u32 {
        if completion.has_more() {
            return 0;
        }
        if cell.has_flag(Flags::INTERNAL) {
            // Without it no other thread could wake the loop.
            self.list(cell);
            return 0;
        }
        // As for a change that epoll refuses at the flush: one error event, and it is absent until it is changed again.
        cell.set_flag(Flags::ABSENT, true);
        ERR
    }

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
        let is_usual = may_block(timeout) && self.patience.is_none() && self.starved.is_empty();
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
        self.listed.len() | self.backlog.len() | self.done.len() | self.starved.len() != 0 || self.sends.any()
    }

    /// What comes before the wait: it puts into the queue what is to go out.
    #[inline(never)]
    fn prepare(&mut self) {
        if !self.listed.is_empty() {
            self.arm_listed();
        }
        if !self.done.is_empty() {
            // What nobody has taken goes back to the pool.
            self.done.clear();
        }
        if !self.starved.is_empty() {
            self.feed_starved();
        }
        if self.sends.wait() {
            self.push_sends();
        }
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
        let blocks = may_block(timeout) && !self.ring.has_completions() && self.starved.is_empty();
        let round = self.round(room, blocks, timeout);
        self.conclude(room, timeout, round)
    }

    /// Enters the kernel if there is a reason to, and looks at what has come.
    fn round(&mut self, room: &mut [MaybeUninit<RawEvent>], blocks: bool, timeout: Option<&Timespec>) -> Round {
        let mut outcome = Ok(());
        if blocks {
            outcome = self.enter_patiently(timeout);
        } else if self.ring.wants_enter() {
            outcome = self.enter(false, None);
        }
        let (events, seen) = self.harvest(room);
        if let Some(patience) = self.patience.as_mut().filter(|_| blocks) {
            patience.learn(seen);
        }
        Round { outcome, events, seen }
    }

    /// What comes after the first round: more of them, where the kernel may have more, and what the wait says.
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
                if round.seen < AT_ONCE || count == room.len() || self.is_laden() || !self.ring.holds_more() {
                    return Ok(count);
                }
            } else {
                match round.outcome {
                    Err(Errno::TIME) => return Ok(0),
                    // The kernel makes a few completions ready at a time: all have been looked at only when it has no more. What it says is true only as
                    // long as it makes some: who wakes a poll sets the flag after he has queued the work, which may be done by then.
                    Ok(()) if !may_block(timeout) => {
                        if round.seen == 0 || !self.ring.holds_more() {
                            return Ok(0);
                        }
                    }
                    // All that came was nobody's, or the end of the time or a signal has come after something was submitted.
                    Ok(()) => return Err(Errno::INTR),
                    Err(errno) => return Err(errno),
                }
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
        while count < room.len() {
            let Some(completion) = self.backlog.pop_front() else { break };
            let (address, ready) = self.report(completion);
            if ready != 0 {
                room[count].write(event(address, ready));
                count += 1;
            }
        }
        count
    }

    /// Moves completions from the queue to the room, as far as it goes. Says how many events they were, and how many completions.
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

    /// Leaves the ring as another loop needs it to be, before that sleeps: all is submitted, and what is there already is told of by `true`.
    pub(crate) fn settle(&mut self) -> Result<bool, Errno> {
        self.fork.check()?;
        self.arm_listed();
        self.push_sends();
        if let Some(shadow) = &self.shadow {
            // First this, then the queues: what comes between is told of twice, and nothing is missed.
            shadow.quiet()?;
        }
        if self.ring.wants_enter() {
            // What the kernel says to have and does not bring now will be told of when it comes.
            self.enter(false, None)?;
        }
        if self.sends.any() {
            self.settle_sends();
        }
        let has_more = !self.listed.is_empty() || !self.backlog.is_empty() || !self.starved.is_empty();
        Ok(has_more || self.ring.has_completions())
    }

    /// The set by which another loop can wait, and the ring's serial. The first time, all watched cells are to be [told of](Self::tell_host_of).
    pub(crate) fn watchable(&mut self) -> Result<(BorrowedFd<'_>, u64), Errno> {
        // Or the parent's ring would write to an eventfd of the child's.
        self.fork.check()?;
        let shadow = match self.shadow.take() {
            Some(shadow) => shadow,
            None => {
                let shadow = Shadow::new()?;
                self.ring.notify(shadow.notifier())?;
                shadow
            }
        };
        let shadow: &Shadow = self.shadow.insert(shadow);
        Ok((shadow.set(), self.serial))
    }

    /// No other loop waits any more: the kernel need not write to an eventfd for each completion, nor changes be told to the set.
    pub(crate) fn leave_host(&mut self) {
        if self.shadow.is_some() && !self.fork.is_child() && self.ring.notify_no_more().is_ok() {
            self.shadow = None;
        }
    }

    /// Makes sure that another loop hears of what comes for a number.
    ///
    /// # Errors
    /// See [`Shadow::watch`].
    pub(crate) fn tell_host_of(&mut self, fd: i32) -> Result<(), Errno> {
        self.shadow.as_mut().map_or(Ok(()), |shadow| shadow.watch(fd))
    }

    /// Waits until what was cancelled has ended, for a bounded time; what has not is owed for ever. For the reactor's own end.
    pub(crate) fn close(&mut self) {
        self.hurry();
        self.settle_while(|_| true);
        self.backlog.clear();
        self.done.clear();
        for address in self.listed.drain(..) {
            // SAFETY: a listed cell is owed, so its block is allocated (protocol 1).
            unsafe { Cell::from_exposed(address) }.set_flag(Flags::LISTED, false);
        }
        // In a child it is a copy, to which the kernel does not write.
        if self.outstanding > 0 && !self.fork.is_child() {
            self.keep_pool();
        }
    }
}
