//! What the bits of [`pending_work`](crate::kernel::pending_work) say of the whole reactor.

use crate::{
    Reactor,
    kernel::pending_work::{CALLS, CLOCK, DEFERRED, SHORT, STREAMS, SYNTHETIC, TIMERS},
};

impl Reactor {
    /// Whether a short turn may follow one that did no more than set the bits of a short turn.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        let bits = self.kernel.pending() & !CLOCK;
        let has_timers = bits & TIMERS != 0;
        bits & !SHORT == 0
            && !self.turn.timers_left()
            && has_timers == self.timing.must_look_at_timers()
    }

    /// Whether there is work without an event, so that a turn must not wait.
    pub(super) fn must_not_wait(&self) -> bool {
        self.kernel.has_events()
            || self.deferred.has_ready()
            || self.turn.timers_left()
            || self.turn.calls_left()
            // Synthetic events may wait for room in the batch. And a panic may have kept the end of
            // a turn from admitting the next handshakes.
            || self.kernel.has(SYNTHETIC | STREAMS)
    }

    /// Recomputes the bits of `pending_work` from the reactor's state.
    pub(super) fn recompute_pending(&mut self) {
        let mut bits = 0;
        let (has_nudges, has_touched) = self.streams.pending();
        for (bit, is_so) in [
            (TIMERS, self.timing.must_look_at_timers()),
            (DEFERRED, self.deferred.len() > 0 || self.turn.timers_left()),
            (CALLS, self.turn.calls_left()),
            (SYNTHETIC, has_nudges),
            (STREAMS, has_touched),
        ] {
            bits |= if is_so { bit } else { 0 };
        }
        self.kernel.recompute(bits);
    }
}
