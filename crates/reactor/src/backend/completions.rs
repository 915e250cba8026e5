//! The receives and sends of a ring, as streams see them.

use std::sync::Arc;

use rustix::io::Errno;

use super::uring::ReceivedPart;

/// A condition bit of events: the event is a completion of a stream, and only the ring interprets
/// the other bits.
pub(crate) const COMPLETION: u32 = 1 << 27;

/// In an event's conditions, in addition to [`COMPLETION`]: the receive continues and has returned
/// bytes, at most as many as handlers may get at a time.
pub(crate) const GOES_ON: u32 = COMPLETION >> 1;

/// Both conditions.
pub(crate) const BROUGHT: u32 = COMPLETION | GOES_ON;

/// The error of a receive that has found no buffer.
pub(crate) const NO_BUFFER: Errno = Errno::NOBUFS;

/// How often a receive completes.
#[derive(Clone, Copy)]
pub(crate) enum Times {
    /// The first bytes or the first error end it.
    Once,
    Many,
}

/// A completion of a stream's receive.
pub(crate) struct Done {
    /// The number of bytes received, or a negative error number.
    pub(crate) result: i32,
    /// The receive continues.
    pub(crate) has_more: bool,
    pub(crate) part: Option<ReceivedPart>,
}

/// Unsent bytes that return to the stream.
pub(crate) enum Rest {
    Own(Vec<u8>),
    /// The shared bytes, and the offset of the unsent part.
    Shared(Arc<[u8]>, usize),
}

/// A send that has sent a part of its bytes, or none.
pub(crate) struct Failed {
    /// The stream's index in its table.
    pub(crate) index: u32,
    /// The number of bytes sent, or a negative error number.
    pub(crate) result: i32,
    pub(crate) rest: Rest,
}
