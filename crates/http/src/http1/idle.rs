//! [`Idle`]: connections of HTTP/1 that wait for a request without hyper's buffers.
//!
//! hyper keeps its buffers as long as a connection lasts. After an idle time
//! ([`HttpServer::idle_buffers_timeout`](crate::HttpServer::idle_buffers_timeout)) the connection
//! of hyper is taken apart. The stream, the service and the time of the head are kept. Whatever
//! comes next makes a connection of hyper again: bytes, the end of the stream, an error, the time
//! limit, a shutdown. hyper sees it as if it had come just then, so there is one way to end.
//!
//! # When a connection of hyper may be taken apart
//!
//! Between two requests it has no state. hyper does not say when that is, so [`Idle`] observes it
//! from outside, and is content only with all of these, one after the other, since the service was
//! called last:
//!
//! 1. hyper has flushed the stream, and has written nothing after that (`stream.rs`). It flushes a
//!    stream when its own buffer is empty. So all bytes are with the stream.
//! 2. In the same poll, and with no byte read in between, hyper has started the time limit of the
//!    next head (`head_timer.rs`). It does that when it has read the body of the request to its end
//!    and written that of the response. Other timers are not mistaken for it: their deadlines
//!    differ.
//! 3. The last read was pending. It may be that hyper has read a part of the next head before; it
//!    hands that out, and gets it again.
//!
//! Where one is missing, for instance since the body of a request came after its response, nothing
//! happens, and the connection keeps its buffers until it is idle the next time.
//!
//! hyper tells the reader of a body that its last piece came only with the next request, if the
//! response was sent before. If the connection is taken apart first, that reader gets an error
//! after the whole body.

use core::cell::Cell;
use std::time::{Duration, Instant};

use windlass_task::time::now;

/// A request is under way, or it is not known that none is.
const BUSY: u8 = 0;
/// All that hyper has written is with the stream.
const FLUSHED: u8 = 1;
/// The time of the next head runs.
const WAITS: u8 = 2;
/// There was nothing to read.
const SILENT: u8 = 3;

/// What is known about a connection.
pub(crate) struct Idle {
    phase: Cell<u8>,
    buffers_timeout: Duration,
    header_timeout: Duration,
    /// The time that hyper was told last.
    now: Cell<Instant>,
    /// When hyper began to wait for a head, and when that must be there.
    since: Cell<Instant>,
    deadline: Cell<Instant>,
    /// Whether hyper waits for a head.
    is_waiting: Cell<bool>,
    /// Whether it has begun to since the last call of [`has_begun`](Self::has_begun).
    has_begun: Cell<bool>,
    /// Whether it has waited for long enough to be taken apart.
    is_due: Cell<bool>,
    /// Whether the deadline is also that of the head of the next connection of hyper.
    is_kept: Cell<bool>,
}

impl Idle {
    pub(crate) fn new(buffers_timeout: Duration, header_timeout: Duration) -> Self {
        let now = now();
        Self {
            phase: Cell::new(BUSY),
            buffers_timeout,
            header_timeout,
            now: Cell::new(now),
            since: Cell::new(now),
            deadline: Cell::new(now),
            is_waiting: Cell::new(false),
            has_begun: Cell::new(false),
            is_due: Cell::new(false),
            is_kept: Cell::new(false),
        }
    }

    #[inline]
    fn step(&self, from: u8, to: u8) {
        if self.phase.get() == from {
            self.phase.set(to);
        }
    }

    /// Something has happened that is no part of the order above.
    #[inline]
    pub(crate) fn busy(&self) {
        self.phase.set(BUSY);
    }

    /// The service is called.
    #[inline]
    pub(crate) fn serves(&self) {
        self.busy();
        self.is_waiting.set(false);
    }

    /// A poll of hyper begins: what has happened before is no part of it.
    #[inline]
    pub(crate) fn polls(&self) {
        self.step(FLUSHED, BUSY);
    }

    /// hyper writes.
    #[inline]
    pub(crate) fn writes(&self) {
        self.busy();
    }

    #[inline]
    pub(crate) fn flushed(&self) {
        self.step(BUSY, FLUSHED);
    }

    /// hyper starts the time of the next head.
    #[inline]
    fn waits(&self) {
        self.phase.set(if self.phase.get() == FLUSHED { WAITS } else { BUSY });
        self.is_due.set(false);
    }

    /// hyper has read bytes, or the end.
    #[inline]
    pub(crate) fn reads(&self) {
        self.busy();
    }

    #[inline]
    pub(crate) fn reads_nothing(&self) {
        self.step(WAITS, SILENT);
    }

    /// The time that hyper reads.
    #[inline]
    pub(crate) fn set_now(&self, now: Instant) {
        self.now.set(now);
    }

    /// hyper makes a sleep. Returns whether that is for the next head.
    #[inline]
    pub(crate) fn begins_wait(&self, deadline: Instant) -> bool {
        let now = self.now.get();
        if now.checked_add(self.header_timeout) != Some(deadline) {
            self.busy();
            return false;
        }
        let is_kept = self.is_kept.take();
        self.deadline.set(if is_kept { deadline.min(self.deadline.get()) } else { deadline });
        self.since.set(now);
        self.is_waiting.set(true);
        self.has_begun.set(true);
        self.waits();
        true
    }

