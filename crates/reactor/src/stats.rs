//! What the reactor counts about itself.

use std::time::{Duration, Instant};

use crate::Backend;

/// A reactor's counts, since it was built. Copied out, so they do not change while one looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Turns: returns from the wait, and those that had something left over and did not wait.
    pub turns: u64,
    /// Events given to cells, those of cells deleted meanwhile included.
    pub events: u64,
    /// Times that a [`Remote`](crate::Remote) or a [`Stop`](crate::Stop) woke the loop out of its
    /// sleep. What comes while it runs costs no wake.
    pub wakes: u64,
    /// Timers fired.
    pub timers_fired: u64,
    /// Calls and posts of [`Remote`](crate::Remote)s run, those whose caller had left included.
    pub calls: u64,
    /// Epoll sets built anew because a descriptor was closed or replaced behind the reactor's back.
    pub rebuilds: u64,
    /// Subscribers registered now.
    pub subscribers: usize,
    /// Timers that have a key now.
    pub timers: usize,
    /// Cells whose memory waits for the next rebuild.
    pub quarantined: usize,
    /// The longest time that a handler has taken, while the watchdog is on.
    pub handler_max: Duration,
    /// The longest time between the end of a wait and the start of a handler of that turn, while
    /// the watchdog is on.
    pub lag_max: Duration,
    /// The backend at work: never [`Backend::Auto`].
    pub backend: Backend,
    /// Bytes of the buffers that streams receive into on a ring. They are made with the first
    /// stream; see [`Builder::ring_buffers`](crate::Builder::ring_buffers).
    pub buffer_bytes: usize,
}

/// The counts that only grow.
///
/// In this order: were `turns` and `events` neighbours, the compiler would add to both in a vector
/// register, which takes six instructions a turn in place of two.
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
}

impl Counters {
    /// A handler that started then has returned now.
    pub(crate) fn note_handler(&mut self, fetched: Instant, start: Instant) {
        self.handler_max = self.handler_max.max(start.elapsed());
        self.lag_max = self.lag_max.max(start.saturating_duration_since(fetched));
    }
}
