//! The state of a turn, beside what the [`Kernel`](crate::kernel::Kernel) notes of it.

use std::time::Instant;

/// What a turn has begun, and what the last one has left over.
pub(crate) struct TurnState {
    /// `timers_per_turn` was reached while timers were still due. They fire first in the next turn.
    pub(super) timers_left: bool,
    /// The last turn left calls in the inbox. They run first in the next turn.
    pub(super) calls_left: bool,
    /// The end of the last wait, if the watchdog is on.
    pub(super) fetched: Option<Instant>,
    /// Internal wake-up events of this turn, which are excluded from the user's event count.
    pub(super) woken: usize,
}

impl TurnState {
    pub(super) fn new(watchdog: bool) -> Self {
        Self {
            timers_left: false,
            calls_left: false,
            fetched: watchdog.then(Instant::now),
            woken: 0,
        }
    }
}
