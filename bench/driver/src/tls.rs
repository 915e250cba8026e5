//! The suite `tls`: WebSocket servers behind TLS.

use serde::{Deserialize, Serialize};

/// The certificate of the measured servers, for `localhost`, as a PEM file. Its key is of the
/// curve P-256.
pub const CERTIFICATE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/tls/tests/certificates/localhost.pem");

/// The certificate of the authority that has signed [`CERTIFICATE`].
pub const AUTHORITY: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/tls/tests/certificates/ca.pem");

/// The private key of [`CERTIFICATE`].
pub const PRIVATE_KEY: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/tls/tests/certificates/localhost.key");

/// The handshake of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TlsHandshake {
    /// None: the connection is plain, to compare.
    None,
    /// With a key exchange and the certificate.
    Full,
    /// With a ticket of an earlier connection, and a key exchange.
    Resumed,
}

/// A workload of the suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "case", rename_all = "snake_case")]
pub enum TlsCase {
    /// A server echoes the messages of connections. A round is a message.
    TlsMessages {
        /// Length of a message's payload in bytes.
        bytes: usize,
        /// Number of connections.
        connections: usize,
        /// Messages in flight per connection.
        depth: usize,
    },
    /// Connections are opened, upgraded and closed. A round is a connection.
    TlsUpgrade {
        /// The handshake.
        handshake: TlsHandshake,
        /// Number of connections in flight.
        parallel: usize,
    },
    /// Handshakes are begun without a pause, and given up after the server's first answer.
    /// Meanwhile open connections send a message now and then. A round is such a message.
    TlsFlood {
        /// Number of open connections.
        connections: usize,
        /// Number of handshakes in flight.
        handshakes: usize,
    },
    /// The memory of a server for a connection that has echoed a message and waits.
    TlsIdleConnection {
        /// Number of connections, by which the memory is divided.
        connections: usize,
        /// Length of the message.
        bytes: usize,
        /// With TLS; otherwise plain, to compare.
        tls: bool,
    },
}

impl TlsCase {
    /// Whether the server is started with TLS.
    #[must_use]
    pub const fn is_secure(&self) -> bool {
        !matches!(
            self,
            Self::TlsUpgrade { handshake: TlsHandshake::None, .. }
                | Self::TlsIdleConnection { tls: false, .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Case;

    #[test]
    fn a_case_is_known_again_among_the_others() {
        let case = Case::Tls(TlsCase::TlsUpgrade { handshake: TlsHandshake::Full, parallel: 3 });
        let line = serde_json::to_string(&case).unwrap();
        assert_eq!(line, r#"{"case":"tls_upgrade","handshake":"full","parallel":3}"#);
        assert_eq!(serde_json::from_str::<Case>(&line).unwrap(), case);
        assert_eq!((case.suite(), case.part()), ("tls", "tls"));
    }
}
