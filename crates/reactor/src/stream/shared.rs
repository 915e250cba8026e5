//! Bytes that many streams are sent.

use core::{
    cell::{Cell, OnceCell},
    fmt,
};
use std::sync::Arc;

use crate::backend::Copied;

/// Bytes for many streams, a message to all who listen, say:
/// [`Stream::send_shared`](super::Stream::send_shared) and
/// [`write_shared`](super::Stream::write_shared) take them. No stream has a copy of them, but of
/// very short ones: those that cannot send them at once wait with one that they have in common,
/// which is made when the first of them needs it.
pub struct Shared<'b> {
    bytes: &'b [u8],
    kept: OnceCell<Arc<[u8]>>,
    /// On a ring: where they were copied last, to be sent.
    copied: Cell<Option<Copied>>,
    /// On a ring: somebody was sent them already.
    is_for_many: Cell<bool>,
}

impl<'b> Shared<'b> {
    /// Bytes that are the caller's, who may use them for something else when the calls that take
    /// this have returned.
    #[must_use]
    pub const fn new(bytes: &'b [u8]) -> Self {
        Self {
            bytes,
            kept: OnceCell::new(),
            copied: Cell::new(None),
            is_for_many: Cell::new(false),
        }
    }

    /// Bytes that are shared already.
    #[must_use]
    pub fn of(bytes: &'b Arc<[u8]>) -> Self {
        let kept = OnceCell::from(Arc::clone(bytes));
        Self { bytes, kept, copied: Cell::new(None), is_for_many: Cell::new(false) }
    }

    /// The bytes.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> &'b [u8] {
        self.bytes
    }

    /// The bytes in a form that can be kept: the one with which streams wait that cannot send them
    /// at once.
    #[must_use]
    pub fn to_arc(&self) -> Arc<[u8]> {
        Arc::clone(self.kept())
    }

    /// Whether a stream waits with them already, so that [`to_arc`](Self::to_arc) copies nothing.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.kept.get().is_some()
    }

    /// The bytes where they can be kept, if they have been kept before.
    #[cfg_attr(miri, expect(dead_code, reason = "for the ring"))]
    pub(crate) fn if_kept(&self) -> Option<&Arc<[u8]>> {
        self.kept.get()
    }

    /// Where the ring has copied them last.
    #[cfg_attr(miri, expect(dead_code, reason = "for the ring"))]
    pub(crate) fn copied(&self) -> Option<Copied> {
        self.copied.get()
    }

    #[cfg_attr(miri, expect(dead_code, reason = "for the ring"))]
    pub(crate) fn note_copied(&self, copied: Copied) {
        self.copied.set(Some(copied));
    }

    /// Whether this was asked before.
    #[cfg_attr(miri, expect(dead_code, reason = "for the ring"))]
    pub(crate) fn is_for_many(&self) -> bool {
        self.is_for_many.replace(true)
    }

    /// To let wait.
    pub(super) fn kept(&self) -> &Arc<[u8]> {
        self.kept.get_or_init(|| Arc::from(self.bytes))
    }
}

impl fmt::Debug for Shared<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("len", &self.bytes.len())
            .field("is_kept", &self.is_kept())
            .finish_non_exhaustive()
    }
}
