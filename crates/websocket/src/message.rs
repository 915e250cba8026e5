//! Messages that own their payload.

use bytes::Bytes;
use windlass_ws::MessageRef;

use crate::Utf8Bytes;

/// A message that owns its payload. A clone shares it.
///
/// ```
/// use windlass_websocket::Message;
///
/// let message = Message::from("hi");
/// assert_eq!(message.as_bytes(), "hi");
/// assert_eq!(message.as_str(), Some("hi"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// A text message.
    Text(Utf8Bytes),
    /// A binary message.
    Binary(Bytes),
}

impl Message {
    /// The payload.
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }

    /// The text, if this is a text message.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Binary(_) => None,
        }
    }

    /// Whether it is a text message.
    #[must_use]
    pub const fn is_text(&self) -> bool {
        matches!(self, Self::Text(_))
    }

    pub(crate) fn as_ref(&self) -> MessageRef<'_> {
        match self {
            Self::Text(text) => MessageRef::Text(text),
            Self::Binary(bytes) => MessageRef::Binary(bytes),
        }
    }
}

macro_rules! impl_from {
    ($($from:ty, $name:ident => $message:expr;)+) => {
        $(
            impl From<$from> for Message {
                fn from($name: $from) -> Self {
                    $message
                }
            }
        )+
    };
}

impl_from! {
    String, text => Message::Text(text.into());
    Utf8Bytes, text => Message::Text(text);
    Vec<u8>, bytes => Message::Binary(bytes.into());
    Bytes, bytes => Message::Binary(bytes);
}

impl From<&str> for Message {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<&[u8]> for Message {
    fn from(bytes: &[u8]) -> Self {
        Self::Binary(Bytes::copy_from_slice(bytes))
    }
}

impl<'a> From<&'a Message> for MessageRef<'a> {
    fn from(message: &'a Message) -> Self {
        message.as_ref()
    }
}