    /// Whether hyper waits for a head.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_waiting.get()
    }

    /// When it has begun to wait, unless that is known already.
    #[inline]
    pub(crate) fn has_begun(&self) -> Option<Instant> {
        self.has_begun.take().then(|| self.since.get())
    }

    /// The end of this stage of the wait: it may be taken apart, or the head is late.
    pub(crate) fn next_time(&self) -> Instant {
        let deadline = self.deadline.get();
        match self.since.get().checked_add(self.buffers_timeout) {
            Some(due) if self.is_first_stage() => due.min(deadline),
            _ => deadline,
        }
    }

    pub(crate) fn is_first_stage(&self) -> bool {
        !self.is_due.get()
    }

    /// The time of this stage has come. Returns whether the head is late.
    pub(crate) fn ends_stage(&self) -> bool {
        debug_assert!(self.is_waiting.get());
        let is_late = self.next_time() == self.deadline.get();
        self.is_due.set(true);
        self.is_waiting.set(!is_late);
        is_late
    }

    /// When the head must be there.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline.get()
    }

    /// Whether hyper's connection has no state, and has had none for long enough.
    #[inline]
    pub(crate) fn may_be_taken_apart(&self) -> bool {
        self.phase.get() == SILENT && self.is_due.get()
    }

    /// hyper's connection is taken apart. The time of the head goes on.
    pub(crate) fn taken_apart(&self) {
        self.busy();
        self.is_kept.set(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Event = (&'static str, fn(&Idle));

    /// What happens between two requests, in its order.
    const ORDER: [Event; 7] = [
        ("polls", Idle::polls),
        ("serves", Idle::serves),
        ("writes", Idle::writes),
        ("flushed", Idle::flushed),
        ("waits", Idle::waits),
        ("reads_nothing", Idle::reads_nothing),
        ("is_due", |idle| idle.is_due.set(true)),
    ];

    fn may(events: &[Event]) -> bool {
        let idle = Idle::new(Duration::ZERO, Duration::ZERO);
        events.iter().for_each(|(_, event)| event(&idle));
        idle.may_be_taken_apart()
    }

    #[test]
    fn a_connection_is_taken_apart_in_one_order_only() {
        assert!(may(&ORDER));
        // A poll in vain.
        let flush: [Event; 1] = [("flushed", Idle::flushed)];
        assert!(may(&[&ORDER[..], &ORDER[..1], &flush, &ORDER[5..]].concat()));
        // Without one of the steps that matter, and with two steps in another order.
        for without in [3, 4, 5, 6] {
            let mut events = ORDER.to_vec();
            events.remove(without);
            assert!(!may(&events), "without {}", ORDER[without].0);
        }
        for first in 1..6 {
            let mut events = ORDER.to_vec();
            events.swap(first, first + 1);
            let names = (events[first].0, events[first + 1].0);
            // What hyper has written before it calls the service is flushed later all the same, and
            // the time may pass before the read.
            assert_eq!(may(&events), matches!(first, 1 | 5), "{names:?}");
        }
    }

    #[test]
    fn whatever_happens_in_between_keeps_the_connection() {
        let others: [(Event, core::ops::Range<usize>); 5] = [
            // The body of a request, or the bytes of the next one.
            (("reads", Idle::reads), 4..8),
            // It has begun the next request.
            (("serves", Idle::serves), 4..8),
            (("writes", Idle::writes), 4..8),
            // The time of the head begins in a later poll: something else came before.
            (("polls", Idle::polls), 4..5),
            // A second head, without a request in between.
            (("waits", Idle::waits), 5..8),
        ];
        for (event, places) in others {
            for place in places {
                let mut events = ORDER.to_vec();
                events.insert(place, event);
                assert!(!may(&events), "{} at {place}", event.0);
            }
        }
    }

    #[test]
    fn a_wait_has_two_stages_and_is_late_once() {
        let idle = Idle::new(Duration::from_secs(1), Duration::from_secs(30));
        let start = idle.now.get();
        assert!(!idle.begins_wait(start + Duration::from_secs(29)), "another timer");
        assert!(!idle.is_waiting());
        assert!(idle.begins_wait(start + Duration::from_secs(30)) && idle.is_waiting());
        assert_eq!((idle.has_begun(), idle.has_begun()), (Some(start), None));
        assert_eq!(idle.next_time(), start + Duration::from_secs(1));
        assert!(!idle.ends_stage() && idle.is_waiting());
        assert_eq!(idle.next_time(), start + Duration::from_secs(30));
        assert!(idle.ends_stage() && !idle.is_waiting());
        // The next connection of hyper has what is left of the time.
        idle.taken_apart();
        idle.set_now(start + Duration::from_secs(9));
        assert!(idle.begins_wait(start + Duration::from_secs(39)));
        assert_eq!(idle.deadline(), start + Duration::from_secs(30));
        idle.serves();
        assert!(!idle.is_waiting());
        assert!(idle.begins_wait(start + Duration::from_secs(39)));
        assert_eq!(idle.deadline(), start + Duration::from_secs(39));
    }
}
