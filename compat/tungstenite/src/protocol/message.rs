//! Messages.

use std::{fmt, str};

use bytes::Bytes;

use super::frame::{CloseFrame, Frame, Utf8Bytes};
use crate::error::Result;

/// A message, or a control frame.
///
/// A received message of at most 125 bytes lies in a block of 1 KiB, together with others of the
/// thread. The block is freed with the last of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A text message.
    Text(Utf8Bytes),
    /// A binary message.
    Binary(Bytes),
    /// A ping, with at most 125 bytes. Those of the peer are answered without help.
    Ping(Bytes),
    /// A pong, with at most 125 bytes.
    Pong(Bytes),
    /// A Close frame, with its code and reason if it has them.
    Close(Option<CloseFrame>),
    /// A frame that is sent as it is. It is never received.
    Frame(Frame),
}

impl Message {
    /// A text message.
    pub fn text<S>(string: S) -> Message
    where
        S: Into<Utf8Bytes>,
    {
        Self::Text(string.into())
    }

    /// A binary message.
    pub fn binary<B>(bin: B) -> Message
    where
        B: Into<Bytes>,
    {
        Self::Binary(bin.into())
    }

    /// Whether it is a text message.
    pub fn is_text(&self) -> bool {
        matches!(self, Self::Text(_))
    }

    /// Whether it is a binary message.
    pub fn is_binary(&self) -> bool {
        matches!(self, Self::Binary(_))
    }

    /// Whether it is a ping.
    pub fn is_ping(&self) -> bool {
        matches!(self, Self::Ping(_))
    }

    /// Whether it is a pong.
    pub fn is_pong(&self) -> bool {
        matches!(self, Self::Pong(_))
    }

    /// Whether it is a Close frame.
    pub fn is_close(&self) -> bool {
        matches!(self, Self::Close(_))
    }

    /// The length of the payload in bytes; of a Close frame, that of the reason; of a
    /// [`Message::Frame`], that of the whole frame.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Binary(data) | Self::Ping(data) | Self::Pong(data) => data.len(),
            Self::Close(close) => close.as_ref().map_or(0, |close| close.reason.len()),
            Self::Frame(frame) => frame.len(),
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The payload; of a Close frame, the reason.
    pub fn into_data(self) -> Bytes {
        match self {
            Self::Text(text) => text.into(),
            Self::Binary(data) | Self::Ping(data) | Self::Pong(data) => data,
            Self::Close(close) => close.map(|close| close.reason.into()).unwrap_or_default(),
            Self::Frame(frame) => frame.into_payload(),
        }
    }

    /// The payload as text; of a Close frame, the reason.
    ///
    /// # Errors
    /// It is not UTF-8.
    pub fn into_text(self) -> Result<Utf8Bytes> {
        match self {
            Self::Text(text) => Ok(text),
            other => Ok(other.into_data().try_into()?),
        }
    }

    /// The payload as text; of a Close frame, the reason.
    ///
    /// # Errors
    /// It is not UTF-8.
    pub fn to_text(&self) -> Result<&str> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Binary(data) | Self::Ping(data) | Self::Pong(data) => Ok(str::from_utf8(data)?),
            Self::Close(close) => Ok(close.as_ref().map_or("", |close| close.reason.as_str())),
            Self::Frame(frame) => Ok(frame.to_text()?),
        }
    }
}

impl From<String> for Message {
    #[inline]
    fn from(string: String) -> Self {
        Self::text(string)
    }
}

impl<'s> From<&'s str> for Message {
    #[inline]
    fn from(string: &'s str) -> Self {
        Self::text(string)
    }
}

impl<'b> From<&'b [u8]> for Message {
    #[inline]
    fn from(data: &'b [u8]) -> Self {
        Self::binary(Bytes::copy_from_slice(data))
    }
}

impl From<Bytes> for Message {
    fn from(data: Bytes) -> Self {
        Self::binary(data)
    }
}

impl From<Vec<u8>> for Message {
    #[inline]
    fn from(data: Vec<u8>) -> Self {
        Self::binary(data)
    }
}

impl From<Message> for Bytes {
    #[inline]
    fn from(message: Message) -> Self {
        message.into_data()
    }
}

impl fmt::Display for Message {
    /// The text, or how long the data are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_text() {
            Ok(text) => f.write_str(text),
            Err(_) => write!(f, "Binary Data<length={}>", self.len()),
        }
    }
}
