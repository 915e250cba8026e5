//! [`ServeEvent`].

use core::fmt;
use std::{io, net::SocketAddr, time::Duration};

/// Something that a log of a server may want:
/// [`HttpServer::on_event`](crate::HttpServer::on_event).
///
/// Its `Display` is a line for a log.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeEvent<'a> {
    /// accept(2) has failed, and the server waits before it tries again.
    AcceptFailed {
        /// Why.
        error: &'a io::Error,
        /// How long it waits. Zero for an error of a single connection.
        pause: Duration,
    },
    /// As many connections are open as may be. Others wait in the kernel's backlog.
    LimitReached {
        /// The limit.
        connections_max: usize,
    },
    /// The handshake of a connection has failed, for instance that of TLS.
    HandshakeFailed {
        /// Who.
        peer: Option<SocketAddr>,
        /// Why.
        error: &'a io::Error,
    },
    /// A connection has ended with an error: the peer has violated HTTP, was too slow, or is gone.
    ConnectionFailed {
        /// Who.
        peer: Option<SocketAddr>,
        /// Why.
        error: &'a hyper::Error,
    },
    /// A service has panicked, which has ended its connection of HTTP/1.1. With HTTP/2 there is no
    /// such event.
    ServicePanicked,
    /// Connections did not end in time at the shutdown, and were closed.
    ShutdownTimedOut {
        /// Their number.
        connections: usize,
    },
}

impl fmt::Display for ServeEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = |f: &mut fmt::Formatter<'_>, peer: &Option<SocketAddr>| match peer {
            Some(peer) => write!(f, "{peer}: "),
            None => Ok(()),
        };
        match self {
            Self::AcceptFailed { error, pause } if pause.is_zero() => {
                write!(f, "cannot accept a connection: {error}")
            }
            Self::AcceptFailed { error, pause } => {
                write!(f, "cannot accept connections: {error}; next try in {pause:?}")
            }
            Self::LimitReached { connections_max } => write!(
                f,
                "connection limit {connections_max} reached; raise `connections_max`, or let \
                 clients wait"
            ),
            Self::HandshakeFailed { peer: from, error } => {
                peer(f, from)?;
                write!(f, "handshake failed: {error}")
            }
            Self::ConnectionFailed { peer: from, error } => {
                peer(f, from)?;
                write!(f, "connection failed: {error}")?;
                match core::error::Error::source(error) {
                    Some(source) => write!(f, ": {source}"),
                    None => Ok(()),
                }
            }
            Self::ServicePanicked => f.write_str("a service has panicked"),
            Self::ShutdownTimedOut { connections } => write!(
                f,
                "{connections} connections did not end in time and were closed; raise \
                 `shutdown_timeout`, or end requests earlier"
            ),
        }
    }
}
