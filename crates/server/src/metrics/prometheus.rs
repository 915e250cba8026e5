//! `/metrics`: the counts in Prometheus' text format 0.0.4.
//!
//! Counters are sums over the workers. Two families have a label `worker`, whose values are fixed
//! at the start. The other labels are those of `labels.rs`: no text comes from a peer, so
//! nothing needs to be escaped.

use core::fmt::Display;
use std::{
    io::Write as _,
    time::{Duration, SystemTime},
};

use super::labels::{
    CLOSE_CODES, ClosedLabel, ExceededLimit, HANDSHAKE_BOUNDS, HandshakeResult, Histogram,
    LAG_BOUNDS, StateLabel, Transport, WorkerSnapshot,
};
use crate::api::Limit;

use super::tls::{TlsFailureLabel, TlsFigures, TlsVersion};

/// The media type of the format.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the sum of the workers' counts. What all workers share is that of the first one.
pub(crate) fn sum_of(workers: &[WorkerSnapshot]) -> WorkerSnapshot {
    let mut workers = workers.iter();
    let mut sum = workers.next().copied().unwrap_or_default();
    for worker in workers {
        sum.add(worker);
    }
    sum
}

/// Appends all metrics.
pub(crate) fn write_metrics(
    workers: &[WorkerSnapshot],
    turn_ages: &[Duration],
    tls: &TlsFigures,
    out: &mut Vec<u8>,
) {
    let total = sum_of(workers);
    let mut text = MetricsText { out };
    write_connections(&mut text, &total);
    write_tls(&mut text, &total, tls);
    write_messages(&mut text, &total);
    write_limits(&mut text, &total);
    write_workers(&mut text, workers, turn_ages);
}

