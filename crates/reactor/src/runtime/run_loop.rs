//! The event loop: wait, dispatch, and the other work of a turn.
//!
//! One turn ([`Reactor::run_once`]):
//!
//! 1. Run destructors left by a panic. Rebuild the epoll set if requested. Run the hooks before the
//!    wait. Flush merged changes.
//! 2. Wait. If events are left over from a turn that panicked, they go first, and the turn neither
//!    waits nor fetches events (rules 8, 9).
//! 3. Run work left over by the last turn: deferred closures, remote calls, due timers (rule 10).
//!    If events are left over too, these timers come after them.
//! 4. Dispatch the events.
//! 5. Fire due timers. Run remote calls, deferred closures, and the hooks after the turn.
//! 6. Free the blocks of deleted cells, if the batch is empty (rule 2).
//!
//! If only events can be due (`pending_work` is zero), a turn is the wait and the events. With a
//! `Remote` it also updates the latch. Beside timers it reads the clock before the wait. If one is
//! due, the wait does not block, and timers fire after the events. If the wait ends for a timer, it
//! fires in the same turn. If the wait ends for events, due timers fire in the next turn.
//!
//! # How the loop sleeps
//!
//! 1. With a `Remote`, the latch is put to sleep right before a wait that may block, and awake
//!    right after any wait.
//! 2. If the latch does not go to sleep, another thread has woken it since. The wait then returns
//!    at once.
//! 3. If the latch was woken when it is put awake, the inbox is checked in this turn. If a panic
//!    comes first, it is checked at the start of the next turn.
//! 4. A thread that pushes to the inbox wakes the latch afterwards. If the push came before the
//!    latch fell asleep, the loop sees it. If it came after, it writes to the wake descriptor.
//! 5. Without a `Remote`, the latch always sleeps, and a stop always writes to the wake descriptor.
//!
//! # Short and full turns
//!
//! [`Reactor::run_once`] runs a short turn ([`Reactor::run_short_turn`]) if the bits of
//! `pending_work` allow it, and otherwise a full one ([`Reactor::run_full_turn`]). A short turn in
//! which a timer is due goes on as a timer turn ([`Reactor::run_timer_turn`]).

#![allow(unsafe_code, reason = "dispatches the events that a wait has written")]

use core::ops::ControlFlow;
use std::{
    io, mem,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use crate::{
    Key, Reactor,
    kernel::{
        Kernel,
        dispatch::{Paced, Plain, dispatch_from, dispatch_rest},
        pending_work,
    },
    runtime::{
        driver::DriverCall,
        hook::Moment,
        wait::{WAIT_MAX_NS, ZERO},
    },
    time::{clock::timespec_of_ns, timing::looks::TimerState},
};

/// The longest wait while no other thread can wake the loop, so that requests of other threads are
/// still noticed.
const DEAF_WAIT_MAX: Duration = Duration::from_millis(10);

/// Ends a turn, also after a panic. It then restores the reactor's state and runs no user code
/// (rule 8).
pub(super) struct TurnGuard<'r> {
    pub(super) reactor: &'r mut Reactor,
    /// True if the batch's events have been counted as dispatched.
    pub(super) counted: bool,
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        let reactor = &mut *self.reactor;
        // The latch's wake was consumed, but a panic came before the inbox was checked.
        reactor.turn.end(reactor.kernel.has(pending_work::CALLS));
        reactor.deferred.end_turn();
        reactor.kernel.end_turn(self.counted);
        reactor.timing.end_turn();
        reactor.recompute_pending();
    }
}

impl Reactor {
    /// Waits until something is due or `timeout` has passed (`None`: no limit), and runs one turn.
    /// Returns the number of dispatched events, without timers, closures and wake-ups.
    ///
    /// With a timeout of zero, the call does not block. Other timeouts are exact to the nanosecond
    /// if the kernel supports it (`epoll_pwait2`, since Linux 5.11). Otherwise they are rounded up
    /// to a millisecond. A wait is never shorter than the timeout unless something is due. `EINTR`
    /// neither ends nor extends it. The call returns early with 0 if only timers, closures or a
    /// wake-up were due.
    ///
    /// # Errors
    /// - `ESTALE`: the process is a child of fork(2), and the reactor belongs to the parent.
    /// - `EINVAL` on [`Backend::Poll`](crate::Backend::Poll): more descriptors are registered than
    ///   `RLIMIT_NOFILE` now allows.
    /// - Other errors of epoll_wait(2), io_uring_enter(2) or ppoll(2). They occur only if other
    ///   code tampers with the descriptor.
    ///
    /// # Panics
    /// Resumes the panic of a handler or destructor. The reactor stays usable. The rest of the
    /// batch comes first in the next turn, which does not wait (rule 8).
    #[doc(alias("epoll_wait", "epoll_pwait2", "io_uring_enter", "ppoll"))]
    #[inline(always)]
    pub fn run_once(&mut self, timeout: impl Into<Option<Duration>>) -> io::Result<usize> {
        #[cfg(feature = "sim")]
        let _host = self.at_host();
        match timeout.into() {
            None if self.kernel.pending() == 0 => self.run_short_turn::<false, 0>(),
            Some(Duration::ZERO) if self.kernel.pending() == 0 => self.run_short_turn::<true, 0>(),
            timeout => Ok(self.run_other_turn(timeout)?),
        }
    }

