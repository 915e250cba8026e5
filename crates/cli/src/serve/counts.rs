//! The counts of a running server, WebSocket or raw.

use std::{sync::Arc, time::Duration};

use windlass_server::{ServerStats, StatsHandle};

use super::raw_counts::RawCounts;

/// The counts of a server, readable on any thread.
#[derive(Clone, Debug)]
pub(crate) enum ServerCounts {
    WebSocket(StatsHandle),
    Raw(Arc<RawCounts>),
}

impl ServerCounts {
    /// The handle for the admin listener. Raw mode has none.
    pub(crate) fn stats_handle(&self) -> Option<StatsHandle> {
        match self {
            Self::WebSocket(counts) => Some(counts.clone()),
            Self::Raw(_) => None,
        }
    }

    /// Returns how long ago the slowest worker has finished a turn. That of raw mode is not known.
    pub(crate) fn slowest_worker_age(&self) -> Duration {
        match self {
            Self::WebSocket(counts) => counts.slowest_worker_age(),
            Self::Raw(_) => Duration::ZERO,
        }
    }

    /// Number of times that listeners paused accepting.
    pub(crate) fn accepting_paused(&self) -> u64 {
        match self {
            Self::WebSocket(counts) => counts.stats().accepting_paused,
            Self::Raw(counts) => counts.accepting_paused(),
        }
    }

    /// Number of times that the connection limit was reached.
    pub(crate) fn limits_reached(&self) -> u64 {
        match self {
            Self::WebSocket(counts) => counts.stats().connection_limits_reached,
            Self::Raw(counts) => counts.limits_reached(),
        }
    }

    /// Number of times that listeners waited because of a rate.
    pub(crate) fn rates_reached(&self) -> u64 {
        match self {
            Self::WebSocket(counts) => counts.stats().connection_rates_reached,
            Self::Raw(_) => 0,
        }
    }

    /// Number of messages dropped for slow receivers, and of those lost between workers.
    pub(crate) fn dropped(&self) -> (u64, u64) {
        match self {
            Self::WebSocket(counts) => {
                let stats = counts.stats();
                (stats.dropped, stats.lost_between_workers)
            }
            Self::Raw(_) => (0, 0),
        }
    }

    /// Number of bytes that the load may use: the waiting bytes, and a mebibyte for each
    /// connection.
    pub(crate) fn load(&self) -> u64 {
        let (waiting, connections) = match self {
            Self::WebSocket(counts) => {
                let stats = counts.stats();
                (stats.memory, stats.connections)
            }
            Self::Raw(counts) => (0, counts.open()),
        };
        waiting.saturating_add(connections << 20)
    }

    /// The final summary line.
    pub(crate) fn summary(&self) -> String {
        match self {
            Self::WebSocket(counts) => line(&counts.stats()),
            Self::Raw(counts) => counts.to_string(),
        }
    }
}

fn line(stats: &ServerStats) -> String {
    let ServerStats {
        opened,
        connections_most,
        broken_off,
        rejected,
        handshake_timeouts,
        requests,
        messages_received,
        messages_sent,
        ..
    } = *stats;
    let ServerStats {
        dropped,
        evicted,
        evicted_for_memory,
        violations,
        reading_paused,
        accepting_paused,
        ..
    } = *stats;
    let connection_limits_reached = stats.connection_limits_reached;
    let refused = rejected + handshake_timeouts;
    format!(
        "{opened} connections, {connections_most} at most at once, {broken_off} broken off, \
         {refused} refused, {requests} pages, {messages_received} messages, \
         {messages_sent} sent, {dropped} dropped, \
         {evicted} evicted ({evicted_for_memory} for memory), {violations} violations, \
         reading paused {reading_paused} times, accepting paused {accepting_paused} times, \
         connection limit reached {connection_limits_reached} times"
    )
}
