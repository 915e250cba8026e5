//! Bytes that are sent to many streams.

use core::{
    cell::{Cell, OnceCell},
    fmt,
};
use std::sync::Arc;

use super::uring::Copied;

/// Bytes for many streams, for example a message to all subscribers. Pass them to
/// [`Stream::send_shared`](crate::stream::Stream::send_shared) or
/// [`write_shared`](crate::stream::Stream::write_shared). Streams that cannot send them at once all
/// keep a reference to one copy, which is made when first needed. Very short bytes are copied per
/// stream instead.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use windlass::{Reactor, stream::{SharedBytes, StreamOptions}};
/// # use windlass::stream::{Input, Stream, StreamHandler};
/// # struct Echo;
/// # impl StreamHandler for Echo {
/// #     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
/// #         let _ = stream.reply(input, ..);
/// #     }
/// # }
///
/// # fn main() -> std::io::Result<()> {
/// let (one, other) = UnixStream::pair()?;
/// let mut reactor = Reactor::new()?;
/// let mut keys = Vec::new();
/// for socket in [one, other] {
///     let registration = StreamOptions::new().with_fd(socket).with_handler(Echo);
///     keys.push(registration.register_into(&mut reactor)?);
/// }
/// let news = SharedBytes::new(b"to all");
/// for key in keys {
///     let _ = reactor.stream(key)?.send_shared(&news);
/// }
/// # Ok(())
/// # }
/// ```
pub struct SharedBytes<'b> {
    bytes: &'b [u8],
    kept: OnceCell<Arc<[u8]>>,
    /// On a ring: where they were last copied for sending.
    copied: Cell<Copied>,
    /// On a ring: they were sent to a stream before.
    is_for_many: Cell<bool>,
}

impl<'b> SharedBytes<'b> {
    /// Borrows the caller's bytes. The caller may reuse them once the calls that take this have
    /// returned.
    #[must_use]
    pub const fn new(bytes: &'b [u8]) -> Self {
        Self {
            bytes,
            kept: OnceCell::new(),
            copied: Cell::new(Copied::NONE),
            is_for_many: Cell::new(false),
        }
    }

    /// Uses bytes that are already in an `Arc`.
    #[must_use]
    pub fn of(bytes: &'b Arc<[u8]>) -> Self {
        let kept = OnceCell::from(Arc::clone(bytes));
        Self { bytes, kept, copied: Cell::new(Copied::NONE), is_for_many: Cell::new(false) }
    }

    /// The bytes.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> &'b [u8] {
        self.bytes
    }

    /// The bytes as an `Arc`: the copy that waiting streams keep.
    #[must_use]
    pub fn to_arc(&self) -> Arc<[u8]> {
        Arc::clone(self.kept())
    }

    /// True if that copy exists already, so that [`to_arc`](Self::to_arc) copies nothing.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.kept.get().is_some()
    }

    /// The copy that waiting streams keep, if it exists.
    pub(crate) fn if_kept(&self) -> Option<&Arc<[u8]>> {
        self.kept.get()
    }

    /// Where the ring last copied them.
    pub(crate) fn copied(&self) -> Copied {
        self.copied.get()
    }

    pub(crate) fn note_copied(&self, copied: Copied) {
        self.copied.set(copied);
    }

    /// Marks this as sent, and returns true if it was sent before.
    pub(crate) fn is_for_many(&self) -> bool {
        self.is_for_many.replace(true)
    }

    /// The copy for streams that wait, made on first use.
    pub(crate) fn kept(&self) -> &Arc<[u8]> {
        self.kept.get_or_init(|| Arc::from(self.bytes))
    }
}

impl fmt::Debug for SharedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBytes")
            .field("len", &self.bytes.len())
            .field("is_kept", &self.is_kept())
            .finish_non_exhaustive()
    }
}
