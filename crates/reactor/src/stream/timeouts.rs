//! Timeouts of streams, without a timer or a clock reading for each event.
//!
//! 1. An event records the turn's clock in its stream and changes nothing else.
//! 2. A wheel holds each stream that has a timeout, at a time that is not after its deadline.
//! 3. One timer of the reactor fires at the next such time, rounded up to a [`GRANULE`].
//! 4. Each stream that is due is then checked for its real deadline, which moves with every event.
//!    If that is later, the stream goes back into the wheel.
//!
//! So a stream is checked about once per timeout.

use std::time::Duration;

use super::{DisconnectReason, TlsFailure, state::StreamCore};
use crate::stream::status::{StreamFlags, StreamPhase};
use crate::{
    Reactor, Tick, Turn,
    api::{inline_call::InlineTimer, timer::TimerCall},
    cell::OWN_TIMER,
    kernel::Kernel,
    stream::{parts::ReactorParts, state::StreamTable},
    time::{clock::nanoseconds, timing::Timing},
};

/// How late a stream's timeout may be, in addition to the turn's own delay. It is never early by
/// the turn's clock.
pub const GRANULE: Duration = Duration::from_millis(50);

/// Rounds up to a multiple of the granule.
fn rounded_up(ns: u64) -> u64 {
    let granule = nanoseconds(GRANULE);
    ns.div_ceil(granule).saturating_mul(granule)
}

/// The handler of the timer.
struct DeadlineTimer;

impl TimerCall<Reactor> for DeadlineTimer {
    fn fire(&mut self, _: Tick, mut turn: Turn<'_>) {
        let ReactorParts { streams, kernel, timing, .. } = turn.ops().parts();
        streams.check_deadlines(kernel, timing);
    }
}

/// A wait of a stream, with its deadline in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Connect(u64),
    Handshake(u64),
    Linger(u64),
    Idle(u64),
    Stall(u64),
}

impl Wait {
    const fn deadline_ns(self) -> u64 {
        match self {
            Self::Connect(ns)
            | Self::Handshake(ns)
            | Self::Linger(ns)
            | Self::Idle(ns)
            | Self::Stall(ns) => ns,
        }
    }
}

impl StreamCore {
    /// The wait with the earliest deadline.
    fn next_wait(&self) -> Option<Wait> {
        let after = |since: u64, timeout: Duration| since.saturating_add(nanoseconds(timeout));
        if self.status.is(StreamPhase::Dead) {
            return None;
        }
        if self.status.is(StreamPhase::Connecting) {
            return self
                .options
                .connect_timeout
                .map(|timeout| Wait::Connect(after(self.since_ns, timeout)));
        }
        if self.status.is(StreamPhase::Handshake) {
            let timeout = self.options.tls_handshake_timeout;
            return Some(Wait::Handshake(after(self.since_ns, timeout)));
        }
        if self.status.is(StreamPhase::Closing) {
            return Some(Wait::Linger(after(self.since_ns, self.options.linger)));
        }
        let hears = self.status.is(StreamPhase::Open)
            && !self.status.any(StreamFlags::PAUSED | StreamFlags::ENDED);
        let idle = self
            .options
            .idle_timeout
            .filter(|_| hears)
            .map(|timeout| Wait::Idle(after(self.last_rx_ns, timeout)));
        let blocked = self.status.any(StreamFlags::BLOCKED);
        let stall = self.options.write_stall_timeout.filter(|_| blocked);
        let stall = stall.map(|timeout| Wait::Stall(after(self.since_ns, timeout)));
        [idle, stall].into_iter().flatten().min_by_key(|wait| wait.deadline_ns())
    }

    /// A wait has expired.
    fn expire(&mut self, wait: Wait) {
        match wait {
            Wait::Connect(_) => self.kill(DisconnectReason::ConnectTimeout),
            Wait::Handshake(_) => {
                self.kill(DisconnectReason::Tls(TlsFailure::HandshakeTimeout));
            }
            Wait::Linger(_) if matches!(self.reason, Some(DisconnectReason::Tls(_))) => {
                self.kill(DisconnectReason::Closed);
            }
            // The driver tries once more whether the socket accepts something.
            Wait::Linger(_) if self.output.is_some() && self.options.linger_restarts => {
                self.status.insert(StreamFlags::STALL_DUE);
            }
            Wait::Linger(_) if self.output.is_some() => self.give_up(),
            Wait::Linger(_) => self.kill(DisconnectReason::Closed),
            Wait::Idle(_) => self.status.insert(StreamFlags::IDLE_DUE),
            Wait::Stall(_) => self.status.insert(StreamFlags::STALL_DUE),
        }
    }

