//! What happens to the connection, for a log.

use core::fmt;
use std::time::Duration;

/// What happens to the connection of a [`NatsBus`](crate::NatsBus): the argument of
/// [`NatsBusBuilder::on_event`](crate::NatsBusBuilder::on_event).
///
/// `Display` gives a line for a log. It has no credentials, unless a server puts them into its own
/// error text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NatsEvent {
    /// It is connected, and the subscriptions have been sent.
    Connected {
        /// The name, version and port of the server.
        server: String,
        /// The maximum length of a payload in bytes, which the server has told.
        payload_max: usize,
    },
    /// The connection was lost.
    Disconnected {
        /// Why.
        reason: String,
    },
    /// No server could be connected.
    ConnectFailed {
        /// Why, for the last server.
        reason: String,
        /// When it is tried again.
        retry_in: Duration,
    },
    /// The server has reported an error, such as a missing permission. There is at most one such
    /// event per second.
    ServerError {
        /// What the server says.
        text: String,
        /// The number of errors before it that had no event.
        omitted: u64,
    },
    /// The server will shut down soon.
    LameDuck,
}

impl fmt::Display for NatsEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected { server, payload_max } => {
                write!(f, "connected to {server}; its maximum payload is {payload_max} bytes")
            }
            Self::Disconnected { reason } => write!(f, "the connection was lost: {reason}"),
            Self::ConnectFailed { reason, retry_in } => write!(
                f,
                "no NATS server can be connected: {reason}; next attempt in {} ms",
                retry_in.as_millis()
            ),
            Self::ServerError { text, omitted: 0 } => {
                write!(f, "the NATS server reports an error: {text}")
            }
            Self::ServerError { text, omitted } => {
                write!(f, "the NATS server reports an error: {text}, and {omitted} before it")
            }
            Self::LameDuck => f.write_str("the NATS server will shut down soon"),
        }
    }
}