    /// A turn in which other work may be due, or with a finite timeout.
    #[cold]
    #[inline(never)]
    fn run_other_turn(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        match timeout {
            None => self.run_turn_by_work::<false>(),
            Some(Duration::ZERO) => self.run_turn_by_work::<true>(),
            timeout => self.run_full_turn(timeout),
        }
    }

    /// A short turn, if it serves all pending work. `AT_ONCE` says that the wait does not block.
    #[inline(always)]
    fn run_turn_by_work<const AT_ONCE: bool>(&mut self) -> io::Result<usize> {
        use pending_work::{
            PACED, PACED_TIMERS, REMOTE, REMOTE_PACED, REMOTE_TIMERS, SHORT, TIMERS,
        };

        if self.kernel.pending() == TIMERS {
            return self.run_short_turn::<AT_ONCE, TIMERS>();
        }
        match self.kernel.pending() {
            REMOTE_TIMERS => self.run_short_turn::<AT_ONCE, REMOTE_TIMERS>(),
            REMOTE => self.run_short_turn::<AT_ONCE, REMOTE>(),
            PACED => self.run_short_turn::<AT_ONCE, PACED>(),
            REMOTE_PACED => self.run_short_turn::<AT_ONCE, REMOTE_PACED>(),
            PACED_TIMERS => self.run_short_turn::<AT_ONCE, PACED_TIMERS>(),
            SHORT => self.run_short_turn::<AT_ONCE, SHORT>(),
            _ => self.run_full_turn(AT_ONCE.then_some(Duration::ZERO)),
        }
    }

    /// A turn in which only events can be due. `PENDING` is `pending_work` at its start: there may
    /// be remote calls, replies may be queued with a ring, and timers may wait.
    ///
    /// The results of the other paths are taken apart and put together again. So each path knows
    /// whether it ends in an error, and the usual one does not test it.
    #[inline(always)]
    #[expect(clippy::needless_question_mark, reason = "see above")]
    fn run_short_turn<const AT_ONCE: bool, const PENDING: u32>(&mut self) -> io::Result<usize> {
        use pending_work::{ALARM, TIMERS, WOKEN};

        debug_assert_eq!(self.kernel.pending(), PENDING, "the path is that of the pending work");
        let has_remote = PENDING & pending_work::REMOTE != 0;
        let has_timers = PENDING & TIMERS != 0;
        let mut until_timer_ns = 0;
        if has_timers {
            match self.timing.look_at_timers() {
                TimerState::NoneFor(ns) => {
                    until_timer_ns = ns;
                    self.timing.note_look(&mut self.kernel, ns);
                }
                TimerState::Due => return Ok(self.run_timer_turn()?),
                TimerState::Unclear => {
                    return Ok(self.run_full_turn(AT_ONCE.then_some(Duration::ZERO))?);
                }
            }
        }
        let at_once = AT_ONCE || (has_remote && !self.stop.latch().sleep());
        let until_timer;
        let timeout = match at_once {
            true => Some(&ZERO),
            false if has_timers => {
                until_timer = timespec_of_ns(until_timer_ns.min(WAIT_MAX_NS));
                Some(&until_timer)
            }
            false => None,
        };
        let count = match self.kernel.wait_short(timeout) {
            Ok(count) => count,
            Err(errno) => return Ok(self.short_turn_failed::<AT_ONCE>(errno)?),
        };
        if has_remote {
            self.wake_up();
        }
        // The wait has ended for a timer. If the latch was woken, calls come first, and the timer
        // fires in the next turn.
        if has_timers && !at_once && count == 0 && !self.kernel.has(pending_work::CALLS) {
            return Ok(self.after_wait_for_timer()?);
        }
        let counters = self.kernel.counters();
        counters.turns += 1;
        counters.events += count as u64;
        if has_timers && count == self.kernel.events_max() {
            self.timing.put_off_alarm();
        }
        if count == 0 {
            if self.kernel.pending() == PENDING {
                return Ok(0);
            }
            return Ok(TurnGuard { reactor: self, counted: true }.finish_short(0));
        }
        // SAFETY: the wait has written this many events to the batch, which was empty and closed:
        // it would otherwise be pending work. Opened before the guard exists, which saves an
        // instruction.
        let first = unsafe { self.kernel.open_batch(count) };
        let guard = TurnGuard { reactor: self, counted: true };
        let (kernel, reactor) = guard.reactor.pointers();
        if PENDING & pending_work::PACED == 0 {
            // SAFETY: the guard is not used during the call. No handler runs, because this is not
            // called from one (rule 4). The batch is open, and this is its first event.
            unsafe { dispatch_from(kernel, reactor, first, Plain) };
        } else {
            // SAFETY: as above.
            unsafe { dispatch_from(kernel, reactor, first, Paced) };
        }
        if guard.reactor.kernel.pending() != PENDING {
            let only_alarm = PENDING | ALARM | WOKEN | TIMERS;
            let is_alone = count == 1 && guard.reactor.kernel.pending() == only_alarm;
            let count = guard.finish_short(count);
            return if is_alone { Ok(self.after_alarm(AT_ONCE)?) } else { Ok(count) };
        }
        guard.reactor.kernel.close_empty_batch();
        mem::forget(guard);
        Ok(count)
    }

