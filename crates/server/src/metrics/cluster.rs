//! The metrics and the status of a node of a cluster.

use super::prometheus::MetricsText;
use crate::bus::{BusState, ClusterStats};

/// Returns the counts as a JSON object. A publication that is `dropped` was lost at this node. One
/// that is `missed` is of another node, and did not arrive or came too late.
pub(super) fn cluster_status(stats: &ClusterStats) -> String {
    let state = match stats.state {
        BusState::Connecting => "connecting",
        BusState::Connected => "connected",
        BusState::Closed => "closed",
    };
    let dropped = stats.send_full + stats.send_too_large + stats.send_lost + stats.receive_full;
    format!(
        "{{\"state\":\"{state}\",\"connects\":{},\"subscriptions\":{},\"published\":{},\
         \"received\":{},\"dropped\":{dropped},\"missed\":{}}}",
        stats.connects, stats.subscriptions, stats.sent, stats.received, stats.missed,
    )
}

/// Appends the metrics of a server that is a node.
pub(crate) fn write_cluster_metrics(stats: &ClusterStats, out: &mut Vec<u8>) {
    let mut text = MetricsText { out };
    text.gauge(
        "cluster_connected",
        "1 if the bus of the cluster is connected, and 0 otherwise.",
        u64::from(stats.state == BusState::Connected),
    );
    text.counter(
        "cluster_connects_total",
        "How often the bus of the cluster was connected.",
        stats.connects,
    );
    text.gauge(
        "cluster_subscriptions",
        "Topics that the server is subscribed to on the bus.",
        stats.subscriptions,
    );
    text.gauge(
        "cluster_publishers",
        "Publishers of other nodes whose numbers are followed.",
        stats.publishers,
    );
    text.family(
        "cluster_messages_total",
        super::prometheus::COUNTER,
        "Publications to other nodes (out) and of other nodes (in) by their result. Lost ones of \
         this side are missed too.",
    );
    for (direction, result, count) in [
        ("out", "sent", stats.sent),
        ("out", "full", stats.send_full),
        ("out", "too_large", stats.send_too_large),
        ("out", "lost", stats.send_lost),
        ("in", "received", stats.received),
        ("in", "full", stats.receive_full),
        ("in", "lost", stats.receive_lost),
        ("in", "missed", stats.missed),
        ("in", "stale", stats.stale),
        ("in", "own", stats.own),
        ("in", "unwanted", stats.unwanted),
        ("in", "malformed", stats.malformed),
    ] {
        let labels = format!("direction=\"{direction}\",result=\"{result}\"");
        text.sample("cluster_messages_total", &labels, count);
    }
}
