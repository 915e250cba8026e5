//! `/status` and `/readyz`.

use std::{io::Write as _, time::Duration};

use super::{labels::WorkerSnapshot, prometheus::sum_of};

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

/// Appends the main counts as a JSON object. All its texts are constants without special
/// characters.
pub(crate) fn write_status(workers: &[WorkerSnapshot], uptime: Duration, out: &mut Vec<u8>) {
    let total = sum_of(workers);
    let stats = &total.stats;
    let state = match not_ready(workers) {
        None => "ready",
        Some(_) if total.is_draining => "draining",
        Some(_) => "over_budget",
    };
    let by_state = total.connections.map(|transports| transports.iter().sum::<u64>());
    let rows = workers.iter().enumerate().map(|(index, worker)| {
        let stats = &worker.stats;
        format!(
            "{{\"worker\":{index},\"connections\":{},\"messages_in\":{},\"messages_out\":{},\
             \"lag_count\":{},\"lag_sum_us\":{},\"buffered_bytes\":{}}}",
            stats.connections,
            stats.messages_received,
            stats.messages_sent,
            worker.lag.counts.iter().sum::<u64>() + worker.lag.longer,
            worker.lag.sum_ns / 1000,
            worker.buffered,
        )
    });
    let rows = rows.collect::<Vec<_>>().join(",");
    // Writing to a vector does not fail.
    let _ = writeln!(
        out,
        "{{\"version\":\"{}\",\"backend\":\"{}\",\"state\":\"{state}\",\"uptime_seconds\":{},\
         \"connections\":{{\"handshake\":{},\"open\":{},\"closing\":{}}},\
         \"opened\":{},\"closed\":{},\
         \"messages\":{{\"in\":{},\"out\":{},\"dropped\":{}}},\
         \"message_bytes\":{{\"in\":{},\"out\":{}}},\
         \"wire_bytes\":{{\"in\":{},\"out\":{}}},\
         \"evicted\":{},\"topics\":{},\"subscriptions\":{},\
         \"memory\":{{\"limit\":{},\"borrowed\":{},\"held\":{},\"output_buffered\":{}}},\
         \"workers\":[{rows}]}}",
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
        stats.topics,
        stats.subscriptions,
        total.pool.limit,
        total.pool.borrowed,
        stats.memory,
        total.buffered,
    );
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
}
