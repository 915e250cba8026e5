//! Counts with labels, and their formats: Prometheus' text, and a JSON object.

mod cluster;
mod labels;
mod process;
mod prometheus;
mod status;
mod tls;

pub(crate) use cluster::write_cluster_metrics;
pub(crate) use labels::{
    Closing, ConnectionCounts, HandshakeResult, LabelCounters, PoolFigures, StateLabel, Transport,
    WorkerSnapshot,
};
pub(crate) use process::write_process;
pub(crate) use prometheus::{CONTENT_TYPE, write_admin_counts, write_metrics};
pub(crate) use status::{TopicFigures, json_string, not_ready, write_live_status, write_status};
pub(crate) use tls::{TlsFailureLabel, TlsFigures};
