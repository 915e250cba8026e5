//! Messages that are encoded once.

use core::fmt;
use std::sync::{Arc, OnceLock};

use super::message::OutMessage;

/// A message that is encoded once, for sending to many connections or many times. `Clone`, `Send`
/// and `Sync`; a clone is the same message.
///
/// A service with compression compresses the message when it is first sent to a connection that
/// negotiated compression. It keeps the result.
///
/// ```
/// use windlass_server::Prepared;
///
/// let hello = Prepared::new("hello");
/// assert_eq!(hello.as_bytes(), b"hello");
/// ```
#[derive(Clone)]
pub struct Prepared(Arc<PreparedInner>);

struct PreparedInner {
    plain: Arc<[u8]>,
    /// Offset of the payload.
    payload: usize,
    is_text: bool,
    /// The compressed frame, or the plain one if compression makes it no shorter.
    compressed: OnceLock<Arc<[u8]>>,
}

impl Prepared {
    /// Encodes a message.
    #[must_use]
    pub fn new<'a>(message: impl Into<OutMessage<'a>>) -> Self {
        let message = message.into();
        let mut frame = Vec::with_capacity(message.frame_len());
        message.encode(&mut frame);
        let payload = frame.len() - message.as_bytes().len();
        Self(Arc::new(PreparedInner {
            plain: frame.into(),
            payload,
            is_text: message.is_text(),
            compressed: OnceLock::new(),
        }))
    }

    /// Returns whether the message is text rather than bytes.
    #[must_use]
    pub fn is_text(&self) -> bool {
        self.0.is_text
    }

    /// Returns the payload.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0.plain[self.0.payload..]
    }

    /// Returns the same message, not prepared.
    #[must_use]
    pub fn to_out(&self) -> OutMessage<'_> {
        OutMessage::checked(self.0.is_text, self.as_bytes())
    }

    /// Number of bytes that the message takes in a queue.
    pub(crate) fn weight(&self) -> usize {
        self.0.plain.len()
    }

    pub(crate) fn plain(&self) -> &Arc<[u8]> {
        &self.0.plain
    }

    /// Returns the compressed frame. `compress` appends it to a buffer, or returns false if it is
    /// no shorter than the plain frame.
    pub(crate) fn compressed(
        &self,
        compress: impl FnOnce(&OutMessage<'_>, &mut Vec<u8>) -> bool,
    ) -> &Arc<[u8]> {
        self.0.compressed.get_or_init(|| {
            let mut frame = Vec::new();
            if compress(&self.to_out(), &mut frame) {
                frame.into()
            } else {
                Arc::clone(&self.0.plain)
            }
        })
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared")
            .field("is_text", &self.is_text())
            .field("len", &self.as_bytes().len())
            .finish_non_exhaustive()
    }
}
