//! How a server program is reached.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// The line that a server program prints when it listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerInfo {
    /// The address on which it listens.
    pub address: SocketAddr,
    /// The address for receivers of publications, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receivers: Option<SocketAddr>,
    /// It speaks the protocol of NATS, and not that of WebSockets.
    #[serde(default)]
    pub speaks_nats: bool,
    /// After an upgrade it sends the received bytes back as they are, also the masks.
    #[serde(default)]
    pub echoes_bytes: bool,
    /// Number of its process. The started process may be strace(1) instead.
    pub process: u32,
    /// Version of the measured library.
    pub version: String,
    /// Address of the number of allocations in its memory, eight bytes.
    pub allocations_at: u64,
}

impl ServerInfo {
    /// A server of WebSockets in this process, whose allocations are not read.
    pub fn new(address: SocketAddr, version: &str) -> Self {
        Self {
            address,
            receivers: None,
            speaks_nats: false,
            echoes_bytes: false,
            process: std::process::id(),
            version: version.to_owned(),
            allocations_at: 0,
        }
    }
}