    /// All that it waits for may take its whole time once more.
    pub(super) fn begin_timeouts_anew(&mut self) {
        self.status.clear(StreamFlags::DUE);
        if self.next_wait().is_some() {
            self.status.insert(StreamFlags::TIMES);
        }
    }

    /// The stream is closed, which starts the time of its end. A stall that its handler was not
    /// told of yet is not one of that time.
    pub(super) fn begin_linger(&mut self) {
        self.status.clear(StreamFlags::STALL_DUE);
        self.status.insert(StreamFlags::STAMP_WAIT | StreamFlags::ARM);
    }

    /// The time of a closed stream is over, and its output was tried once more.
    #[cold]
    pub(super) fn has_lingered(&mut self) {
        if self.status.any(StreamFlags::BLOCKED) {
            self.give_up();
        } else {
            // It was written before its driver was called.
            self.status.insert(StreamFlags::STAMP_WAIT | StreamFlags::ARM);
        }
    }

    /// The peer does not read the remaining output.
    fn give_up(&mut self) {
        self.reason = Some(DisconnectReason::WriteStall);
        self.kill(DisconnectReason::WriteStall);
        self.status.insert(StreamFlags::RESET);
    }
}

impl StreamTable {
    /// Records the time if the stream has requested it, and enters its next deadline.
    pub(super) fn arm(&mut self, kernel: &mut Kernel, timing: &mut Timing, index: u32) {
        // The clock may be user code, so it is read before any state changes (rule 3).
        let now = timing.now_ns(kernel);
        let core = self.core(index);
        if core.status.take(StreamFlags::STAMP_WAIT) {
            core.since_ns = now;
        }
        if core.status.take(StreamFlags::STAMP_RX) {
            core.last_rx_ns = now;
        }
        if !core.status.take(StreamFlags::ARM) {
            return;
        }
        let wait = core.next_wait();
        self.deadlines.remove(index);
        if let Some(wait) = wait {
            self.deadlines.insert(index, wait.deadline_ns());
            self.set_timer(kernel, timing, wait.deadline_ns());
        }
    }

    /// Makes the timer fire at the deadline or earlier.
    fn set_timer(&mut self, kernel: &mut Kernel, timing: &mut Timing, deadline_ns: u64) {
        let deadline_ns = rounded_up(deadline_ns);
        match self.timer {
            Some((_, at)) if at <= deadline_ns => {}
            Some((key, _)) if timing.reset(kernel, key, deadline_ns) => {
                self.timer = Some((key, deadline_ns))
            }
            // There is no timer yet, or it has fired for the last time.
            _ => {
                let key = timing.start(
                    kernel,
                    InlineTimer::new(DeadlineTimer),
                    deadline_ns,
                    0,
                    OWN_TIMER,
                );
                self.timer = Some((key, deadline_ns));
            }
        }
    }

    fn check_deadlines(&mut self, kernel: &mut Kernel, timing: &mut Timing) {
        let now = timing.now_ns(kernel);
        while let Some((index, _)) = self.deadlines.pop_due(now) {
            let core = self.core(index);
            match core.next_wait() {
                Some(wait) if wait.deadline_ns() <= now => {
                    core.expire(wait);
                    self.notify(kernel, index);
                }
                Some(wait) => self.deadlines.insert(index, wait.deadline_ns()),
                None => {}
            }
        }
        let Some((key, _)) = self.timer.take() else { return };
        if let Some(next) = self.deadlines.next_deadline() {
            // At least now, since an earlier time may be left over from a removed stream.
            let next = rounded_up(next.max(now.saturating_add(1)));
            timing.reset(kernel, key, next);
            self.timer = Some((key, next));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_rounded_up_to_the_granule() {
        let granule = nanoseconds(GRANULE);
        assert_eq!(
            [0, 1, granule, granule + 1].map(rounded_up),
            [0, granule, granule, 2 * granule]
        );
        assert_eq!(rounded_up(u64::MAX), u64::MAX);
    }
}