    /// A wait of [`run_short_turn`](Self::run_short_turn) has failed.
    #[cold]
    fn short_turn_failed<const AT_ONCE: bool>(&mut self, errno: Errno) -> io::Result<usize> {
        // In a child of fork(2) the error is another one.
        self.kernel.check_owner()?;
        match errno {
            Errno::INTR => self.run_full_turn(AT_ONCE.then_some(Duration::ZERO)),
            errno => Err(errno.into()),
        }
    }

    /// A turn with all steps.
    pub(super) fn run_full_turn(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        self.run_driven_turn(timeout, None)
    }

    /// A turn with all steps. The driver is called right before the wait.
    #[cold]
    #[inline(never)]
    pub(super) fn run_driven_turn(
        &mut self,
        timeout: Option<Duration>,
        driver: Option<DriverCall<'_>>,
    ) -> io::Result<usize> {
        self.kernel.check_owner()?;
        let deferred = self.deferred.begin_turn(self.limits.deferred_per_turn);
        let mut guard = TurnGuard { reactor: self, counted: false };
        let ControlFlow::Continue(timeout) = guard.reactor.prepare(timeout, driver) else {
            return Ok(0);
        };
        // Before the batch is filled, so that it may name only cells added before
        // (`Kernel::is_new`).
        guard.reactor.kernel.counters().turns += 1;
        let has_kept = guard.reactor.kernel.has_events();
        if !has_kept {
            guard.reactor.fetch(timeout)?;
        }
        guard.counted = true;
        let reactor = &mut *guard.reactor;
        let count = reactor.kernel.events();
        reactor.kernel.counters().events += count as u64;
        // Timers started in this turn do not fire in it (rule 9). If none waits now, none can
        // become due.
        let has_timers = reactor.timing.has_waiting();
        // After kept events. Otherwise a timer that panics in every turn would delay them for ever.
        let timers_first = reactor.turn.take_timers_left() && !has_kept;
        if has_timers {
            // Set until they have fired. If anything panics before that, they come first in the
            // next turn (rule 8).
            reactor.turn.set_timers_left(reactor.timing.may_be_due());
        }
        reactor.run_deferred(deferred);
        if reactor.turn.calls_left() {
            // It clears `CALLS`, so the end of the turn runs no more of them.
            reactor.run_calls(reactor.limits.calls_per_turn);
        }
        if has_timers && timers_first {
            reactor.fire_timers();
        }
        reactor.time_progress();
        reactor.run_events();
        if has_timers && !timers_first {
            reactor.fire_timers();
        }
        Ok(guard.finish_full(count, deferred))
    }

