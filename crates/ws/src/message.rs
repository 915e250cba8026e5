//! What applications exchange.

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Text: UTF-8.
    Text(&'a str),
    /// Bytes.
    Binary(&'a [u8]),
}

impl<'a> Message<'a> {
    /// The payload.
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }
}