/// Appends what an admin listener has rejected, the connections that it has disconnected, and the
/// reloads of the configuration that it was told of.
pub(crate) fn write_admin_counts(
    rejections: impl Iterator<Item = (&'static str, u64)>,
    disconnected: u64,
    reloads: [u64; 2],
    out: &mut Vec<u8>,
) {
    let mut text = MetricsText { out };
    text.counters(
        "admin_refusals_total",
        "Requests that this admin listener refused by reason, and connections that it closed \
         because there were too many (connections_max).",
        "reason",
        rejections,
    );
    text.counter(
        "admin_disconnections_total",
        "Connections that this admin listener closed because it was asked to.",
        disconnected,
    );
    text.counters(
        "configuration_reloads_total",
        "Attempts to read the configuration again, as the program counts them.",
        "result",
        ["success", "failure"].into_iter().zip(reloads),
    );
}

fn write_connections(text: &mut MetricsText<'_>, total: &WorkerSnapshot) {
    let labels =
        format!("version=\"{}\",backend=\"{}\"", env!("CARGO_PKG_VERSION"), total.backend.name());
    text.family("build_info", GAUGE, "The version and the backend, as labels of the value 1.");
    text.sample("build_info", &labels, 1);

    text.family(
        "connections",
        GAUGE,
        "Connections that exist now. The state handshake includes connections that get pages.",
    );
    for (state, transports) in StateLabel::TEXTS.iter().zip(total.connections) {
        for (transport, count) in Transport::TEXTS.iter().zip(transports) {
            let labels = format!("state=\"{state}\",transport=\"{transport}\"");
            text.sample("connections", &labels, count);
        }
    }
    text.counter("connections_opened_total", "Completed handshakes.", total.stats.opened);
    text.counters(
        "connections_closed_total",
        "Connections that were open and are closed, by the first reason.",
        "reason",
        ClosedLabel::TEXTS.iter().zip(total.closed),
    );
    text.counters(
        "close_codes_total",
        "Closed connections by code: that of the first Close frame, 1005 if it had no code, 1006 \
         without one.",
        "code",
        CLOSE_CODES.iter().zip(total.close_codes),
    );
    text.counters(
        "handshakes_total",
        "Requests to open a WebSocket by result. Refused requests for pages are included \
         (not_found, bad_request), and connections that ended without a whole request are lost.",
        "result",
        HandshakeResult::TEXTS.iter().zip(total.handshakes),
    );
    text.family(
        "handshake_seconds",
        HISTOGRAM,
        "Time from the acceptance of a connection, or from the end of its TLS handshake, to the \
         response that opens the WebSocket.",
    );
    text.histogram("handshake_seconds", "", &HANDSHAKE_BOUNDS, &total.handshake_seconds);
}

fn write_tls(text: &mut MetricsText<'_>, total: &WorkerSnapshot, tls: &TlsFigures) {
    text.family("tls_handshakes_total", COUNTER, "Completed TLS handshakes.");
    for (version, counts) in TlsVersion::TEXTS.iter().zip(total.tls_handshakes) {
        for (resumed, count) in ["false", "true"].into_iter().zip(counts) {
            let labels = format!("version=\"{version}\",resumed=\"{resumed}\"");
            text.sample("tls_handshakes_total", &labels, count);
        }
    }
    text.counters(
        "tls_handshake_failures_total",
        "Connections that ended before their TLS handshake did.",
        "reason",
        TlsFailureLabel::TEXTS.iter().zip(total.tls_failures),
    );
    let expiry = tls.earliest_expiry.map(|expiry| expiry.duration_since(SystemTime::UNIX_EPOCH));
    if let Some(Ok(expiry)) = expiry {
        text.gauge(
            "tls_certificate_expiry_timestamp_seconds",
            "When the first of the certificates expires, in seconds since 1970.",
            expiry.as_secs(),
        );
    }
    text.counters(
        "reloads_total",
        "Reloads of certificates. After a failed one nothing has changed.",
        "result",
        [("success", tls.reloads), ("failure", tls.failed_reloads)].into_iter(),
    );
}

fn write_messages(text: &mut MetricsText<'_>, total: &WorkerSnapshot) {
    let stats = &total.stats;
    text.family(
        "messages_total",
        COUNTER,
        "Messages, pings and pongs received and sent. Each delivery of a publication counts as \
         sent.",
    );
    for (direction, all, of_text, pings, pongs) in [
        (
            "in",
            stats.messages_received,
            stats.text_received,
            stats.pings_received,
            stats.pongs_received,
        ),
        ("out", stats.messages_sent, stats.text_sent, stats.pings_sent, stats.pongs_sent),
    ] {
        for (kind, count) in
            [("text", of_text), ("binary", all - of_text), ("ping", pings), ("pong", pongs)]
        {
            let labels = format!("direction=\"{direction}\",kind=\"{kind}\"");
            text.sample("messages_total", &labels, count);
        }
    }
    let directions = |received: u64, sent: u64| [("in", received), ("out", sent)].into_iter();
    text.counters(
        "message_bytes_total",
        "Payload bytes of text and binary messages, without compression.",
        "direction",
        directions(stats.bytes_received, stats.bytes_sent),
    );
    text.counters(
        "wire_bytes_total",
        "Bytes received from sockets, and bytes of output, which may still wait for its socket.",
        "direction",
        directions(stats.wire_received, stats.wire_sent),
    );
    let policy = total.drop_policy;
    text.counters(
        "messages_dropped_total",
        "Messages dropped because a receiver did not read (its policy), or because the queue of \
         another worker was full (worker_queue).",
        "policy",
        ["drop_newest", "drop_oldest", "evict", "worker_queue"].into_iter().map(|label| {
            let count = match label {
                "worker_queue" => stats.lost_between_workers,
                _ if label == policy => stats.dropped,
                _ => 0,
            };
            (label, count)
        }),
    );
    text.counters(
        "evictions_total",
        "Connections closed because their peer did not read, or because memory was needed.",
        "reason",
        [
            ("slow", stats.evicted.saturating_sub(stats.evicted_for_memory)),
            ("memory", stats.evicted_for_memory),
        ]
        .into_iter(),
    );
    text.counters(
        "codec_bytes_total",
        "Bytes produced by decompression, and bytes given to compressors.",
        "op",
        [("inflate", stats.bytes_inflated), ("deflate", stats.bytes_deflated)].into_iter(),
    );
    text.gauge(
        "topics",
        "Topics that have subscribers now, summed over the workers.",
        stats.topics,
    );
    text.gauge("subscriptions", "Subscriptions that exist now.", stats.subscriptions);
}

fn write_limits(text: &mut MetricsText<'_>, total: &WorkerSnapshot) {
    let stats = &total.stats;
    text.gauge(
        "output_buffered_bytes",
        "Bytes of memory in which output waits for its receivers.",
        total.buffered,
    );
    text.family(
        "memory_budget_bytes",
        GAUGE,
        "The memory budget over all connections: its limit, the part that workers have borrowed, \
         and the part that waiting data uses.",
    );
    for (label, bytes) in
        [("limit", total.pool.limit), ("borrowed", total.pool.borrowed), ("held", stats.memory)]
    {
        text.sample("memory_budget_bytes", &format!("use=\"{label}\""), bytes);
    }
    let closed = |label: ClosedLabel| total.closed[label as usize];
    let handshakes = |result: HandshakeResult| total.handshakes[result as usize];
    let others = [
        ("connections_max", stats.connection_limits_reached + handshakes(HandshakeResult::Full)),
        ("connections_per_address_max", handshakes(HandshakeResult::AddressLimit)),
        ("head", handshakes(HandshakeResult::HeadLimit)),
        (
            "handshake_timeout",
            handshakes(HandshakeResult::Timeout)
                + handshakes(HandshakeResult::LateProxyHeader)
                + total.tls_failures[TlsFailureLabel::Timeout as usize],
        ),
        ("idle_timeout", closed(ClosedLabel::Idle)),
        ("lifetime_max", closed(ClosedLabel::Lifetime)),
        ("write_stall_timeout", closed(ClosedLabel::WriteStall)),
        ("receiver_buffer_max", stats.dropped),
        ("memory_max", stats.evicted_for_memory + handshakes(HandshakeResult::Memory)),
        ("sender_bounds", stats.lost_between_workers),
        ("codec_bytes_per_turn", stats.codec_waits),
    ];
    let exceeded = ExceededLimit::TEXTS.iter().copied().zip(total.exceeded);
    let limits = Limit::NAMES.iter().copied().zip(total.limits);
    let rates = limits.filter(|(name, _)| name.starts_with("rates."));
    text.counters(
        "limit_hits_total",
        "How often a limit was reached, by the name of the option.",
        "limit",
        others.into_iter().chain(exceeded).chain(rates),
    );
    text.counters(
        "accept_pauses_total",
        "How often a listener stopped accepting for a while.",
        "cause",
        [
            ("connections_max", stats.connection_limits_reached),
            ("rates", stats.connection_rates_reached),
            ("out_of_resources", stats.accepting_paused),
        ]
        .into_iter(),
    );
}

fn write_workers(text: &mut MetricsText<'_>, workers: &[WorkerSnapshot], turn_ages: &[Duration]) {
    text.family(
        "worker_turn_age_seconds",
        GAUGE,
        "Time since the worker has finished a turn, of which there is one a second; 0 after its \
         end.",
    );
    for (index, age) in turn_ages.iter().enumerate() {
        let label = format!("worker=\"{index}\"");
        text.sample("worker_turn_age_seconds", &label, Seconds(*age));
    }
    text.family(
        "loop_lag_seconds",
        HISTOGRAM,
        "How late a periodic timer of the worker was handled, at least once a second.",
    );
    for (index, worker) in workers.iter().enumerate() {
        let label = format!("worker=\"{index}\"");
        text.histogram("loop_lag_seconds", &label, &LAG_BOUNDS, &worker.lag);
    }
    if workers.iter().all(|worker| worker.handler_longest.is_none()) {
        return;
    }
    text.family(
        "handler_longest_seconds",
        GAUGE,
        "The longest time that a handler of the worker's reactor has taken, if this is measured.",
    );
    for (index, worker) in workers.iter().enumerate() {
        let longest = worker.handler_longest.unwrap_or_default();
        let label = format!("worker=\"{index}\"");
        text.sample("handler_longest_seconds", &label, Seconds(longest));
    }
}

pub(super) const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";
const HISTOGRAM: &str = "histogram";

/// A duration in seconds, with nine digits after the point.
struct Seconds(Duration);

impl Display for Seconds {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{:09}", self.0.as_secs(), self.0.subsec_nanos())
    }
}

