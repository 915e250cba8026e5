//! Errors of the local caller. Errors of the peer are [`Violation`](crate::Violation)s.

use core::fmt;

/// Why a frame was not sent. No part of it was sent.
///
/// ```
/// use std::sync::Arc;
/// use windlass_ws::{CloseCode, Config, Engine, FrameSendError, MessageRef, Scratch};
///
/// let mut scratch = Scratch::new();
/// let mut engine = Engine::new(&Arc::new(Config::server()));
/// engine.close(CloseCode::NORMAL, "done", &mut scratch)?;
/// let late = engine.send(MessageRef::Text("late"), &mut scratch);
/// assert_eq!(late, Err(FrameSendError::Closed));
/// # Ok::<(), FrameSendError>(())
/// ```
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
            Self::Closed => "a Close frame was sent; nothing can follow it",
            Self::TooLong => "a control frame has at most 125 bytes, a close reason at most 123",
            Self::BadCloseCode => "this close code cannot be sent",
        })
    }
}

impl core::error::Error for FrameSendError {}
