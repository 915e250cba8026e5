//! [`ServeEvent`].

use core::{error::Error, fmt};
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
    /// As many connections are open as may be. Others wait in the kernel's backlog. There is at
    /// most one such event in ten seconds.
    LimitReached {
        /// The limit.
        connections_max: usize,
        /// How often the limit was reached since the last such event.
        times: usize,
    },
    /// The handshake of a connection has failed, for instance that of TLS.
    HandshakeFailed {
        /// Who.
        peer: Option<SocketAddr>,
        /// Why.
        error: &'a io::Error,
    },
    /// A connection has failed before its first request: none came in time, or the peer is gone.
    NoRequest {
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
    /// A service has returned an error, or the body of its response has, which has reset a stream
    /// of HTTP/2. With HTTP/1.1 its connection fails.
    StreamFailed {
        /// Who.
        peer: Option<SocketAddr>,
        /// Why.
        error: &'a (dyn Error + Send + Sync + 'static),
    },
    /// A service has panicked, or the body of its response has. It has ended its connection of
    /// HTTP/1.1, or reset its stream of HTTP/2.
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
            Self::LimitReached { connections_max, times } => {
                write!(f, "connection limit {connections_max} reached")?;
                if *times > 1 {
                    write!(f, " {times} times")?;
                }
                f.write_str("; raise `connections_max`, or let clients wait")
            }
            Self::HandshakeFailed { peer: from, error } => {
                peer(f, from)?;
                write!(f, "handshake failed: {error}")
            }
            Self::NoRequest { peer: from, error } => {
                peer(f, from)?;
                write!(f, "connection ended before a request: {error}")
            }
            Self::StreamFailed { peer: from, error } => {
                peer(f, from)?;
                write!(f, "stream of HTTP/2 failed: {error}")
            }
            Self::ConnectionFailed { peer: from, error } => {
                peer(f, from)?;
                write!(f, "connection failed: {error}")?;
                match Error::source(error) {
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
