//! io_uring(7): polls instead of epoll entries, and one io_uring_enter(2) per turn that submits and
//! waits.
//!
//! A level-triggered registration is a one-shot poll that is armed again before the next wait. An
//! edge-triggered one is a multishot poll. The kernel ends a multishot poll when it has no room for
//! a completion; it is then armed again. The completion's flag tells this, not the sign of its
//! result.
//!
//! Registrations that are added, changed or have fired go into a list, and their polls are queued
//! when the next wait begins. This merges the changes of a turn, and a registration added and
//! deleted within one turn costs nothing. Between waits the queue holds no poll that names a number
//! (rule 14).
//!
//! A poll carries the cell's address and, in the low bits, a generation. To change or delete a
//! registration, its poll is cancelled by this value. Its final completion always comes. Until then
//! its completions have an old generation and are discarded. So no event is ever reported for a
//! file that was closed or replaced under its number, and a ring has no stale entries (rule 7).
//!
//! The kernel adds a hang-up of the peer's writing half to every poll. If only this condition holds
//! and the interest does not include it, a level-triggered poll would complete in an endless loop.
//! Such a cell is [`QUIET`](Flags::QUIET): a multishot poll watches it until another condition
//! holds.
//!
//! # The protocol of this module
//!
//! 1. The kernel holds a cell's address from the moment when its poll is queued until the last
//!    completion (`!F_MORE`). `listed` holds it while [`Flags::TO_ARM`] is set. Header and block
//!    stay allocated while [`CellPtr::has_inflight`] reports either, or [`Uring::holds_events`] is
//!    true: `registry/reclaim.rs` checks both (rule 2).
//! 2. Every completion is recorded exactly once, when it leaves the queue ([`Uring::reap`]), in the
//!    cell that expects it and is therefore allocated.
//! 3. A completion in `backlog` is recorded and not yet reported. Cancelling a poll discards its
//!    completions there. None names a deleted cell: a deletion waits for the cell's final
//!    completions, and removes its address from `backlog`. If the kernel does not deliver them in
//!    time, `is_unsettled` is set, and dead cells stay allocated while any completion waits.
//! 4. In a child of fork(2) only the guard is read: the memory of the queues is shared with the
//!    parent.

#![allow(unsafe_code, reason = "completions carry the addresses of cells; the protocol above")]

mod buffer_ring;
mod copies;
mod drain;
#[cfg(feature = "sim")]
mod either_ring;
mod features;
mod host_epoll;
mod pace;
mod polls;
mod pool;
mod ring;
mod sends;
#[cfg(feature = "sim")]
mod simulated;
mod streams;
mod waits;

use std::{
    collections::VecDeque,
    os::fd::{AsFd as _, BorrowedFd},
    time::{Duration, Instant},
};

use rustix::{event::epoll, io::Errno, time::Timespec};

pub(crate) use copies::Copied;
#[cfg(feature = "sim")]
use either_ring::EitherRing as Ring;
use host_epoll::HostEpoll;
pub(crate) use pool::ReceivedPart;
use ring::Completion;
#[cfg(not(feature = "sim"))]
use ring::Ring;
use sends::Sends;

use crate::{
    RingError,
    api::interest::{ERR, HUP, IN, OUT, PRI, RDHUP},
    backend::{
        completions::Times,
        fork::{self, ForkGuard},
        napi::{NapiError, NapiPoll},
        next_serial,
        ring_settings::{RingFeatures, RingSettings},
    },
    cell::{CellFlags as Flags, CellPtr},
};

type Cell = CellPtr;

/// The low bits of a request's user data. Below [`OUT_POLL`](tag::OUT_POLL) they are a poll's
/// generation.
pub(crate) mod tag {
    pub(crate) const MASK: u64 = 7;
    /// A poll for writing only, in addition to the present one.
    pub(crate) const OUT_POLL: u64 = 4;
    pub(crate) const RECEIVE: u64 = 5;
    pub(crate) const SEND: u64 = 6;
    /// Cancellations and similar requests. Their results are ignored, and the address may be zero.
    pub(crate) const CONTROL: u64 = 7;
}

/// The conditions that an interest can name.
const CONDITIONS: u32 = IN | PRI | OUT | ERR | HUP | RDHUP;

/// With at most this many waiting completions, an earlier one of the same poll is searched for. If
/// it is not found, one extra event is reported.
const MERGED_MAX: usize = 64;

/// How long to wait for cancelled requests to end. Normally they end at once.
const CANCEL_MAX: Duration = Duration::from_secs(1);

