//! io_uring(7): polls in place of epoll's entries, and one io_uring_enter(2) per turn that submits
//! and waits.
//!
//! A level-triggered registration is a one-shot poll that is armed again before the next wait; an
//! edge-triggered one is a multishot poll, which the kernel ends when it has no room for a
//! completion: then it is armed again, told by the flag and not by the sign of its result. What is
//! added, changed or has fired is noted in a list, and its poll is queued when the next wait
//! begins. So the changes of a turn are merged, a registration that comes and goes within one costs
//! nothing, and between waits the queue holds no poll that names a number (rule 14).
//!
//! A poll carries the cell's address and, in the low bits, a generation. To change or delete a
//! registration, its poll is cancelled by what it carries, and what it may report until its final
//! completion, which always comes, is of an old generation and nobody's. So nothing is ever
//! reported of a file that was closed or replaced under its number, and there are no stale entries
//! on a ring (rule 7).
//!
//! The kernel adds a hang-up of the peer's writing to every poll. Where that is all that holds and
//! nobody asked for it, a level-triggered poll would complete for ever: such a cell is
//! [`QUIET`](Flags::QUIET), watched by a multishot poll until something else comes.
//!
//! # The protocol of this module
//!
//! 1. A cell's address is with the kernel from the moment when its poll is queued until the
//!    completion that says it is the last (`!F_MORE`), and in `listed` while [`Flags::TO_ARM`] is
//!    set. Header and block stay for as long as [`CellPtr::owed`] says either, or
//!    [`Uring::holds_events`] does: `reclaim.rs` asks for both (rule 2).
//! 2. Every completion is taken note of once, when it leaves the queue ([`Uring::reap`]), in a cell
//!    that is owed it, hence allocated.
//! 3. A completion in `backlog` is noted and not yet reported. What is noted of a poll there is
//!    discarded when the poll is cancelled. None names a deleted cell: a deletion waits for the
//!    cell's final completions, and strikes out its address there. Where the kernel lets it wait in
//!    vain, `is_unsettled` says so, and dead cells stay while any completion waits.
//! 4. In a child of fork(2) nothing but the guard is looked at: the queues' memory is the parent's
//!    too.

#![allow(unsafe_code, reason = "completions carry the addresses of cells; the protocol above")]

mod features;
mod host_epoll;
mod pace;
mod polls;
mod pool;
mod ring;
mod sends;
mod streams;
mod wait_batch;
mod waits;

