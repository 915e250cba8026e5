//! A copy of the reactor's counters.

use std::time::Duration;

use crate::{Backend, RingError};

/// A copy of a reactor's counters since it was built. It does not change after it was taken.
///
/// ```
/// use std::time::Duration;
/// use windlass::Reactor;
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// reactor.after(Duration::ZERO, || {})?;
/// assert_eq!(reactor.stats().timers, 1);
/// while reactor.stats().timers_fired == 0 {
///     reactor.run_once(None)?;
/// }
/// assert_eq!(reactor.stats().timers, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Turns: returns from a wait, and turns that did not wait because work was left over.
    pub turns: u64,
    /// Events dispatched to cells, including those of cells that were deleted meanwhile.
    pub events: u64,
    /// Times that a [`Remote`](crate::Remote) or a [`Stop`](crate::Stop) woke the sleeping loop.
    /// Requests made while the loop runs need no wake-up.
    pub wakes: u64,
    /// Timers fired.
    pub timers_fired: u64,
    /// Calls and posts of [`Remote`](crate::Remote)s that ran, including those whose caller no
    /// longer waits.
    pub calls: u64,
    /// Rebuilds of the epoll set, needed when a descriptor was closed or replaced without telling
    /// the reactor.
    pub rebuilds: u64,
    /// Currently registered subscribers.
    pub subscribers: usize,
    /// Timers that currently have a key.
    pub timers: usize,
    /// Quarantined cells, whose memory is kept until the next rebuild.
    pub quarantined: usize,
    /// The longest run of a handler, measured while the watchdog is on.
    pub handler_max: Duration,
    /// The longest time between the end of a wait and the start of a handler of that turn, measured
    /// while the watchdog is on.
    pub lag_max: Duration,
    /// The active backend; never [`Backend::Auto`] or [`Backend::UringOrEpoll`].
    pub backend: Backend,
    /// Why the reactor has no ring, if [`Backend::UringOrEpoll`] has become epoll.
    pub ring_error: Option<RingError>,
    /// Bytes of the buffers that streams receive into on a ring. They are allocated with the first
    /// stream. See [`Builder::ring_buffers`](crate::Builder::ring_buffers).
    pub buffer_bytes: usize,
}