/// The text of the metrics. Writing to a vector does not fail.
pub(super) struct MetricsText<'o> {
    pub(super) out: &'o mut Vec<u8>,
}

impl MetricsText<'_> {
    /// Begins the family of a metric. All its samples follow.
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.out, "# HELP windlass_{name} {help}\n# TYPE windlass_{name} {kind}\n");
    }

    pub(super) fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = match labels {
            "" => writeln!(self.out, "windlass_{name} {value}"),
            _ => writeln!(self.out, "windlass_{name}{{{labels}}} {value}"),
        };
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, COUNTER, help);
        self.sample(name, "", value);
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, GAUGE, help);
        self.sample(name, "", value);
    }

    fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (impl Display, u64)>,
    ) {
        self.family(name, COUNTER, help);
        for (text, value) in values {
            self.sample(name, &format!("{label}=\"{text}\""), value);
        }
    }

    fn histogram<const N: usize>(
        &mut self,
        name: &str,
        labels: &str,
        bounds: &[Duration; N],
        histogram: &Histogram<N>,
    ) {
        let comma = if labels.is_empty() { "" } else { "," };
        let (bucket, mut count) = (format!("{name}_bucket"), 0);
        for (bound, of_bucket) in bounds.iter().zip(histogram.counts) {
            count += of_bucket;
            let labels = format!("{labels}{comma}le=\"{}\"", bound.as_secs_f64());
            self.sample(&bucket, &labels, count);
        }
        count += histogram.longer;
        self.sample(&bucket, &format!("{labels}{comma}le=\"+Inf\""), count);
        let sum = Duration::from_nanos(histogram.sum_ns);
        self.sample(&format!("{name}_sum"), labels, Seconds(sum));
        self.sample(&format!("{name}_count"), labels, count);
    }
}
