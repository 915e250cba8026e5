//! The waits of a turn: for how long, and what ends them.

use std::{
    io,
    time::{Duration, Instant},
};

use rustix::{io::Errno, time::Timespec};

use crate::{Reactor, kernel::pending_work, time::clock::timespec};

pub(super) const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The longest single wait. Longer waits are repeated. epoll_wait(2) takes 31 bits of milliseconds,
/// which is some days more than this.
const WAIT_MAX: Duration = Duration::from_secs(24 * 24 * 3600);
pub(super) const WAIT_MAX_NS: u64 = WAIT_MAX.as_nanos() as u64;

impl Reactor {
    /// Fills the empty batch: with synthetic events and those of the kernel.
    pub(super) fn fetch(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.kernel.free_dead();
        self.kernel.clear_batch();
        self.kernel.push_synthetic(self.kernel.synthetic_first());
        self.streams.push_notifications(&mut self.kernel);
        let timeout = if self.must_not_wait() { Some(Duration::ZERO) } else { timeout };
        self.wait(timeout)?;
        if self.kernel.has(pending_work::SYNTHETIC) {
            self.kernel.push_synthetic(usize::MAX);
        }
        if self.kernel.has(pending_work::REMOTE) {
            self.wake_up();
        }
        self.turn.note_fetched();
        Ok(())
    }

    /// One wait that does not block, into the empty batch.
    pub(super) fn fetch_at_once(&mut self) -> Result<usize, Errno> {
        let count = self.kernel.fetch_at_once()?;
        if self.kernel.has(pending_work::REMOTE) {
            self.wake_up();
        }
        Ok(count)
    }

    /// Puts the latch awake. If it was woken, the inbox must be checked.
    #[inline]
    pub(super) fn wake_up(&mut self) {
        if self.stop.latch().awake() {
            self.kernel.note(pending_work::CALLS);
        }
    }

    /// Waits for events into the rest of the batch, until the timeout or the next timer.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        // The clock is read only for a finite timeout and for timers.
        let waits = timeout != Some(Duration::ZERO);
        let has_timers = self.timing.has_waiting();
        let reads_clock = waits && (timeout.is_some() || !self.busy_poll.is_zero());
        let start = reads_clock.then(|| self.kernel.backend().now());
        let deadline = start.zip(timeout).and_then(|(start, timeout)| start.checked_add(timeout));
        if waits && self.kernel.has(pending_work::PROGRESS) {
            match self.wait_once(Some(Duration::ZERO)) {
                Ok(0) => self.kernel.note_idle(self.kernel.stats().turns),
                // It was set for a timer that was cancelled or reset.
                Ok(_)
                    if self.timing.takes_alarm(&mut self.kernel)
                        && !self.timing.may_be_due_now() =>
                {
                    self.kernel.note_idle(self.kernel.stats().turns);
                }
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        if let Some(start) = start.filter(|_| !self.busy_poll.is_zero()) {
            if self.spin(start, deadline)? {
                return Ok(());
            }
        }
        let waits = waits && (!self.kernel.has(pending_work::REMOTE) || self.stop.latch().sleep());
        loop {
            let timer = if waits && has_timers { self.timing.until_next_timer() } else { None };
            let until_deadline = deadline
                .map(|deadline| deadline.saturating_duration_since(self.kernel.backend().now()));
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
            let in_vain = (by_timer || has_rung && waits) && !self.timing.may_be_due_now();
            if !in_vain {
                return Ok(());
            }
        }
    }

    /// Polls for as long as `busy_poll` allows. True if events or calls came.
    fn spin(&mut self, start: Instant, deadline: Option<Instant>) -> io::Result<bool> {
        let mut span = self.busy_poll;
        if self.timing.has_waiting() {
            span = span.min(self.timing.until_next_timer().unwrap_or(span));
        }
        // If the sum overflows, only the caller's deadline ends the spin.
        let end = match (start.checked_add(span), deadline) {
            (Some(end), Some(deadline)) => Some(end.min(deadline)),
            (end, deadline) => end.or(deadline),
        };
        let has_remote = self.kernel.has(pending_work::REMOTE);
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
        self.kernel.wait_once(span.map(|span| timespec(span.min(WAIT_MAX))).as_ref())
    }
}