/// The list of polls to arm keeps memory for this many registrations. It keeps more only while a
/// turn needs one in [`TO_ARM_SPARE`] of its places.
const TO_ARM_KEPT: usize = 1024;
const TO_ARM_SPARE: usize = 16;

pub(crate) struct Uring {
    ring: Ring,
    /// Addresses of cells for which a poll is armed when the next wait begins.
    to_arm: Vec<u64>,
    /// Completions taken from the queue outside a wait (protocol 3).
    backlog: VecDeque<Completion>,
    /// Completions of streams in the current batch, by the index that their events carry.
    done: Vec<streams::Waiting>,
    /// How many of them have bytes that no handler has taken yet.
    untaken: usize,
    streams: streams::Streams,
    /// The bytes that were taken last. A reply may be sent from there.
    current: pool::Part,
    sends: Sends,
    /// Addresses of cells whose receive has found no buffer.
    awaiting_buffer: VecDeque<u64>,
    /// Addresses of cells whose receive starts when the next wait begins.
    to_receive: VecDeque<(u64, Times)>,
    settings: RingSettings,
    pace: pace::Pace,
    /// The numbers that queued entries name, by their lowest bits.
    named: Named,
    /// A deleted cell's requests did not end in time, so waiting completions may name it.
    is_unsettled: bool,
    /// The reactor is being dropped: completions are not reported.
    is_ending: bool,
    /// The number of requests whose final completion is outstanding.
    outstanding: usize,
    /// The means by which an outer loop is woken for the ring, once there is one.
    host_epoll: Option<HostEpoll>,
    serial: u64,
    fork: ForkGuard,
}

