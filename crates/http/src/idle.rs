//! Connections of HTTP/1 that wait for a request without hyper's buffers.
//!
//! hyper keeps its buffers, some 18 KB, as long as a connection lasts. After an idle time
//! ([`HttpServer::idle_buffers_timeout`](crate::HttpServer::idle_buffers_timeout)) the connection
//! of hyper is taken apart. The stream, the service and the time of the head are kept. Whatever
//! comes next makes a connection of hyper again: bytes, the end of the stream, an error, the time
//! limit, a shutdown. hyper sees it as if it had come just then, so there is one way to end.
//!
//! # When a connection of hyper may be taken apart
//!
//! Between two requests it has no state. hyper does not say when that is, so [`Idle`] observes it
//! from outside, and is content only with all of these, one after the other:
//!
//! 1. The service was called, and its response has ended: hyper has dropped the body
//!    (`tracked.rs`). So all bytes of the response are in hyper's buffer, or further.
//! 2. hyper has flushed the stream since, and has written nothing after that (`watched.rs`). It
//!    flushes a stream when its own buffer is empty. So all bytes are with the stream.
//! 3. In the same poll, and with no byte read in between, hyper has started the time limit of the
//!    next head (`head_timer.rs`). It does that when it is done with the body of the request, too.
//!    Other timers are not mistaken for it: their deadlines differ.
//! 4. The last read was pending. It may be that hyper has read a part of the next head before; it
//!    hands that out, and gets it again.
//!
//! Where one is missing, for instance since the body of a request came after its response, nothing
//! happens, and the connection keeps its buffers until it is idle the next time.

use core::{
    pin::Pin,
    task::{Context, Poll},
};
use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use windlass_task::time::{Sleep, now, sleep_until};

/// A request is under way, or it is not known that none is.
const BUSY: u8 = 0;
/// The response has ended.
const ENDED: u8 = 1;
/// The response is with the stream.
const FLUSHED: u8 = 2;
/// The time of the next head runs.
const WAITS: u8 = 3;
/// There was nothing to read.
const SILENT: u8 = 4;

/// What is known about a connection. One thread uses it, although hyper's timers are `Send`.
pub(crate) struct Idle {
    phase: AtomicU8,
    /// Whether the connection has waited for a head for long enough.
    is_due: AtomicBool,
    pub(crate) buffers_timeout: Duration,
    pub(crate) header_timeout: Duration,
    times: Mutex<Times>,
}

pub(crate) struct Times {
    /// The time that hyper was told last.
    pub(crate) now: Instant,
    /// When the head that hyper waits for must be there.
    pub(crate) deadline: Instant,
    /// Whether that is also the deadline of the head of the next connection of hyper.
    pub(crate) is_kept: bool,
    /// The sleep that is used again, with its timer in the reactor.
    pub(crate) sleep: Option<Sleep>,
}

impl Idle {
    pub(crate) fn new(buffers_timeout: Duration, header_timeout: Duration) -> Self {
        let now = now();
        let times = Times { now, deadline: now, is_kept: false, sleep: None };
        Self {
            phase: AtomicU8::new(BUSY),
            is_due: AtomicBool::new(false),
            buffers_timeout,
            header_timeout,
            times: Mutex::new(times),
        }
    }

