//! The JSON object of `/status`.

use anyhow::Context as _;
use serde::Deserialize;
use windlass_server::printable;

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) backend: String,
    pub(crate) state: String,
    pub(crate) uptime_seconds: u64,
    pub(crate) connections: Connections,
    pub(crate) opened: u64,
    pub(crate) closed: u64,
    pub(crate) messages: Messages,
    pub(crate) message_bytes: Directions,
    pub(crate) wire_bytes: Directions,
    pub(crate) evicted: u64,
    pub(crate) slow_receivers: u64,
    pub(crate) topics: u64,
    pub(crate) subscriptions: u64,
    pub(crate) memory: Memory,
    /// Only of a node of a cluster.
    pub(crate) cluster: Option<Cluster>,
    pub(crate) workers: Vec<WorkerRow>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Connections {
    pub(crate) handshake: u64,
    pub(crate) open: u64,
    pub(crate) closing: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Messages {
    #[serde(rename = "in")]
    pub(crate) received: u64,
    #[serde(rename = "out")]
    pub(crate) sent: u64,
    pub(crate) dropped: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Directions {
    #[serde(rename = "in")]
    pub(crate) received: u64,
    #[serde(rename = "out")]
    pub(crate) sent: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Memory {
    pub(crate) limit: u64,
    pub(crate) held: u64,
    pub(crate) output_buffered: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Cluster {
    pub(crate) state: String,
    pub(crate) connects: u64,
    pub(crate) subscriptions: u64,
    pub(crate) published: u64,
    pub(crate) received: u64,
    pub(crate) dropped: u64,
    pub(crate) missed: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct WorkerRow {
    pub(crate) worker: u64,
    pub(crate) connections: u64,
    pub(crate) messages_in: u64,
    pub(crate) messages_out: u64,
    pub(crate) lag_count: u64,
    pub(crate) lag_sum_us: u64,
    pub(crate) buffered_bytes: u64,
}

impl Status {
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let mut status: Self =
            serde_json::from_str(text).context("this is not the status of a windlass server")?;
        let of_cluster = status.cluster.as_mut().map(|cluster| &mut cluster.state);
        let texts = [&mut status.version, &mut status.backend, &mut status.state];
        for text in texts.into_iter().chain(of_cluster) {
            *text = printable(text);
        }
        Ok(status)
    }
}
