//! Rejections before a WebSocket is open, by cause, and a server that is over its budget.

use std::{
    io::{Read as _, Write as _},
    time::{Duration, Instant},
};

use windlass_server::SlowConsumerPolicy;

use crate::{
    admin::{assert_status, get, start},
    clients::{Client, Site},
};

/// An address that has its connections already is closed without a response.
pub(crate) fn an_address_above_its_limit() {
    for workers in [1, 3] {
        let site = Site::new(workers, |options| options.connections_per_address_max = Some(1));
        let mut first = Client::open(site.address, "/echo");
        let mut second = Client::connect(site.address);
        second.read_to_end();
        assert_eq!(second.read, 0);
        first.send(1, b"still here");
        assert_eq!(first.next().1, b"still here");
        let metrics = site.metrics();
        assert_eq!(metrics.get("handshakes_total{result=\"address_limit\"}"), 1);
        assert_eq!(metrics.get("limit_hits_total{limit=\"connections_per_address_max\"}"), 1);
        assert_eq!(metrics.sum("handshakes_total"), 2);
        site.end();
    }
}

/// An incomplete request gets 408. A connection without a byte is closed.
pub(crate) fn late_requests() {
    for workers in [1, 3] {
        let site = Site::new(workers, |options| {
            options.handshake_timeout = Duration::from_millis(80);
        });
        let mut silent = Client::connect(site.address);
        let mut timeouts = 1;
        // On a slow machine the server may have closed it before it has written anything.
        let response = loop {
            let mut late = Client::connect(site.address);
            timeouts += 1;
            let _ = late.socket.write_all(b"GET /echo HTTP/1.1\r\n");
            let mut response = Vec::new();
            let _ = late.socket.read_to_end(&mut response);
            if !response.is_empty() {
                break String::from_utf8(response).unwrap();
            }
        };
        assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
        silent.read_to_end();
        assert_eq!(silent.read, 0);
        let metrics = site.metrics();
        assert_eq!(metrics.get("handshakes_total{result=\"timeout\"}"), timeouts);
        assert_eq!(metrics.get("limit_hits_total{limit=\"handshake_timeout\"}"), timeouts);
        assert_eq!(metrics.sum("handshakes_total"), timeouts);
        site.end();
    }
}

/// An incomplete request gets 503 when a drain begins. A connection without a byte is closed.
pub(crate) fn requests_during_a_drain() {
    for workers in [1, 3] {
        let site = Site::new(workers, |_| {});
        let mut open = Client::open(site.address, "/echo");
        let mut begun = Client::connect(site.address);
        begun.write(b"GET /echo HTTP/1.1\r\n");
        let mut silent = Client::connect(site.address);
        site.metrics_when(|metrics| {
            metrics.get("wire_bytes_total{direction=\"in\"}") == open.written + begun.written
                && metrics.sum("connections") == 3
        });
        site.running.drain(Duration::from_secs(20));
        let head = begun.head();
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        silent.read_to_end();
        assert_eq!(silent.read, 0);
        assert_eq!(open.next().0, 8);
        let metrics = site.metrics();
        assert_eq!(metrics.get("handshakes_total{result=\"draining\"}"), 1);
        assert_eq!(metrics.sum("handshakes_total"), 2);
        site.end();
    }
}

/// Over its budget a server is not ready, and it answers upgrades with 503.
pub(crate) fn a_server_over_its_budget() {
    for workers in [1, 3] {
        let site = Site::new(workers, |options| {
            options.limits.message_max = 60_000;
            options.receiver_buffer_max = 4 << 20;
            options.memory_max = Some(1 << 20);
            options.slow = SlowConsumerPolicy::DropNewest;
        });
        let admin = start(&site, |admin| admin);
        assert_status(&get(&admin, "/readyz", ""), 200);
        let mut publisher = Client::open(site.address, "/room");
        let begin = Instant::now();
        let rejected = "handshakes_total{result=\"memory\"}";
        // The server is over its budget from an eviction to its next timer event.
        let (ready, head) = 'over: loop {
            let Ok(_slow) = Client::try_open(site.address, "/room") else { continue };
            let evicted = site.metrics().get("evictions_total{reason=\"memory\"}");
            while site.metrics().get("evictions_total{reason=\"memory\"}") == evicted {
                publisher.send(2, &[1; 60_000]);
                assert_eq!(publisher.next().1.len(), 0);
                assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", site.metrics());
            }
            let ready = get(&admin, "/readyz", "");
            let opened = Client::try_open(site.address, "/echo");
            if let (Err(head), true) = (opened, ready.0.starts_with("HTTP/1.1 503 ")) {
                break 'over (ready, head);
            }
        };
        assert!(ready.1.starts_with("over budget"), "{ready:?}");
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        let metrics = site.metrics();
        assert!(metrics.get(rejected) >= 1);
        let hits = metrics.get("limit_hits_total{limit=\"memory_max\"}");
        assert_eq!(hits, metrics.get(rejected) + metrics.sum("evictions_total"));
        // The next timer event finds room.
        while !get(&admin, "/readyz", "").0.starts_with("HTTP/1.1 200 ") {
            assert!(begin.elapsed() < Duration::from_secs(40));
        }
        site.end();
    }
}