use std::{
    collections::VecDeque,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use rustix::{io::Errno, time::Timespec};

pub(crate) use features::RingSettings;
pub use features::{RingError, RingFeature, RingFeatures};
use host_epoll::HostEpoll;
pub(crate) use pool::{Lent, PoolSize};
use ring::{Completion, Ring};
use sends::Sends;
pub(crate) use sends::{Copied, Failed, Rest};
pub(crate) use streams::{BROUGHT, Done, NO_BUFFER};
use wait_batch::WaitBatch;

use crate::{
    Reactor,
    backend::{COMPLETION, fork::ForkGuard, next_serial},
    cell::{CellPtr, Flags},
    interest::{ERR, HUP, IN, OUT, PRI, RDHUP},
};

type Cell = CellPtr<Reactor>;

/// What stands in the low bits of what a request carries. Below [`OUT_POLL`](tag::OUT_POLL) it is a
/// poll's generation.
pub(crate) mod tag {
    pub(crate) const MASK: u64 = 7;
    /// A poll for writing alone, beside the present one.
    pub(crate) const OUT_POLL: u64 = 4;
    pub(crate) const RECEIVE: u64 = 5;
    pub(crate) const SEND: u64 = 6;
    /// Cancellations and the like: nobody looks at their result, and the address may be zero.
    pub(crate) const CONTROL: u64 = 7;
}

/// The conditions that an interest can name.
const CONDITIONS: u32 = IN | PRI | OUT | ERR | HUP | RDHUP;

/// Among so many completions that wait an earlier one of the same poll is looked for. What is not
/// found is an event more than there need be.
const MERGED_MAX: usize = 64;

/// How long to wait for requests to end that were cancelled. They do so at once unless something is
/// very wrong.
const CANCEL_MAX: Duration = Duration::from_secs(1);

/// For so many registrations the list of what is to be armed keeps its memory; for more only while
/// a turn needs one in [`TO_ARM_SPARE`] of its places.
const TO_ARM_KEPT: usize = 1024;
const TO_ARM_SPARE: usize = 16;

pub(crate) struct Uring {
    ring: Ring,
    /// Addresses of cells that a poll is to be armed for when the next wait begins.
    to_arm: Vec<u64>,
    /// Completions that were taken from the queue while nobody waited (protocol 3).
    backlog: VecDeque<Completion>,
    /// Completions of streams in the present batch, by the index that their events carry.
    done: Vec<Option<Done>>,
    streams: streams::Streams,
    sends: Sends,
    /// Addresses of cells whose receive has found no buffer.
    awaiting_buffer: VecDeque<u64>,
    settings: RingSettings,
    /// How many completions a wait waits for; `None` for one.
    wait_batch: Option<WaitBatch>,
    pace: pace::Pace,
    /// Numbers that entries in the queue name, by their lowest bits.
    named: Named,
    /// A deleted cell's requests did not end in time, so what waits may name it.
    is_unsettled: bool,
    /// The reactor ends: nobody is told of what completes.
    is_ending: bool,
    /// Requests that have not completed for good.
    outstanding: usize,
    /// How an outer loop hears of the ring, once there is one.
    host_epoll: Option<HostEpoll>,
    serial: u64,
    fork: ForkGuard,
}

/// Which numbers are named by what waits to be submitted: a set of their lowest bits, which may say
/// yes where it should say no.
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

impl Uring {
    pub(crate) fn new(settings: RingSettings) -> Result<Self, RingError> {
        let ring = Ring::new(settings)?;
        Ok(Self {
            wait_batch: (settings.batch_wait_us > 0 && ring.can_wait_for_batch())
                .then(WaitBatch::new),
            ring,
            to_arm: Vec::new(),
            backlog: VecDeque::with_capacity(MERGED_MAX),
            done: Vec::new(),
            streams: streams::Streams::default(),
            sends: Sends::default(),
            awaiting_buffer: VecDeque::new(),
            settings,
            pace: pace::Pace::new(),
            named: Named::default(),
            is_unsettled: false,
            is_ending: false,
            outstanding: 0,
            host_epoll: None,
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

    /// Whether completions wait that may name a deleted cell: dead ones stay meanwhile (protocol
    /// 1).
    pub(crate) fn holds_events(&self) -> bool {
        self.is_unsettled && !self.backlog.is_empty()
    }

    /// The kernel has not taken all that is queued, for want of memory say: it is offered again,
    /// for a bounded time.
    #[cold]
    fn retry_submit(&mut self) {
        let end = Instant::now() + CANCEL_MAX;
        while self.ring.queued() > 0 && Instant::now() < end {
            let _ = self.enter(false, None);
            self.reap();
        }
    }

    /// Submits and reaps while something is so and requests are under way. False when it has lasted
    /// too long.
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
            let limit = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            // A signal, the end of the limit: it is tried again. So is anything else, for as
            // long as there is time.
            let _ = self.enter(true, Some(&limit));
            self.reap();
        }
        true
    }

    /// Submits what is queued and waits for so many completions, for a bounded time.
    fn enter_for(&mut self, count: usize) {
        let limit = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ = self.ring.enter_for(u32::try_from(count).unwrap_or(u32::MAX), 0, Some(&limit));
        self.forget_names();
    }

    /// Submits what is queued. What the kernel does not take now stays queued.
    fn submit(&mut self) {
        let _ = self.ring.submit();
        self.forget_names();
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
            if self.note(&mut completion) && !self.is_ending && !self.is_merged(completion) {
                self.backlog.push_back(completion);
            }
        }
    }

    /// Adds what a poll has found to what it has found before, if that waits: one edge after
    /// another is one event, as epoll's is.
    fn is_merged(&mut self, completion: Completion) -> bool {
        if completion.user_data & tag::MASK >= tag::RECEIVE {
            return false;
        }
        let same =
            |kept: &&mut Completion| kept.user_data == completion.user_data && kept.result >= 0;
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
        // SAFETY: the kernel hands back what it was given with a request of the cell's, and the
        // cell is owed this completion (protocol 1).
        let cell = unsafe { Cell::from_exposed(completion.user_data & !tag::MASK) };
        let is_poll = tag < tag::RECEIVE;
        let own_flag = if tag == tag::OUT_POLL { Flags::OUT_IN_FLIGHT } else { Flags::IN_FLIGHT };
        let is_present =
            tag == u64::from(cell.generation()) || tag == tag::OUT_POLL && cell.has_flag(own_flag);
        if !completion.has_more() {
            if is_poll {
                self.outstanding -= 1;
                cell.poll_ends();
                if is_present {
                    cell.set_flag(own_flag, false);
                }
            } else {
                self.outstanding -= 1;
                cell.request_ends();
            }
        }
        !is_poll || is_present
    }

    /// Leaves the ring as another loop needs it to be, before that sleeps: all is submitted, and
    /// what is there already is told of by `true`.
    pub(crate) fn settle(&mut self) -> Result<bool, Errno> {
        self.fork.check()?;
        self.arm_all();
        self.push_sends();
        if let Some(host_epoll) = &self.host_epoll {
            // First this, then the queues: what comes between is told of twice, and nothing is
            // missed.
            host_epoll.quiet()?;
        }
        if self.ring.wants_enter() {
            // What the kernel says to have and does not bring now will be told of when it comes.
            self.enter(false, None)?;
        }
        if self.sends.any() {
            self.settle_sends();
        }
        let has_more =
            !self.to_arm.is_empty() || !self.backlog.is_empty() || !self.awaiting_buffer.is_empty();
        Ok(has_more || self.ring.has_completions())
    }

    /// The set by which another loop can wait, and the ring's serial. The first time, all watched
    /// cells are to be [told of](Self::tell_host_of).
    pub(crate) fn watchable(&mut self) -> Result<(BorrowedFd<'_>, u64), Errno> {
        // Or the parent's ring would write to an eventfd of the child's.
        self.fork.check()?;
        let host_epoll = match self.host_epoll.take() {
            Some(host_epoll) => host_epoll,
            None => {
                let host_epoll = HostEpoll::new()?;
                self.ring.notify(host_epoll.notifier())?;
                host_epoll
            }
        };
        let host_epoll: &HostEpoll = self.host_epoll.insert(host_epoll);
        Ok((host_epoll.set(), self.serial))
    }

    /// No other loop waits any more: the kernel need not write to an eventfd for each completion,
    /// nor changes be told to the set.
    pub(crate) fn leave_host(&mut self) {
        if self.host_epoll.is_some() && !self.fork.is_child() && self.ring.notify_no_more().is_ok()
        {
            self.host_epoll = None;
        }
    }

    /// Makes sure that another loop hears of what comes for a number.
    ///
    /// # Errors
    /// See [`HostEpoll::watch`].
    pub(crate) fn tell_host_of(&mut self, fd: i32) -> Result<(), Errno> {
        self.host_epoll.as_mut().map_or(Ok(()), |host_epoll| host_epoll.watch(fd))
    }

    /// After all watches have [ended](Self::end): what the kernel has not ended in time is owed for
    /// ever.
    pub(crate) fn close(&mut self) {
        self.backlog.clear();
        self.done.clear();
        for address in self.to_arm.drain(..) {
            // SAFETY: a listed cell is owed, so its block is allocated (protocol 1).
            unsafe { Cell::from_exposed(address) }.set_flag(Flags::TO_ARM, false);
        }
        // In a child it is a copy, to which the kernel does not write.
        if self.outstanding > 0 && !self.fork.is_child() {
            self.keep_pool();
        }
    }
}
