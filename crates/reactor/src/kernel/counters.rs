//! The reactor's counters.

use std::time::{Duration, Instant};

use crate::Key;

/// The counters that only grow.
///
/// The order matters. If `turns` and `events` were adjacent, the compiler would add to both in a
/// vector register, which takes more instructions than two additions.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Counters {
    pub(crate) turns: u64,
    pub(crate) wakes: u64,
    pub(crate) events: u64,
    pub(crate) timers_fired: u64,
    pub(crate) calls: u64,
    pub(crate) rebuilds: u64,
    pub(crate) handler_max: Duration,
    pub(crate) lag_max: Duration,
    /// The registration whose handler took `handler_max`, if it is one.
    pub(crate) slowest: Option<Key>,
}

impl Counters {
    /// Records a handler that started at `start` and has just returned. `key` is that of its
    /// registration, or of the cell of its stream.
    pub(crate) fn note_handler(&mut self, fetched: Instant, start: Instant, key: Option<Key>) {
        let span = start.elapsed();
        if span > self.handler_max {
            (self.handler_max, self.slowest) = (span, key);
        }
        self.lag_max = self.lag_max.max(start.saturating_duration_since(fetched));
    }
}
