//! The state of a turn, beside what the [`Kernel`](crate::kernel::Kernel) notes of it.

use std::time::Instant;

/// What the last turn has left over, and what this one has counted.
pub(super) struct TurnState {
    timers_left: bool,
    calls_left: bool,
    /// The end of the last wait, if the watchdog is on.
    fetched: Option<Instant>,
    /// Internal wake-up events of this turn, which are excluded from the user's event count.
    woken: usize,
}

impl TurnState {
    pub(super) fn new(watchdog: bool) -> Self {
        let fetched = watchdog.then(Instant::now);
        Self { timers_left: false, calls_left: false, fetched, woken: 0 }
    }

    /// `timers_per_turn` was reached while timers were still due. They fire first in the next turn.
    #[inline]
    pub(super) fn timers_left(&self) -> bool {
        self.timers_left
    }

    #[inline]
    pub(super) fn set_timers_left(&mut self, are_left: bool) {
        self.timers_left = are_left;
    }

    #[inline]
    pub(super) fn take_timers_left(&mut self) -> bool {
        core::mem::take(&mut self.timers_left)
    }

    /// The last turn left calls in the inbox. They run first in the next turn.
    #[inline]
    pub(super) fn calls_left(&self) -> bool {
        self.calls_left
    }

    #[inline]
    pub(super) fn set_calls_left(&mut self, are_left: bool) {
        self.calls_left = are_left;
    }

    /// The end of the last wait, if the watchdog is on.
    #[inline]
    pub(super) fn fetched(&self) -> Option<Instant> {
        self.fetched
    }

    /// A wait has ended.
    pub(super) fn note_fetched(&mut self) {
        if let Some(fetched) = &mut self.fetched {
            *fetched = Instant::now();
        }
    }

    /// An event was a wake-up of the reactor's own.
    #[inline]
    pub(super) fn note_wake(&mut self) {
        self.woken += 1;
    }

    /// The number of wake-ups in this turn.
    pub(super) fn woken(&self) -> usize {
        self.woken
    }

    /// Ends the turn. `has_calls` says that the inbox was not checked, because of a panic.
    #[inline]
    pub(super) fn end(&mut self, has_calls: bool) {
        self.calls_left |= has_calls;
        self.woken = 0;
    }
}
