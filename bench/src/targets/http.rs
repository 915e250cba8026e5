//! The targets in the suite `http`.

use super::Bound::{AtLeast, AtMost};
use super::Target;

const fn rate(params: &'static [&'static str], backend: &'static str, least: f64) -> Target {
    Target::new("requests", "rate_over_tokio_ratio", AtLeast(least)).with(params).on(backend)
}

const fn cpu(params: &'static [&'static str], backend: &'static str, most: f64) -> Target {
    Target::new("requests", "server_cpu_us_per_request_over_tokio_ratio", AtMost(most))
        .with(params)
        .on(backend)
}

/// The targets of the suite. Those of a ring are for client and server on one thread.
pub(super) const TARGETS: &[Target] = &[
    rate(&[], "epoll", 1.0),
    // 0.92 of the rate of the hand-written loop.
    Target::new("requests", "ns_over_raw_ratio", AtMost(1.0 / 0.92))
        .with(&["server=mock"])
        .on("epoll"),
    rate(&["client=same_thread", "connections=1"], "uring", 0.97),
    rate(&["client=same_thread", "connections=4"], "uring", 1.15),
    rate(&["client=same_thread", "connections=16"], "uring", 1.25),
    rate(&["client=same_thread", "connections=32"], "uring", 1.25),
    Target::new("requests", "syscalls_per_request", AtMost(0.2))
        .with(&["connections=16"])
        .on("uring"),
    cpu(&[], "epoll", 1.0),
    cpu(&["connections=4"], "uring", 0.85),
    cpu(&["connections=16"], "uring", 0.85),
    cpu(&["connections=32"], "uring", 0.85),
    Target::new("requests", "user_instructions_over_raw_share_of_tokio", AtMost(0.5))
        .with(&["server=mock"])
        .on("epoll"),
    Target::new("paced_requests", "p99_over_tokio_ratio", AtMost(1.0)).with(&["rate=common"]),
    Target::new("idle_keep_alive", "heap_bytes_per_idle_connection_over_tokio_ratio", AtMost(0.5)),
];
