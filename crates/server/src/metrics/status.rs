//! `/status` and `/readyz`.

use core::cmp::Reverse;
use std::{io::Write as _, sync::Arc, time::Duration};

use super::{
    cluster::cluster_status,
    labels::{StateLabel, WorkerSnapshot},
    prometheus::sum_of,
};
use crate::bus::{BusState, ClusterStats};

/// Returns why no further clients should be sent to this server; `None` if it is ready.
pub(crate) fn not_ready(workers: &[WorkerSnapshot]) -> Option<&'static str> {
    if workers.iter().any(|worker| worker.is_draining) {
        return Some("draining: the server shuts down");
    }
    if workers.iter().any(|worker| worker.pool.is_exhausted) {
        return Some("over budget: the memory limit is reached");
    }
    None
}

/// Figures of a topic.
#[derive(Clone, Debug)]
pub(crate) struct TopicFigures {
    pub(crate) name: Arc<str>,
    pub(crate) subscribers: u64,
    /// Copies of publications that receivers got since the topic has subscribers, and a second.
    pub(crate) delivered: u64,
    pub(crate) per_second: u64,
}

impl TopicFigures {
    /// The busiest topic has the least rank; among quiet ones, the one with the most subscribers.
    pub(crate) fn rank(&self) -> Reverse<(u64, u64)> {
        Reverse((self.per_second, self.subscribers))
    }

    /// Adds the figures of several workers. The busiest topic is the first.
    pub(crate) fn merge(workers: impl Iterator<Item = Vec<Self>>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for figures in workers.flatten() {
            match all.iter_mut().find(|topic| topic.name == figures.name) {
                Some(topic) => {
                    topic.subscribers += figures.subscribers;
                    topic.delivered += figures.delivered;
                    topic.per_second += figures.per_second;
                }
                None => all.push(figures),
            }
        }
        all.sort_by_key(Self::rank);
        all
    }
}

/// Maximum length of a topic's name in the live status, in characters. With the default of
/// [`Options::topic_len_max`](crate::Options::topic_len_max) all names are whole.
const NAME_CHARS_MAX: usize = 1024;

/// Appends the main counts as a JSON object, with those of a node of a cluster. All its texts are
/// constants without special characters.
pub(crate) fn write_status(
    workers: &[WorkerSnapshot],
    uptime: Duration,
    cluster: Option<&ClusterStats>,
    out: &mut Vec<u8>,
) {
    let rows = workers.iter().enumerate().map(|(index, worker)| worker_fields(index, worker) + "}");
    let rows = rows.collect::<Vec<_>>().join(",");
    write_fields(workers, uptime, cluster, out);
    // Writing to a vector does not fail.
    let _ = writeln!(out, "\"workers\":[{rows}]}}");
}

/// Appends the same with the time of each worker's copy since its start, and the busiest topics.
pub(crate) fn write_live_status(
    workers: &[(WorkerSnapshot, Duration)],
    uptime: Duration,
    cluster: Option<&ClusterStats>,
    topics: &[TopicFigures],
    out: &mut Vec<u8>,
) {
    let snapshots: Vec<_> = workers.iter().map(|(snapshot, _)| *snapshot).collect();
    write_fields(&snapshots, uptime, cluster, out);
    let rows = workers.iter().enumerate().map(|(index, (worker, taken_at))| {
        let fields = worker_fields(index, worker);
        format!("{fields},\"at_ms\":{}}}", taken_at.as_millis())
    });
    let rows = rows.collect::<Vec<_>>().join(",");
    let topics = topics.iter().map(|topic| {
        let TopicFigures { name, subscribers, delivered, per_second } = topic;
        format!(
            "{{\"name\":{},\"subscribers\":{subscribers},\"delivered\":{delivered},\
             \"per_second\":{per_second}}}",
            json_string(name)
        )
    });
    let topics = topics.collect::<Vec<_>>().join(",");
    let _ = write!(out, "\"workers\":[{rows}],\"busiest\":[{topics}]}}");
}

/// Returns a text as JSON, cut after [`NAME_CHARS_MAX`] characters. A name of a topic may come from
/// a peer.
pub(crate) fn json_string(text: &str) -> String {
    let mut json = String::from("\"");
    for (at, char) in text.chars().enumerate() {
        if at == NAME_CHARS_MAX {
            json.push('\u{2026}');
            break;
        }
        match char {
            '"' | '\\' => json.extend(['\\', char]),
            // Some programs read U+2028 and U+2029 as ends of lines.
            '\u{2028}' | '\u{2029}' => json.push_str(&format!("\\u{:04x}", char as u32)),
            _ if char.is_control() => json.push_str(&format!("\\u{:04x}", char as u32)),
            _ => json.push(char),
        }
    }
    json.push('"');
    json
}

