//! The cases that only the suite `websocket` has: axum, HTTP/2, and clients by URL.

use serde::{Deserialize, Serialize};

use crate::tls::TlsHandshake;

/// A workload of the suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "case", rename_all = "snake_case")]
pub enum WebsocketCase {
    /// A handler of axum echoes the messages of connections. A round is a message.
    AxumEcho {
        /// Length of a message's payload in bytes.
        bytes: usize,
        /// Number of connections.
        connections: usize,
        /// Messages in flight per connection.
        depth: usize,
    },
    /// A server echoes messages over HTTP/2 (RFC 8441), in cleartext. A round is a message.
    Http2Echo {
        /// Length of a message's payload in bytes.
        bytes: usize,
        /// Number of connections.
        connections: usize,
        /// Number of WebSockets per connection.
        streams: usize,
        /// Messages in flight per WebSocket.
        depth: usize,
    },
    /// A client connects to a URL and closes the connection. The server is the same for all
    /// clients. A round is a connection.
    Connect {
        /// The handshake of TLS.
        handshake: TlsHandshake,
        /// Number of connections in flight.
        parallel: usize,
    },
}

impl WebsocketCase {
    /// The part of the suite.
    pub(crate) const fn part(&self) -> &'static str {
        match self {
            Self::AxumEcho { .. } => "websocket/axum",
            Self::Http2Echo { .. } => "websocket/http2",
            Self::Connect { .. } => "websocket/connect",
        }
    }

    /// Whether the server is started with TLS.
    #[must_use]
    pub const fn is_secure(&self) -> bool {
        matches!(self, Self::Connect { handshake: TlsHandshake::Full | TlsHandshake::Resumed, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Case;

    #[test]
    fn a_case_is_known_again_among_the_others() {
        let handshake = TlsHandshake::Resumed;
        let case = WebsocketCase::Connect { handshake, parallel: 3 };
        assert!(case.is_secure());
        let case = Case::WebsocketOnly(case);
        let line = serde_json::to_string(&case).unwrap();
        assert_eq!(line, r#"{"case":"connect","handshake":"resumed","parallel":3}"#);
        assert_eq!(serde_json::from_str::<Case>(&line).unwrap(), case);
        assert_eq!((case.suite(), case.part()), ("websocket", "websocket/connect"));
    }
}