/// The numbers named by entries that wait for submission: a set of their lowest bits, which may
/// give false positives.
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

    /// Many are noted at once. The system call that follows clears them.
    fn note_all(&mut self) {
        self.0 = [u64::MAX; 4];
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
        Self::on(Ring::new(settings)?, settings)
    }

    /// A ring in a simulation, of one of its actors.
    #[cfg(feature = "sim")]
    pub(crate) fn in_simulation(
        kernel: &windlass_sim::Kernel,
        actor: windlass_sim::ActorId,
        settings: RingSettings,
    ) -> Result<Self, RingError> {
        let ring = simulated::SimRing::new(kernel, actor, settings);
        Self::on(Ring::Simulated(ring), settings)
    }

    fn on(ring: Ring, settings: RingSettings) -> Result<Self, RingError> {
        Ok(Self {
            ring,
            to_arm: Vec::new(),
            backlog: VecDeque::with_capacity(MERGED_MAX),
            done: Vec::new(),
            untaken: 0,
            streams: streams::Streams::default(),
            current: pool::Part::default(),
            sends: Sends::default(),
            awaiting_buffer: VecDeque::new(),
            to_receive: VecDeque::new(),
            settings,
            pace: pace::Pace::new(),
            named: Named::default(),
            is_unsettled: false,
            is_ending: false,
            outstanding: 0,
            host_epoll: None,
            serial: next_serial(),
            fork: ForkGuard::new(1).map_err(RingError::Os)?,
        })
    }

    /// Makes the kernel poll network cards in waits. A ring has no budget, but refuses the same
    /// ones as epoll.
    pub(crate) fn set_napi(&self, napi: NapiPoll) -> Result<(), NapiError> {
        if napi.is_privileged() {
            let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(NapiError::Os)?;
            napi.set_on_epoll(set.as_fd())?;
        }
        self.ring.set_napi(napi)
    }

    /// Waits of a reactor in a simulation: see rule 4 of [`simulated`].
    #[cfg(feature = "sim")]
    pub(crate) fn wait_in_simulation(
        &mut self,
        room: &mut [core::mem::MaybeUninit<crate::backend::batch::RawEvent>],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        if self.has_nothing_for(timeout) {
            return Ok(0);
        }
        self.set_in_wait(true);
        let outcome = self.wait(room, timeout);
        self.set_in_wait(false);
        outcome.into()
    }

    #[cfg(feature = "sim")]
    fn set_in_wait(&mut self, is_in_wait: bool) {
        if let Some(ring) = self.ring.simulated() {
            ring.set_in_wait(is_in_wait);
        }
    }

    /// Fails in a child of fork(2).
    pub(crate) fn check_owner(&self) -> Result<(), Errno> {
        fork::check(&self.fork)
    }

    pub(crate) fn fork_guard(&self) -> Option<ForkGuard> {
        Some(self.fork.clone())
    }

    /// The features that the ring has, of those requested.
    pub(crate) fn features(&self) -> RingFeatures {
        self.ring.features()
    }

    /// Whether completions wait that may name a deleted cell. Dead cells stay allocated meanwhile
    /// (protocol 1).
    pub(crate) fn holds_events(&self) -> bool {
        self.is_unsettled && !self.backlog.is_empty()
    }

    /// The kernel has not taken all queued entries, for example for lack of memory. They are
    /// submitted again, for a bounded time.
    #[cold]
    fn retry_submit(&mut self) {
        let end = Instant::now() + CANCEL_MAX;
        while self.ring.queued() > 0 && Instant::now() < end {
            let _ = self.enter(false, None);
            self.reap();
        }
    }

    /// Submits and reaps while a condition holds and requests are outstanding. False if it has
    /// lasted too long.
    fn settle_while(&mut self, mut is_so: impl FnMut(&Self) -> bool) -> bool {
        if self.fork.is_child() {
            return false;
        }
        #[cfg(feature = "sim")]
        self.set_in_wait(false);
        let mut end = None;
        self.reap();
        while is_so(self) && self.outstanding > 0 {
            let now = Instant::now();
            if now >= *end.get_or_insert(now + CANCEL_MAX) {
                return false;
            }
            let limit = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            // A signal or the end of the time limit: tried again. Other errors are retried too,
            // until the time is over.
            let _ = self.enter(true, Some(&limit));
            self.reap();
        }
        true
    }

    /// Submits the queue and waits for `count` completions, for a bounded time.
    fn enter_for(&mut self, count: usize) {
        let limit = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ = self.ring.enter_for(u32::try_from(count).unwrap_or(u32::MAX), Some(&limit));
        self.forget_names();
    }

    /// Submits the queue. Entries that the kernel does not take stay queued.
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

    /// Merges the result of a poll into its earlier completion, if that is still waiting. As with
    /// epoll, two edges in a row are one event.
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

    /// Records a completion (protocol 2). True if it may have to be reported.
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
        // SAFETY: The kernel returns the value that it was given with a request of this cell. The
        // cell is owed this completion, so it is allocated (protocol 1).
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

    /// Prepares the ring for the sleep of another loop: submits everything, and returns true if
    /// there are completions already.
    pub(crate) fn settle(&mut self) -> Result<bool, Errno> {
        self.check_owner()?;
        self.arm_all();
        self.start_receives();
        self.push_sends();
        if let Some(host_epoll) = &self.host_epoll {
            // This order matters: first this, then the queues. An event in between is then reported
            // twice, and none is missed.
            host_epoll.quiet()?;
        }
        if self.ring.wants_enter() {
            // If the kernel has completions that it does not deliver now, it signals them when it
            // does.
            self.enter(false, None)?;
        }
        if self.sends.any() {
            self.settle_sends();
        }
        let has_more =
            !self.to_arm.is_empty() || !self.backlog.is_empty() || !self.awaiting_buffer.is_empty();
        Ok(has_more || self.ring.has_completions())
    }

    /// The set by which another loop can wait, and the ring's serial number. After the first call,
    /// [`tell_host_of`](Self::tell_host_of) must be called for all watched cells.
    pub(crate) fn watchable(&mut self) -> Result<(BorrowedFd<'_>, u64), Errno> {
        // Otherwise the parent's ring would write to an eventfd of the child.
        self.check_owner()?;
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

    /// The outer loop no longer waits: the kernel stops writing to the eventfd, and changes are no
    /// longer passed to the set.
    pub(crate) fn leave_host(&mut self) {
        if self.host_epoll.is_some() && !self.fork.is_child() && self.ring.notify_no_more().is_ok()
        {
            self.host_epoll = None;
        }
    }

    /// Makes sure that the outer loop is woken for events of a number.
    ///
    /// # Errors
    /// See [`HostEpoll::watch`].
    pub(crate) fn tell_host_of(&mut self, fd: i32) -> Result<(), Errno> {
        self.host_epoll.as_mut().map_or(Ok(()), |host_epoll| host_epoll.watch(fd))
    }

    /// Called after all watches have [ended](Self::end). Requests that the kernel has not ended in
    /// time stay outstanding forever.
    pub(crate) fn close(&mut self) {
        self.backlog.clear();
        self.forget_done();
        for address in self.to_arm.drain(..) {
            // SAFETY: A listed cell is owed, so its block is allocated (protocol 1).
            unsafe { Cell::from_exposed(address) }.set_flag(Flags::TO_ARM, false);
        }
        // A child has only a copy of the pool, to which the kernel does not write.
        if self.outstanding > 0 && !self.fork.is_child() {
            self.keep_pool();
        }
    }
}