/// Returns the fields of a worker, without the closing brace.
fn worker_fields(index: usize, worker: &WorkerSnapshot) -> String {
    let stats = &worker.stats;
    format!(
        "{{\"worker\":{index},\"connections\":{},\"open\":{},\
         \"messages_in\":{},\"messages_out\":{},\
         \"bytes_in\":{},\"bytes_out\":{},\
         \"lag_count\":{},\"lag_sum_us\":{},\"buffered_bytes\":{}",
        stats.connections,
        worker.connections[StateLabel::Open as usize].iter().sum::<u64>(),
        stats.messages_received,
        stats.messages_sent,
        stats.bytes_received,
        stats.bytes_sent,
        worker.lag.counts.iter().sum::<u64>() + worker.lag.longer,
        worker.lag.sum_ns / 1000,
        worker.buffered,
    )
}

/// Appends the beginning of the object: the fields of the whole server.
fn write_fields(
    workers: &[WorkerSnapshot],
    uptime: Duration,
    cluster: Option<&ClusterStats>,
    out: &mut Vec<u8>,
) {
    let total = sum_of(workers);
    let stats = &total.stats;
    let state = match not_ready(workers) {
        None if cluster.is_some_and(|stats| stats.state != BusState::Connected) => "disconnected",
        None => "ready",
        Some(_) if total.is_draining => "draining",
        Some(_) => "over_budget",
    };
    let by_state = total.connections.map(|transports| transports.iter().sum::<u64>());
    let _ = write!(
        out,
        "{{\"version\":\"{}\",\"backend\":\"{}\",\"state\":\"{state}\",\"uptime_seconds\":{},\
         \"connections\":{{\"handshake\":{},\"open\":{},\"closing\":{}}},\
         \"opened\":{},\"closed\":{},\
         \"messages\":{{\"in\":{},\"out\":{},\"dropped\":{}}},\
         \"message_bytes\":{{\"in\":{},\"out\":{}}},\
         \"wire_bytes\":{{\"in\":{},\"out\":{}}},\
         \"evicted\":{},\"slow_receivers\":{},\"topics\":{},\"subscriptions\":{},\
         \"memory\":{{\"limit\":{},\"borrowed\":{},\"held\":{},\"output_buffered\":{}}},",
        env!("CARGO_PKG_VERSION"),
        total.backend.name(),
        uptime.as_secs(),
        by_state[0],
        by_state[1],
        by_state[2],
        stats.opened,
        total.closed.iter().sum::<u64>(),
        stats.messages_received,
        stats.messages_sent,
        stats.dropped,
        stats.bytes_received,
        stats.bytes_sent,
        stats.wire_received,
        stats.wire_sent,
        stats.evicted,
        total.slow_receivers,
        stats.topics,
        stats.subscriptions,
        total.pool.limit,
        total.pool.borrowed,
        stats.memory,
        total.buffered,
    );
    if let Some(stats) = cluster {
        let _ = write!(out, "\"cluster\":{},", cluster_status(stats));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_not_ready_while_it_drains_or_is_over_budget() {
        let idle = WorkerSnapshot::default();
        assert_eq!(not_ready(&[idle, idle]), None);
        let mut draining = idle;
        draining.is_draining = true;
        assert!(not_ready(&[idle, draining]).unwrap().starts_with("draining"));
        let mut exhausted = idle;
        exhausted.pool.is_exhausted = true;
        assert!(not_ready(&[exhausted, idle]).unwrap().starts_with("over budget"));
    }

    #[test]
    fn a_name_of_a_topic_cannot_leave_its_string() {
        assert_eq!(json_string("/room/\"\\\n\u{2028}é"), r#""/room/\"\\\u000a\u2028é""#);
        let long = json_string(&"ü".repeat(NAME_CHARS_MAX + 1));
        assert_eq!(long, format!("\"{}\u{2026}\"", "ü".repeat(NAME_CHARS_MAX)));
        let whole = "ü".repeat(NAME_CHARS_MAX);
        assert_eq!(json_string(&whole), format!("\"{whole}\""));
        assert!(NAME_CHARS_MAX > crate::Options::default().topic_len_max);
    }

    #[test]
    fn figures_of_one_topic_on_several_workers_are_added() {
        let figures = |name: &str, subscribers, per_second| TopicFigures {
            name: name.into(),
            subscribers,
            delivered: 10 * per_second,
            per_second,
        };
        let workers = [
            vec![figures("a", 1, 5), figures("b", 9, 4)],
            vec![figures("b", 1, 3), figures("c", 2, 0)],
            vec![figures("d", 7, 0)],
        ];
        let merged = TopicFigures::merge(workers.into_iter());
        let rows: Vec<_> =
            merged.iter().map(|t| (&*t.name, t.subscribers, t.delivered, t.per_second)).collect();
        assert_eq!(rows, [("b", 10, 70, 7), ("a", 1, 50, 5), ("d", 7, 0, 0), ("c", 2, 0, 0)]);
    }
}