    /// The steps before the wait. Returns how long it may take. `Break` if the driver ends the
    /// loop, and so there is no wait.
    fn prepare(
        &mut self,
        timeout: Option<Duration>,
        driver: Option<DriverCall<'_>>,
    ) -> ControlFlow<(), Option<Duration>> {
        // Rule 14, then rule 8.
        self.kernel.flush();
        self.kernel.drop_all_waiting();
        if self.kernel.has(pending_work::REBUILD) && !self.kernel.has_events() {
            self.kernel.rebuild();
        } else if self.kernel.has(pending_work::DEAF) {
            self.kernel.listen_again();
        }
        self.kernel.set_calling(true);
        let was_asked = self.stop.is_asked();
        self.run_hooks(Moment::BeforeWait);
        self.timing.end_turn();
        let is_driven = driver.is_some();
        let answer = match driver {
            None => ControlFlow::Continue(timeout),
            Some(driver) => self.drive(timeout, driver),
        };
        if self.kernel.has(pending_work::STREAMS) {
            self.streams.service(&mut self.kernel);
        }
        self.kernel.flush();
        let is_ended = !was_asked && self.stop.is_asked();
        ControlFlow::Continue(match answer? {
            // Nothing would wake the wait.
            _ if is_ended && is_driven => return ControlFlow::Break(()),
            _ if is_ended => Some(Duration::ZERO),
            timeout if !self.kernel.has(pending_work::DEAF) => timeout,
            timeout => Some(timeout.map_or(DEAF_WAIT_MAX, |timeout| timeout.min(DEAF_WAIT_MAX))),
        })
    }

    /// What the dispatch of events works on: the kernel, by a pointer derived from the other.
    #[inline(always)]
    fn pointers(&mut self) -> (*mut Kernel, *mut Self) {
        let reactor: *mut Self = self;
        // SAFETY: the pointer is that of a live reference, so the field lies inside the object.
        (unsafe { &raw mut (*reactor).kernel }, reactor)
    }

    /// Runs the handlers of the batch.
    pub(super) fn run_events(&mut self) {
        let fetched = self.turn.fetched();
        loop {
            let (kernel, reactor) = self.pointers();
            // SAFETY: `self` is not used during the call. No handler runs, because this is not
            // called from one (rule 4).
            unsafe { dispatch_rest(kernel, reactor, fetched) };
            if !self.kernel.has(pending_work::SELF_DELETED) {
                self.kernel.close_empty_batch();
                return;
            }
            self.kernel.drop_self_deleted();
        }
    }

    /// Makes a call. Before it, replies are submitted that have waited for long enough. If the
    /// watchdog is on, the time of the call is measured. `key` is that of its timer, if it is one.
    pub(crate) fn timed(&mut self, key: Option<Key>, call: impl FnOnce(&mut Self)) {
        self.kernel.submit_if_due();
        let Some(fetched) = self.turn.fetched() else {
            return call(self);
        };
        let start = Instant::now();
        call(self);
        self.kernel.counters().note_handler(fetched, start, key);
    }
}

impl TurnGuard<'_> {
    /// The end of a short turn that may have left other work.
    #[inline(never)]
    pub(super) fn finish_short(self, count: usize) -> usize {
        let reactor = &mut *self.reactor;
        if reactor.is_settled() {
            reactor.kernel.clear(pending_work::CLOCK);
            reactor.timing.end_turn();
            reactor.kernel.close_empty_batch();
            reactor.kernel.set_calling(false);
            mem::forget(self);
            return count;
        }
        if reactor.kernel.has(pending_work::SELF_DELETED) {
            reactor.kernel.drop_self_deleted();
            reactor.run_events();
        }
        reactor.kernel.close_batch();
        self.finish_full(count, 0)
    }

    /// The steps after events and timers. Returns the count of the user's events. `deferred` is
    /// the number of deferred closures that this turn has run already.
    fn finish_full(self, count: usize, deferred: usize) -> usize {
        let reactor = &mut *self.reactor;
        reactor.kernel.set_calling(true);
        if reactor.kernel.has(pending_work::CALLS) {
            reactor.run_calls(reactor.limits.calls_per_turn);
        }
        reactor.run_deferred(reactor.limits.deferred_per_turn - deferred);
        reactor.run_hooks(Moment::AfterTurn);
        if reactor.kernel.has(pending_work::PROGRESS) {
            reactor.report_no_progress();
        }
        if reactor.kernel.has(pending_work::STREAMS) {
            reactor.streams.service(&mut reactor.kernel);
            reactor.streams.admit_next_handshakes(&mut reactor.kernel);
        }
        let count = count - reactor.turn.woken();
        reactor.kernel.free_dead();
        count
    }
}
