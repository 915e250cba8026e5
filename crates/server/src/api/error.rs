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

/// Why a subscription was rejected.
///
/// ```
/// use std::io;
/// use windlass_server::{Connection, SubscribeError};
///
/// /// Enters a room whose name comes from the peer.
/// fn enter(connection: &mut Connection<'_>, room: &str) -> io::Result<()> {
///     match connection.subscribe(room) {
///         Err(SubscribeError::TooLong) => Ok(_ = connection.send("the name is too long")?),
///         other => Ok(_ = other?),
///     }
/// }
///
/// assert_eq!(io::Error::from(SubscribeError::TooLong).kind(), io::ErrorKind::InvalidInput);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The connection is closing, or its ID refers to no connection any more.
    Closed,
    /// The name is [reserved](crate::Connection::watch_status).
    Reserved,
    /// The name is longer than [`topic_len_max`](crate::Options::topic_len_max).
    TooLong,
}

impl fmt::Display for SubscribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the connection is closing or gone",
            Self::Reserved => "names of topics that begin with $windlass/ are reserved",
            Self::TooLong => "the name of the topic is too long (Options::topic_len_max)",
        })
    }
}

impl core::error::Error for SubscribeError {}

impl From<SubscribeError> for io::Error {
    fn from(error: SubscribeError) -> Self {
        let kind = match error {
            SubscribeError::Closed => io::ErrorKind::BrokenPipe,
            SubscribeError::Reserved | SubscribeError::TooLong => io::ErrorKind::InvalidInput,
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

/// Why a server cannot start, beside the errors of its options and sockets.
///
/// ```
/// use windlass_server::StartError;
///
/// let error = std::io::Error::from(StartError::NoListener);
/// assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StartError {
    /// No call has added an address, a path or a socket to listen on.
    NoListener,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the server has no socket to listen on; call Server::listen, listen_unix or listen_on \
             before start",
        )
    }
}

impl core::error::Error for StartError {}

impl From<StartError> for io::Error {
    fn from(error: StartError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}
