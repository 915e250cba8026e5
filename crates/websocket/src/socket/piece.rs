//! A piece of a message that is lent.

use std::fmt;

use crate::inbox::Inbox;

/// A piece of a message that the socket lends until the next call: see
/// [`WebSocket::recv_piece`](super::WebSocket::recv_piece).
///
/// ```no_run
/// # async fn upload<S: windlass_websocket::Transport>(
/// #     mut socket: windlass_websocket::WebSocket<S>,
/// #     mut file: impl std::io::Write,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// while let Some(piece) = socket.recv_piece().await? {
///     file.write_all(piece.as_bytes())?;
///     if piece.is_last() {
///         break;
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Piece<'a> {
    inbox: &'a mut Inbox,
}

impl<'a> Piece<'a> {
    pub(super) fn new(inbox: &'a mut Inbox) -> Self {
        Self { inbox }
    }

    /// The bytes. A piece of a text may end within a character.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.inbox.payload()
    }

    /// The bytes, to change them.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.inbox.payload_mut()
    }

    /// Whether it is a piece of a text message. Its bytes have been validated as UTF-8, as far as
    /// they have arrived.
    #[must_use]
    pub fn is_text(&self) -> bool {
        self.inbox.is_text()
    }

    /// Whether the message ends with this piece, which may be empty then.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.inbox.is_last()
    }
}

impl fmt::Debug for Piece<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece")
            .field("len", &self.as_bytes().len())
            .field("is_text", &self.is_text())
            .field("is_last", &self.is_last())
            .finish()
    }
}
