//! How a connection ended.

use core::fmt;

use windlass::Errno;
use windlass_ws::{CloseCode, Violation};

use super::id::ConnectionId;

/// Why a connection was closed. The first reason wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer sent a Close frame.
    Peer,
    /// This side closed it, by [`Connection::close`](crate::Connection::close) or another call of
    /// the application.
    Local,
    /// The peer violated the protocol or exceeded a limit, and was sent a Close frame that says so.
    Violation(Violation),
    /// Nothing was received for [`idle_timeout`](crate::Options::idle_timeout).
    Idle,
    /// The connection was open for [`lifetime_max`](crate::Options::lifetime_max).
    Lifetime,
    /// The peer did not read its messages
    /// ([`SlowConsumerPolicy::Evict`](crate::SlowConsumerPolicy::Evict)).
    Evicted,
    /// The peer read none of the output for
    /// [`write_stall_timeout`](crate::Options::write_stall_timeout).
    WriteStall,
    /// The peer ended the connection without a Close frame.
    Lost,
    /// The kernel reported an error, for instance `ECONNRESET`.
    Failed(Errno),
    /// The drain's deadline passed.
    Drained,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer => f.write_str("closed by the peer"),
            Self::Local => f.write_str("closed by this side"),
            Self::Violation(violation) => write!(f, "protocol violation: {violation}"),
            Self::Idle => f.write_str("idle timeout: no data received"),
            Self::Lifetime => f.write_str("connection lifetime exceeded"),
            Self::Evicted => f.write_str("evicted: the peer reads too slowly"),
            Self::WriteStall => f.write_str("write timeout: the peer read no output"),
            Self::Lost => f.write_str("closed by the peer without a Close frame"),
            Self::Failed(errno) => write!(f, "failed: {errno}"),
            Self::Drained => f.write_str("still open at the end of the graceful shutdown"),
        }
    }
}

/// How a connection ended: the argument of [`on_close`](crate::Handler::on_close).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Closed<'a> {
    /// The ID of the connection. It refers to no connection any more.
    pub id: ConnectionId,
    /// Why the connection ended.
    pub reason: CloseReason,
    /// The code of the peer's Close frame, if a frame with a code was received.
    pub code: Option<CloseCode>,
    /// The text of the peer's Close frame; empty without one.
    pub text: &'a str,
}
