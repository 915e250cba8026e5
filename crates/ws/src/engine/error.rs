//! Errors of the local caller. Errors of the peer are [`Violation`](crate::Violation)s.

use core::fmt;

/// Why a frame was not sent. No part of it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameSendError {
    /// This side has sent its Close frame, and nothing may follow it (RFC 6455 section 5.5.1).
    Closed,
    /// A ping or pong with more than 125 bytes, or a close reason with more than 123 (section 5.5).
    TooLong,
    /// A close code that must not be sent (section 7.4).
    BadCloseCode,
}

impl fmt::Display for FrameSendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the connection is closing",
            Self::TooLong => "a control frame takes at most 125 bytes",
            Self::BadCloseCode => "the close code may not be sent",
        })
    }
}

impl core::error::Error for FrameSendError {}
