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
//! # The protocol of this module
//!
//! While the loop runs, it accesses the reactor through one raw pointer, made from the `&mut self`
//! of `run_once`. A trampoline turns it into the handler's [`Turn`] during a call. No reference to
//! the reactor is alive in the loop at that time.

#![allow(
    unsafe_code,
    reason = "the loop calls cells by the addresses that the kernel hands back; the protocol above"
)]

use core::ops::ControlFlow;
use std::{
    io, mem,
    time::{Duration, Instant},
};

use rustix::{io::Errno, time::Timespec};

use crate::{
    Reactor, Turn,
    backend::WaitResult,
    kernel::pending_work,
    runtime::{
        dispatch::{dispatch_batch, dispatch_events, dispatch_paced, dispatch_watched},
        driver::DriverCall,
        hook::Moment,
        timers::TimerState,
    },
    time::clock::{timespec, timespec_of_ns},
};

const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The longest single wait. Longer waits are repeated. epoll_wait(2) takes 31 bits of milliseconds,
/// which is some days more than this.
const WAIT_MAX: Duration = Duration::from_secs(24 * 24 * 3600);
const WAIT_MAX_NS: u64 = WAIT_MAX.as_nanos() as u64;

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
        reactor.turn.calls_left |= reactor.kernel.pending_work & pending_work::CALLS != 0;
        // A cell that deleted itself and panicked: its value's destructor runs in the next turn.
        reactor.kernel.retire_self_deleted();
        reactor.kernel.batch.close();
        reactor.kernel.is_calling = false;
        reactor.turn.woken = 0;
        reactor.turn.is_deferring = false;
        // Left-over events are counted when they are dispatched.
        if self.counted {
            reactor.kernel.counters.events -= reactor.kernel.batch.len() as u64;
        }
        reactor.timing.time.end_turn();
        if reactor.kernel.pending_work & pending_work::QUEUED != 0 {
            // The next wait may be far off, and peers wait for the sent data. In `run` its own
            // guard submits.
            reactor.kernel.backend.submit_now();
        }
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
        match timeout.into() {
            None if self.kernel.pending_work == 0 => self.fast_turn::<false, 0>(),
            Some(Duration::ZERO) if self.kernel.pending_work == 0 => self.fast_turn::<true, 0>(),
            timeout => Ok(self.slow_turn(timeout)?),
        }
    }

    /// A turn in which other work may be due.
    #[cold]
    #[inline(never)]
    fn slow_turn(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        match timeout {
            None => self.short_turn::<false>(),
            Some(Duration::ZERO) => self.short_turn::<true>(),
            timeout => self.turn(timeout),
        }
    }

    /// The same where `AT_ONCE` says that the wait does not block.
    #[inline(always)]
    fn short_turn<const AT_ONCE: bool>(&mut self) -> io::Result<usize> {
        use pending_work::{
            PACED, PACED_TIMERS, REMOTE, REMOTE_PACED, REMOTE_TIMERS, SHORT, TIMERS,
        };

        if self.kernel.pending_work == TIMERS {
            return self.fast_turn::<AT_ONCE, TIMERS>();
        }
        match self.kernel.pending_work {
            REMOTE_TIMERS => self.fast_turn::<AT_ONCE, REMOTE_TIMERS>(),
            REMOTE => self.fast_turn::<AT_ONCE, REMOTE>(),
            PACED => self.fast_turn::<AT_ONCE, PACED>(),
            REMOTE_PACED => self.fast_turn::<AT_ONCE, REMOTE_PACED>(),
            PACED_TIMERS => self.fast_turn::<AT_ONCE, PACED_TIMERS>(),
            SHORT => self.fast_turn::<AT_ONCE, SHORT>(),
            _ => self.turn(AT_ONCE.then_some(Duration::ZERO)),
        }
    }

    /// A turn in which only events can be due. `PENDING` is `pending_work` at its start: there may
    /// be remote calls, replies may be queued with a ring, and timers may wait.
    ///
    /// The results of the other paths are taken apart and put together again. So each path knows
    /// whether it ends in an error, and the usual one does not test it: five instructions less.
    #[inline(always)]
    #[expect(clippy::needless_question_mark, reason = "see above")]
    fn fast_turn<const AT_ONCE: bool, const PENDING: u32>(&mut self) -> io::Result<usize> {
        use pending_work::{ALARM, TIMERS, WOKEN};

        let has_remote = PENDING & pending_work::REMOTE != 0;
        let has_timers = PENDING & TIMERS != 0;
        let mut until_timer_ns = 0;
        if has_timers {
            match self.timing.look_at_timers() {
                TimerState::NoneFor(ns) => {
                    until_timer_ns = ns;
                    if self.timing.alarm.counts_look() {
                        self.timing.arm_alarm(&mut self.kernel, ns);
                    }
                }
                TimerState::Due => return Ok(self.due_turn()?),
                TimerState::Unclear => return Ok(self.turn(AT_ONCE.then_some(Duration::ZERO))?),
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
        let result = match self.kernel.backend.usual() {
            Some(epoll) => {
                // SAFETY: the set was made with the capacity of this batch. In a child it is zero.
                let room = unsafe { self.kernel.batch.front(epoll.room_unless_child()) };
                epoll.wait_unless_child(room, timeout)
            }
            None => self.wait_on_other(timeout).into(),
        };
        let count = match result {
            Ok(count) => count,
            Err(errno) => return Ok(self.fast_turn_failed::<AT_ONCE>(errno)?),
        };
        if has_remote {
            self.wake_up();
        }
        // The wait has ended for a timer. If the latch was woken, calls come first, and the timer
        // fires in the next turn.
        if has_timers
            && !at_once
            && count == 0
            && self.kernel.pending_work & pending_work::CALLS == 0
        {
            return Ok(self.after_wait_for_timer()?);
        }
        self.kernel.counters.turns += 1;
        self.kernel.counters.events += count as u64;
        if has_timers && count == self.kernel.batch.capacity() {
            self.timing.alarm.count_again();
        }
        if count == 0 {
            if self.kernel.pending_work == PENDING {
                return Ok(0);
            }
            return Ok(TurnGuard { reactor: self, counted: true }.finish_fast(0));
        }
        // SAFETY: the wait has written this many events to the front of the room. The batch was
        // empty and closed: it would otherwise be pending work. The loop takes the first event.
        let first = unsafe { self.kernel.batch.open_with(count) };
        let guard = TurnGuard { reactor: self, counted: true };
        if PENDING & pending_work::PACED == 0 {
            // SAFETY: the guard is not used during the call. No handler runs, because this is not
            // called from one (rule 4). The batch is open and not empty.
            unsafe { dispatch_events(guard.reactor, first) };
        } else {
            // SAFETY: as above.
            unsafe { dispatch_paced(guard.reactor, first) };
        }
        if guard.reactor.kernel.pending_work != PENDING {
            let only_alarm = PENDING | ALARM | WOKEN | TIMERS;
            let is_alone = count == 1 && guard.reactor.kernel.pending_work == only_alarm;
            let count = guard.finish_fast(count);
            return if is_alone { Ok(self.after_alarm(AT_ONCE)?) } else { Ok(count) };
        }
        guard.reactor.kernel.batch.close_empty();
        mem::forget(guard);
        Ok(count)
    }

    /// One wait that does not block, into the empty batch.
    pub(super) fn fetch_at_once(&mut self) -> Result<usize, Errno> {
        self.kernel.batch.clear();
        let result = match self.kernel.backend.usual() {
            Some(epoll) => {
                // SAFETY: the set was made with the capacity of this batch. In a child it is zero.
                let room = unsafe { self.kernel.batch.front(epoll.room_unless_child()) };
                epoll.wait_unless_child(room, Some(&ZERO))
            }
            None => self.wait_on_other(Some(&ZERO)).into(),
        };
        let count = result?;
        // SAFETY: the wait has written this many events to the front of the room.
        unsafe { self.kernel.batch.filled(count) };
        if self.kernel.pending_work & pending_work::REMOTE != 0 {
            self.wake_up();
        }
        Ok(count)
    }

    /// The wait of [`fast_turn`](Self::fast_turn) on other backends. A function of the reactor, so
    /// that the caller does not compute the address of the backend on epoll too.
    #[inline(never)]
    fn wait_on_other(&mut self, timeout: Option<&Timespec>) -> WaitResult {
        self.kernel.backend.wait_slow(self.kernel.batch.whole_room(), timeout)
    }

    /// A wait of [`fast_turn`](Self::fast_turn) has failed.
    #[cold]
    fn fast_turn_failed<const AT_ONCE: bool>(&mut self, errno: Errno) -> io::Result<usize> {
        // In a child of fork(2) the error is another one.
        self.kernel.backend.check_owner()?;
        match errno {
            Errno::INTR => self.turn(AT_ONCE.then_some(Duration::ZERO)),
            errno => Err(errno.into()),
        }
    }

    /// Puts the latch awake. If it was woken, the inbox must be checked.
    #[inline]
    fn wake_up(&mut self) {
        if self.stop.latch().awake() {
            self.kernel.pending_work |= pending_work::CALLS;
        }
    }

    /// A turn with all steps.
    pub(super) fn turn(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        self.turn_with(timeout, None)
    }

    /// A turn with all steps. The driver is called right before the wait.
    #[cold]
    #[inline(never)]
    pub(super) fn turn_with(
        &mut self,
        timeout: Option<Duration>,
        driver: Option<DriverCall<'_>>,
    ) -> io::Result<usize> {
        self.kernel.backend.check_owner()?;
        self.deferred.append(&mut self.deferred_later);
        let left = self.deferred.len().min(self.limits.deferred_per_turn);
        let mut guard = TurnGuard { reactor: self, counted: false };
        let ControlFlow::Continue(timeout) = guard.reactor.prepare(timeout, driver) else {
            return Ok(0);
        };
        // Before the batch is filled, so that it may name only cells added before
        // (`Kernel::is_new`).
        guard.reactor.kernel.counters.turns += 1;
        let has_kept = !guard.reactor.kernel.batch.is_empty();
        if !has_kept {
            guard.reactor.fetch(timeout)?;
        }
        guard.counted = true;
        let reactor = &mut *guard.reactor;
        let count = reactor.kernel.batch.len();
        reactor.kernel.counters.events += count as u64;
        // Timers started in this turn do not fire in it (rule 9). If none waits now, none can
        // become due.
        let has_timers = reactor.timing.timers.waiting() > 0;
        // After kept events. Otherwise a timer that panics in every turn would delay them for ever.
        let timers_first = mem::take(&mut reactor.turn.timers_left) && !has_kept;
        if has_timers {
            let now = reactor.timing.time.turn_ns();
            // Set until they have fired. If anything panics before that, they come first in the
            // next turn (rule 8).
            reactor.turn.timers_left = reactor.timing.timers.may_be_due(now);
        }
        reactor.run_deferred(left);
        if reactor.turn.calls_left {
            // It clears `CALLS`, so the end of the turn runs no more of them.
            reactor.run_calls(reactor.limits.calls_per_turn);
        }
        if has_timers && timers_first {
            reactor.fire_timers();
        }
        reactor.run_events();
        if has_timers && !timers_first {
            reactor.fire_timers();
        }
        Ok(guard.finish(count, left))
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
        if self.kernel.pending_work & pending_work::REBUILD != 0 && self.kernel.batch.is_empty() {
            self.kernel.rebuild();
        } else if self.kernel.pending_work & pending_work::DEAF != 0 {
            self.kernel.listen_again();
        }
        self.kernel.is_calling = true;
        let was_asked = self.stop.is_asked();
        self.run_hooks(Moment::BeforeWait);
        self.timing.time.end_turn();
        let is_driven = driver.is_some();
        let answer = match driver {
            None => ControlFlow::Continue(timeout),
            Some(driver) => self.drive(timeout, driver),
        };
        if self.kernel.pending_work & pending_work::STREAMS != 0 {
            self.service_streams();
        }
        self.kernel.flush();
        let is_ended = !was_asked && self.stop.is_asked();
        ControlFlow::Continue(match answer? {
            // Nothing would wake the wait.
            _ if is_ended && is_driven => return ControlFlow::Break(()),
            _ if is_ended => Some(Duration::ZERO),
            timeout if self.kernel.pending_work & pending_work::DEAF == 0 => timeout,
            timeout => Some(timeout.map_or(DEAF_WAIT_MAX, |timeout| timeout.min(DEAF_WAIT_MAX))),
        })
    }

    /// Fills the empty batch: first with pending error events, then from the kernel.
    fn fetch(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.kernel.free_dead();
        self.kernel.batch.clear();
        self.kernel.push_faults();
        self.push_notifications();
        let timeout = if self.must_not_wait() { Some(Duration::ZERO) } else { timeout };
        self.wait(timeout)?;
        if self.kernel.pending_work & pending_work::REMOTE != 0 {
            self.wake_up();
        }
        if let Some(fetched) = &mut self.turn.fetched {
            *fetched = Instant::now();
        }
        Ok(())
    }

    /// Waits for events into the rest of the batch, until the timeout or the next timer.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        // The clock is read only for a finite timeout and for timers.
        let waits = timeout != Some(Duration::ZERO);
        let has_timers = self.timing.timers.waiting() > 0;
        let start = (waits && (timeout.is_some() || !self.busy_poll.is_zero())).then(Instant::now);
        let deadline = start.zip(timeout).and_then(|(start, timeout)| start.checked_add(timeout));
        if let Some(start) = start.filter(|_| !self.busy_poll.is_zero()) {
            if self.spin(start, deadline)? {
                return Ok(());
            }
        }
        let waits = waits
            && (self.kernel.pending_work & pending_work::REMOTE == 0 || self.stop.latch().sleep());
        loop {
            let timer = if waits && has_timers { self.timing.until_next_timer() } else { None };
            let until_deadline =
                deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let longest = if waits { until_deadline } else { Some(Duration::ZERO) };
            let by_timer = timer.is_some_and(|timer| longest.is_none_or(|longest| timer < longest));
            let span = if by_timer { timer } else { longest };
            let has_rung = match self.wait_once(span) {
                Ok(0) => false,
                Ok(_) if self.timing.takes_alarm(&mut self.kernel) => true,
                Ok(_) => return Ok(()),
                // A signal handler has run. Wait for the remaining time.
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let timed_out = has_rung || span.is_some_and(|span| span <= WAIT_MAX);
            if !timed_out {
                continue;
            }
            // A cancelled timer has left its deadline behind. Nothing is due, so the wait
            // continues.
            let in_vain = (by_timer || has_rung && waits)
                && !self.timing.time.is_custom()
                && self.timing.until_next_timer() != Some(Duration::ZERO);
            if !in_vain {
                return Ok(());
            }
        }
    }

    /// Polls for as long as `busy_poll` allows. True if events or calls came.
    fn spin(&mut self, start: Instant, deadline: Option<Instant>) -> io::Result<bool> {
        let mut span = self.busy_poll;
        if self.timing.timers.waiting() > 0 {
            span = span.min(self.timing.until_next_timer().unwrap_or(span));
        }
        // If the sum overflows, only the caller's deadline ends the spin.
        let end = match (start.checked_add(span), deadline) {
            (Some(end), Some(deadline)) => Some(end.min(deadline)),
            (end, deadline) => end.or(deadline),
        };
        let has_remote = self.kernel.pending_work & pending_work::REMOTE != 0;
        loop {
            // The latch is awake, so a thread that queues a call makes no system call. The call is
            // noticed here.
            if has_remote && self.stop.latch().is_woken() {
                return Ok(true);
            }
            match self.wait_once(Some(Duration::ZERO)) {
                Ok(0) | Err(Errno::INTR) if end.is_some_and(|end| Instant::now() >= end) => {
                    return Ok(false);
                }
                Ok(0) | Err(Errno::INTR) => core::hint::spin_loop(),
                Ok(_) => return Ok(true),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// One kernel wait, into the rest of the batch.
    fn wait_once(&mut self, span: Option<Duration>) -> Result<usize, Errno> {
        let time = span.map(|span| timespec(span.min(WAIT_MAX)));
        let room = self.kernel.batch.room();
        if room.is_empty() {
            // Error events have filled the batch. The kernel's events wait for the next turn.
            return Ok(0);
        }
        let count = self.kernel.backend.wait(room, time.as_ref())?;
        // SAFETY: the wait has written this many events to the front of the room.
        unsafe { self.kernel.batch.filled(count) };
        Ok(count)
    }

    /// Runs the handlers of the batch.
    #[inline]
    pub(super) fn run_events(&mut self) {
        loop {
            self.kernel.batch.open();
            let watch = self.turn.fetched;
            let is_paced = self.kernel.pending_work & pending_work::PACED != 0;
            // SAFETY: the batch is open.
            let first = if is_paced { unsafe { self.kernel.batch.next_place() } } else { None };
            let this: *mut Self = self;
            match (watch, first) {
                // SAFETY: `self` is not used during the call. No handler runs, because this is not
                // called from one (rule 4). The batch is open.
                (Some(fetched), _) => unsafe { dispatch_watched(this, fetched) },
                // SAFETY: as above, and the place is not the end.
                (None, Some(first)) => unsafe { dispatch_paced(this, first) },
                // SAFETY: as above.
                (None, None) if !is_paced => unsafe { dispatch_batch(this) },
                (None, None) => {}
            }
            if self.kernel.pending_work & pending_work::SELF_DELETED == 0 {
                self.kernel.batch.close_empty();
                return;
            }
            self.kernel.drop_self_deleted();
        }
    }

    /// Runs deferred closures, the oldest first. Closures that they defer wait for the next turn.
    fn run_deferred(&mut self, count: usize) {
        self.turn.is_deferring = true;
        for _ in 0..count {
            let Some(closure) = self.deferred.pop_front() else { break };
            self.timed(|reactor| closure.run(Turn::new(reactor)));
        }
        self.turn.is_deferring = false;
    }

    /// Makes a call. Before it, replies are submitted that have waited for long enough. If the
    /// watchdog is on, the time of the call is measured.
    pub(crate) fn timed(&mut self, call: impl FnOnce(&mut Self)) {
        if self.kernel.pending_work & pending_work::PACED != 0 {
            self.kernel.backend.submit_if_due();
        }
        let Some(fetched) = self.turn.fetched else {
            return call(self);
        };
        let start = Instant::now();
        call(self);
        self.kernel.counters.note_handler(fetched, start);
    }
}

impl TurnGuard<'_> {
    /// The end of a short turn that may have left other work.
    #[inline(never)]
    pub(super) fn finish_fast(self, count: usize) -> usize {
        if self.reactor.is_settled() {
            self.reactor.kernel.pending_work &= !pending_work::CLOCK;
            self.reactor.timing.time.end_turn();
            self.reactor.kernel.batch.close_empty();
            self.reactor.kernel.is_calling = false;
            mem::forget(self);
            return count;
        }
        if self.reactor.kernel.pending_work & pending_work::SELF_DELETED != 0 {
            self.reactor.kernel.drop_self_deleted();
            self.reactor.run_events();
        }
        self.reactor.kernel.batch.close();
        self.finish(count, 0)
    }

    /// The steps after events and timers. Returns the count of the user's events. `deferred` is
    /// the number of deferred closures that this turn has run already.
    fn finish(self, count: usize, deferred: usize) -> usize {
        let reactor = &mut *self.reactor;
        reactor.kernel.is_calling = true;
        if reactor.kernel.pending_work & pending_work::CALLS != 0 {
            reactor.run_calls(reactor.limits.calls_per_turn);
        }
        let waiting = reactor.deferred.len().min(reactor.limits.deferred_per_turn - deferred);
        reactor.run_deferred(waiting);
        reactor.run_hooks(Moment::AfterTurn);
        if reactor.kernel.pending_work & pending_work::STREAMS != 0 {
            reactor.service_streams();
            reactor.admit_next_handshakes();
        }
        let count = count - reactor.turn.woken;
        reactor.kernel.free_dead();
        count
    }
}
