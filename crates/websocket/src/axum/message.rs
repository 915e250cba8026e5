//! Messages, as axum has them.

use std::str;

use axum_core::Error;
use bytes::Bytes;

use crate::Utf8Bytes;

/// The code of a Close frame.
pub type CloseCode = u16;

/// The contents of a Close frame.
#[derive(Debug, Clone, Eq, PartialEq)]
pub struct CloseFrame {
    /// Why the connection is closed.
    pub code: CloseCode,
    /// The reason, for people to read.
    pub reason: Utf8Bytes,
}

/// A message, or a control frame.
#[derive(Debug, Eq, PartialEq, Clone)]
pub enum Message {
    /// A text message.
    Text(Utf8Bytes),
    /// A binary message.
    Binary(Bytes),
    /// A ping, of at most 125 bytes. Received ones are answered by the socket.
    Ping(Bytes),
    /// A pong, of at most 125 bytes.
    Pong(Bytes),
    /// A Close frame. A received one is answered by the socket. After a sent one, messages may
    /// still be received, and none can be sent.
    Close(Option<CloseFrame>),
}

impl Message {
    /// The payload, or the reason of a Close frame.
    pub fn into_data(self) -> Bytes {
        match self {
            Self::Text(text) => text.into(),
            Self::Binary(data) | Self::Ping(data) | Self::Pong(data) => data,
            Self::Close(None) => Bytes::new(),
            Self::Close(Some(frame)) => frame.reason.into(),
        }
    }

    /// The payload as text, or the reason of a Close frame.
    ///
    /// # Errors
    /// The payload is not UTF-8.
    pub fn into_text(self) -> Result<Utf8Bytes, Error> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Binary(data) | Self::Ping(data) | Self::Pong(data) => {
                data.try_into().map_err(Error::new)
            }
            Self::Close(None) => Ok(Utf8Bytes::default()),
            Self::Close(Some(frame)) => Ok(frame.reason),
        }
    }

    /// Like [`into_text`](Self::into_text), borrowed.
    ///
    /// # Errors
    /// The payload is not UTF-8.
    pub fn to_text(&self) -> Result<&str, Error> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Binary(data) | Self::Ping(data) | Self::Pong(data) => {
                str::from_utf8(data).map_err(Error::new)
            }
            Self::Close(None) => Ok(""),
            Self::Close(Some(frame)) => Ok(&frame.reason),
        }
    }

    /// A text message.
    pub fn text<S>(text: S) -> Self
    where
        S: Into<Utf8Bytes>,
    {
        Self::Text(text.into())
    }

    /// A binary message.
    pub fn binary<B>(bytes: B) -> Self
    where
        B: Into<Bytes>,
    {
        Self::Binary(bytes.into())
    }
}

impl From<String> for Message {
    fn from(text: String) -> Self {
        Self::text(text)
    }
}

impl From<&str> for Message {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<&[u8]> for Message {
    fn from(bytes: &[u8]) -> Self {
        Self::Binary(Bytes::copy_from_slice(bytes))
    }
}

impl From<Bytes> for Message {
    fn from(bytes: Bytes) -> Self {
        Self::Binary(bytes)
    }
}

impl From<Vec<u8>> for Message {
    fn from(bytes: Vec<u8>) -> Self {
        Self::binary(bytes)
    }
}

impl From<Message> for Vec<u8> {
    fn from(message: Message) -> Self {
        message.into_data().to_vec()
    }
}

/// Codes of Close frames (RFC 6455 section 7.4.1).
pub mod close_code {
    /// The purpose of the connection is fulfilled.
    pub const NORMAL: u16 = 1000;
    /// The endpoint goes away.
    pub const AWAY: u16 = 1001;
    /// The peer broke the protocol.
    pub const PROTOCOL: u16 = 1002;
    /// A type of data that is not accepted.
    pub const UNSUPPORTED: u16 = 1003;
    /// There was no code in the Close frame. It is never sent.
    pub const STATUS: u16 = 1005;
    /// There was no Close frame. It is never sent.
    pub const ABNORMAL: u16 = 1006;
    /// Data that do not fit the type of the message.
    pub const INVALID: u16 = 1007;
    /// A policy was violated.
    pub const POLICY: u16 = 1008;
    /// A message is too long.
    pub const SIZE: u16 = 1009;
    /// The server did not agree on an extension.
    pub const EXTENSION: u16 = 1010;
    /// The server failed.
    pub const ERROR: u16 = 1011;
    /// The server restarts.
    pub const RESTART: u16 = 1012;
    /// The server is overloaded: try again later.
    pub const AGAIN: u16 = 1013;
}
