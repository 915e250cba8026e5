//! The event passed to a handler: its registration, the reported conditions, and the interest.

use crate::{Interest, Key, Ready};

/// One event of one registration. `Copy`, and valid indefinitely.
///
/// The conditions are those that the kernel reported when the batch was fetched. An earlier handler
/// of the same batch may have consumed them. A handler must treat them as a hint and expect
/// `WouldBlock`.
///
/// ```
/// use windlass::{Event, Key, Ready, interest};
///
/// fn is_over(event: Event) -> bool {
///     event.has_hangup() || event.has_error()
/// }
///
/// let key = Key::from_bits(1);
/// assert!(is_over(Event::new(key, interest().read(), Ready::empty().read().hangup())));
/// assert!(!is_over(Event::new(key, interest().read(), Ready::empty().read())));
/// ```
#[doc(alias = "epoll_event")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    key: Key,
    ready: Ready,
    interest: Interest,
}

impl Event {
    /// Makes an event as a reactor would report it, for unit tests of handlers.
    #[must_use]
    #[inline]
    pub const fn new(key: Key, interest: Interest, ready: Ready) -> Self {
        Self { key, ready, interest }
    }

    /// The registration that the event belongs to. Pass it to `modify` or `delete`.
    #[must_use]
    #[inline]
    pub const fn key(&self) -> Key {
        self.key
    }

    /// The reported conditions.
    #[must_use]
    #[inline]
    pub const fn ready(&self) -> Ready {
        self.ready
    }

    /// The interest at the time the handler was called.
    #[must_use]
    #[inline]
    pub const fn interest(&self) -> Interest {
        self.interest
    }

    /// There is data to read, a connection to accept, or the end of a stream.
    #[must_use]
    #[inline]
    pub const fn has_read(&self) -> bool {
        self.ready.has_read()
    }

    /// There is room to write, or a connect has finished.
    #[must_use]
    #[inline]
    pub const fn has_write(&self) -> bool {
        self.ready.has_write()
    }

    /// There is out-of-band data or another exceptional condition.
    #[must_use]
    #[inline]
    pub const fn has_priority(&self) -> bool {
        self.ready.has_priority()
    }

    /// The peer has closed its writing half.
    #[must_use]
    #[inline]
    pub const fn has_read_hangup(&self) -> bool {
        self.ready.has_read_hangup()
    }

    /// There is an error to fetch (`SO_ERROR`), or the kernel rejected the registration when the
    /// reactor changed it or added it again (see `modify`).
    #[must_use]
    #[inline]
    pub const fn has_error(&self) -> bool {
        self.ready.has_error()
    }

    /// Both halves are closed.
    #[must_use]
    #[inline]
    pub const fn has_hangup(&self) -> bool {
        self.ready.has_hangup()
    }
}
