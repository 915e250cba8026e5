//! Errors of calls on connections.

use core::fmt;
use std::io;

/// Why a message was rejected. No part of it was sent.
///
/// ```
/// use std::io;
/// use windlass_server::{Connection, SendError};
///
/// /// Sends a state that may be left out, because a newer one follows.
/// fn send_state(connection: &mut Connection<'_>, state: &str) -> io::Result<()> {
///     match connection.send(state) {
///         Err(SendError::Full) => Ok(()),
///         other => Ok(other?),
///     }
/// }
///
/// assert_eq!(io::Error::from(SendError::Full).kind(), io::ErrorKind::WouldBlock);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SendError {
    /// The connection is closing, or its ID refers to no connection any more.
    Closed,
    /// The waiting bytes would exceed [`receiver_buffer_max`](crate::Options::receiver_buffer_max),
    /// and the policy does not drop older messages instead.
    Full,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the connection is closing or gone",
            Self::Full => "too many bytes wait for the receiver (Options::receiver_buffer_max)",
        })
    }
}

impl core::error::Error for SendError {}

impl From<SendError> for io::Error {
    fn from(error: SendError) -> Self {
        let kind = match error {
            SendError::Closed => io::ErrorKind::BrokenPipe,
            SendError::Full => io::ErrorKind::WouldBlock,
        };
        Self::new(kind, error)
    }
}

/// Why a ping or a close was rejected.
///
/// ```
/// use windlass_server::{CloseCode, Connection, ControlError};
///
/// /// Closes a connection. A reason that does not fit into a Close frame is left out.
/// fn close(connection: &mut Connection<'_>, reason: &str) -> Result<(), ControlError> {
///     match connection.close(CloseCode::NORMAL, reason) {
///         Err(ControlError::TooLong) => connection.close(CloseCode::NORMAL, ""),
///         other => other,
///     }
/// }
///
/// assert_eq!(ControlError::TooLong.to_string(), "a control frame takes at most 125 bytes");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ControlError {
    /// The connection is closing, or its ID refers to no connection any more.
    Closed,
    /// The payload of a ping is limited to 125 bytes, the reason of a close to 123 (RFC 6455
    /// section 5.5).
    TooLong,
    /// The code must not be sent (RFC 6455 section 7.4).
    BadCloseCode,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the connection is closing or gone",
            Self::TooLong => "a control frame takes at most 125 bytes",
            Self::BadCloseCode => "the close code may not be sent",
        })
    }
}

impl core::error::Error for ControlError {}

impl From<windlass_ws::FrameSendError> for ControlError {
    fn from(error: windlass_ws::FrameSendError) -> Self {
        match error {
            windlass_ws::FrameSendError::TooLong => Self::TooLong,
            windlass_ws::FrameSendError::BadCloseCode => Self::BadCloseCode,
            _ => Self::Closed,
        }
    }
}