    pub(crate) fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, from: u8, to: u8) {
        if self.phase.load(Relaxed) == from {
            self.phase.store(to, Relaxed);
        }
    }

    fn is_at_least(&self, phase: u8) -> bool {
        self.phase.load(Relaxed) >= phase
    }

    /// A request begins, or something has happened that is no part of the order above.
    pub(crate) fn busy(&self) {
        self.phase.store(BUSY, Relaxed);
    }

    /// A poll of hyper begins: what has happened before is no part of it.
    pub(crate) fn polls(&self) {
        self.step(FLUSHED, BUSY);
    }

    /// The response has ended.
    pub(crate) fn ends(&self) {
        self.step(BUSY, ENDED);
    }

    /// hyper writes.
    pub(crate) fn writes(&self) {
        if self.is_at_least(FLUSHED) {
            self.busy();
        }
    }

    pub(crate) fn flushed(&self) {
        self.step(ENDED, FLUSHED);
    }

    /// hyper starts the time of the next head.
    pub(crate) fn waits(&self) {
        if self.is_at_least(WAITS) {
            self.busy();
        }
        self.step(FLUSHED, WAITS);
        self.is_due.store(false, Relaxed);
    }

    /// hyper has read bytes, or the end. While the service works, those are of its own request, or
    /// of a later one that hyper hands out. Afterwards nothing is known any more.
    pub(crate) fn reads(&self) {
        if self.is_at_least(ENDED) {
            self.busy();
        }
    }

    pub(crate) fn reads_nothing(&self) {
        self.step(WAITS, SILENT);
    }

    /// The connection has waited for a head for long enough.
    pub(crate) fn is_now_due(&self) {
        self.is_due.store(true, Relaxed);
    }

    /// Whether hyper's connection has no state, and has had none for long enough.
    pub(crate) fn may_be_taken_apart(&self) -> bool {
        self.is_at_least(SILENT) && self.is_due.load(Relaxed)
    }

    /// hyper's connection is taken apart. The time of the head goes on.
    pub(crate) fn taken_apart(&self) {
        self.busy();
        self.times().is_kept = true;
    }

    /// Waits for the deadline of the head, without hyper.
    pub(crate) fn poll_deadline(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut times = self.times();
        let deadline = times.deadline;
        let sleep = times.sleep.get_or_insert_with(|| sleep_until(deadline));
        if sleep.deadline() != deadline {
            sleep.reset(deadline);
        }
        Pin::new(sleep).poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Event = (&'static str, fn(&Idle));

    /// What happens between two requests, in its order.
    const ORDER: [Event; 8] = [
        ("polls", Idle::polls),
        ("busy", Idle::busy),
        ("ends", Idle::ends),
        ("writes", Idle::writes),
        ("flushed", Idle::flushed),
        ("waits", Idle::waits),
        ("reads_nothing", Idle::reads_nothing),
        ("is_now_due", Idle::is_now_due),
    ];

    fn may(events: &[Event]) -> bool {
        let idle = Idle::new(Duration::ZERO, Duration::ZERO);
        events.iter().for_each(|(_, event)| event(&idle));
        idle.may_be_taken_apart()
    }

    #[test]
    fn a_connection_is_taken_apart_in_one_order_only() {
        assert!(may(&ORDER));
        // A poll in vain, and more polls before the response has ended.
        let flush: [Event; 1] = [("flushed", Idle::flushed)];
        assert!(may(&[&ORDER[..], &ORDER[..1], &flush, &ORDER[6..]].concat()));
        assert!(may(&[&ORDER[..2], &ORDER[..1], &flush, &ORDER[2..]].concat()));
        // Without one of the steps that matter, and with two steps in another order.
        for without in [2, 4, 5, 6, 7] {
            let mut events = ORDER.to_vec();
            events.remove(without);
            assert!(!may(&events), "without {}", events[without - 1].0);
        }
        for first in 1..7 {
            let mut events = ORDER.to_vec();
            events.swap(first, first + 1);
            let names = (events[first].0, events[first + 1].0);
            // The response may be written before its end, and the time may pass before the read.
            assert_eq!(may(&events), matches!(first, 2 | 6), "{names:?}");
        }
    }

    #[test]
    fn whatever_happens_in_between_keeps_the_connection() {
        let others: [(Event, core::ops::Range<usize>); 5] = [
            // A body after its response, or the bytes of the next request.
            (("reads", Idle::reads), 3..9),
            // It has begun the next request.
            (("busy", Idle::busy), 3..9),
            (("writes", Idle::writes), 5..9),
            // The time of the head begins in a later poll: something else came before.
            (("polls", Idle::polls), 5..6),
            // A second head, without a request in between.
            (("waits", Idle::waits), 6..9),
        ];
        for (event, places) in others {
            for place in places {
                let mut events = ORDER.to_vec();
                events.insert(place, event);
                assert!(!may(&events), "{} at {place}", event.0);
            }
        }
    }
}
