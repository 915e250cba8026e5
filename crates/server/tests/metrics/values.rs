//! Each value is what the clients did.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use windlass_server::SlowConsumerPolicy;

use crate::{
    clients::{Client, Site},
    exposition::Exposition,
};

const WORKERS: [usize; 2] = [1, 3];

/// Text and bytes in both directions, publications, and the bytes on the wire.
pub(crate) fn messages_and_bytes_are_those_of_the_clients() {
    for workers in WORKERS {
        let site = Site::new(workers, |_| {});
        let mut echo = Client::open(site.address, "/echo");
        for len in [0, 5, 200] {
            echo.send(1, &vec![b'a'; len]);
            echo.send(2, &vec![7; 10 * len]);
            assert_eq!(echo.next().1.len(), len);
            assert_eq!(echo.next().1.len(), 10 * len);
        }
        let mut room: Vec<_> = (0..4).map(|_| Client::open(site.address, "/room")).collect();
        room[0].send(1, b"hello");
        room[0].send(2, &[1; 3000]);
        assert_eq!([room[0].next().1.len(), room[0].next().1.len()], [0, 0]);
        for client in &mut room[1..] {
            assert_eq!([client.next().1.len(), client.next().1.len()], [5, 3000]);
        }
        let metrics = site.metrics();
        for (series, expected) in [
            ("messages_total{direction=\"in\",kind=\"text\"}", 3 + 1),
            ("messages_total{direction=\"in\",kind=\"binary\"}", 3 + 1),
            ("messages_total{direction=\"out\",kind=\"text\"}", 3 + 2 + 3),
            ("messages_total{direction=\"out\",kind=\"binary\"}", 3 + 3),
            ("message_bytes_total{direction=\"in\"}", 205 + 2050 + 3005),
            ("message_bytes_total{direction=\"out\"}", 205 + 2050 + 3 * 3005),
            ("connections{state=\"open\",transport=\"tcp\"}", 5),
            ("subscriptions", 4),
            ("handshake_seconds_count", 5),
        ] {
            assert_eq!(metrics.get(series), expected, "{series}, {workers} workers");
        }
        let clients = || room.iter().chain([&echo]);
        let (written, read) =
            (clients().map(|c| c.written).sum::<u64>(), clients().map(|c| c.read).sum::<u64>());
        assert_eq!(metrics.get("wire_bytes_total{direction=\"in\"}"), written);
        assert_eq!(metrics.get("wire_bytes_total{direction=\"out\"}"), read);
        assert_eq!(metrics.sum("connections"), 5);
        assert!((1..=workers as u64).contains(&metrics.get("topics")));
        site.end();
    }
}

/// Pings and pongs in both directions. A ping after the server's Close frame has no answer.
pub(crate) fn pings_and_pongs_are_those_of_the_clients() {
    for workers in WORKERS {
        let site = Site::new(workers, |_| {});
        let mut client = Client::open(site.address, "/echo");
        for _ in 0..3 {
            client.send(9, b"are you there?");
            assert_eq!(client.next(), (10, b"are you there?".to_vec()));
        }
        for _ in 0..2 {
            client.send(10, b"");
        }
        client.send(1, b"ping me");
        assert_eq!(client.next(), (9, b"from the server".to_vec()));
        client.send(1, b"close me");
        assert_eq!(client.next().0, 8);
        client.send(9, b"too late");
        client.send(8, &4000_u16.to_be_bytes());
        client.read_to_end();
        let metrics = site.metrics();
        for (direction, kind, expected) in [
            ("in", "ping", 4),
            ("in", "pong", 2),
            ("out", "ping", 1),
            ("out", "pong", 3),
            ("in", "text", 2),
            ("out", "text", 0),
        ] {
            let series = format!("messages_total{{direction=\"{direction}\",kind=\"{kind}\"}}");
            assert_eq!(metrics.get(&series), expected, "{series}, {workers} workers");
        }
        assert_eq!(metrics.get("wire_bytes_total{direction=\"in\"}"), client.written);
        assert_eq!(metrics.get("wire_bytes_total{direction=\"out\"}"), client.read);
        site.end();
    }
}

/// An idle client is pinged, and the ping is counted once.
pub(crate) fn pings_to_idle_clients_are_counted() {
    let site = Site::new(1, |options| options.ping_interval = Some(Duration::from_millis(100)));
    let mut client = Client::open(site.address, "/echo");
    let mut received = 0;
    while received < 2 {
        assert_eq!(client.next(), (9, Vec::new()));
        received += 1;
        client.send(10, b"");
    }
    client.send(8, &1000_u16.to_be_bytes());
    // On a slow machine there are further pings before the end.
    while client.next().0 == 9 {
        received += 1;
    }
    client.read_to_end();
    let metrics = site.metrics_when(|metrics| metrics.sum("connections") == 0);
    let pings = metrics.get("messages_total{direction=\"out\",kind=\"ping\"}");
    let pongs = metrics.get("messages_total{direction=\"in\",kind=\"pong\"}");
    assert_eq!((pings, pongs), (received, 2));
    site.end();
}

/// Every rejection and every end has its count, and the totals agree with each other.
pub(crate) fn rejections_and_closes_are_counted_by_cause() {
    for workers in WORKERS {
        let site = Site::new(workers, |options| {
            options.limits.message_max = 1000;
            options.limits.frame_max = 1000;
        });
        let reject = |path: &str, host: &str, lines: &str, status: &str| {
            let mut client = Client::connect(site.address);
            let head = client.request(path, host, lines);
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        };
        reject("/echo", "example.com", "", "421");
        reject("/echo", "localhost", "Origin: https://example.com\r\n", "403");
        reject("/nowhere", "localhost", "", "404");
        reject("/refused", "localhost", "", "403");
        reject("/refused", "localhost", "", "403");
        reject("/echo", "localhost", "Sec-WebSocket-Key: b\r\n", "400");
        reject("/echo", "localhost", &format!("A: {}\r\n", "a".repeat(40_000)), "431");
        drop(Client::connect(site.address));
        Client::connect(site.address).write(b"GET / HT");

        let open = || Client::open(site.address, "/echo");
        open().close(&1000_u16.to_be_bytes());
        open().close(&1000_u16.to_be_bytes());
        open().close(&[]);
        open().close(&3000_u16.to_be_bytes());
        open().close(&4999_u16.to_be_bytes());
        drop(open());
        let end_after = |bytes: &[u8], code: u16| {
            let mut client = open();
            client.write(bytes);
            let (opcode, payload) = client.next();
            assert_eq!((opcode, &payload[..2]), (8, &code.to_be_bytes()[..]));
            client.read_to_end();
        };
        end_after(&[0x81, 1, b'a'], 1002);
        end_after(&[0x81, 0xfe, 0x10, 0, 0, 0, 0, 0], 1009);
        end_after(&[0x81, 0x81, 0, 0, 0, 0, 0xff], 1007);
        let mut closed = open();
        closed.send(1, b"close me");
        assert_eq!(closed.next().1, b"\x0f\xa0as asked");
        closed.send(8, &4000_u16.to_be_bytes());
        closed.read_to_end();
        let mut panicking = open();
        panicking.send(1, b"panic");
        panicking.read_to_end();

        let metrics = site.metrics_when(|metrics| {
            metrics.sum("connections") == 0
                && metrics.get("handshakes_total{result=\"lost\"}") == 2
                && metrics.sum("connections_closed_total") == 11
        });
        for (series, expected) in [
            ("handshakes_total{result=\"accepted\"}", 11),
            ("handshakes_total{result=\"bad_host\"}", 1),
            ("handshakes_total{result=\"bad_origin\"}", 1),
            ("handshakes_total{result=\"not_found\"}", 1),
            ("handshakes_total{result=\"application\"}", 2),
            ("handshakes_total{result=\"bad_request\"}", 1),
            ("handshakes_total{result=\"head_limit\"}", 1),
            ("handshakes_total{result=\"lost\"}", 2),
            ("limit_hits_total{limit=\"head\"}", 1),
            ("limit_hits_total{limit=\"frame_max\"}", 1),
            ("connections_opened_total", 11),
            ("connections_closed_total{reason=\"peer\"}", 5),
            ("connections_closed_total{reason=\"violation\"}", 3),
            ("connections_closed_total{reason=\"local\"}", 1),
            ("connections_closed_total{reason=\"lost\"}", 1),
            ("connections_closed_total{reason=\"aborted\"}", 1),
            ("close_codes_total{code=\"1000\"}", 2),
            ("close_codes_total{code=\"1002\"}", 1),
            ("close_codes_total{code=\"1005\"}", 1),
            ("close_codes_total{code=\"1006\"}", 2),
            ("close_codes_total{code=\"1007\"}", 1),
            ("close_codes_total{code=\"1009\"}", 1),
            ("close_codes_total{code=\"3000-3999\"}", 1),
            ("close_codes_total{code=\"4000-4999\"}", 2),
        ] {
            assert_eq!(metrics.get(series), expected, "{series}, {workers} workers");
        }
        assert_eq!(metrics.sum("handshakes_total"), 20);
        assert_eq!(metrics.sum("close_codes_total"), 11);
        site.end();
    }
}

/// The maximum of connections is that of all workers together, however they are distributed.
pub(crate) fn the_most_connections_are_those_of_all_workers() {
    const CLIENTS: u64 = 10;
    for workers in WORKERS {
        let site = Site::new(workers, |_| {});
        // The kernel distributes each round in another way.
        for _ in 0..8 {
            let clients: Vec<_> =
                (0..CLIENTS).map(|_| Client::open(site.address, "/echo")).collect();
            clients.into_iter().for_each(|client| _ = client.close(&1000_u16.to_be_bytes()));
            site.metrics_when(|metrics| metrics.sum("connections") == 0);
        }
        assert_eq!(site.counts.fresh_stats().connections_most, CLIENTS);
        let counts = site.counts.clone();
        site.end();
        assert_eq!(counts.stats().connections_most, CLIENTS);
    }
}

/// Publishes to a client that does not read, until messages are dropped. Returns the number
/// published.
fn publish_until(site: &Site, publisher: &mut Client, series: &str, count: u64) -> u64 {
    for published in 1.. {
        publisher.send(2, &[1; 60_000]);
        assert_eq!(publisher.next().1.len(), 0);
        if site.metrics().get(series) >= count {
            return published;
        }
        assert!(published < 10_000, "nothing is ever dropped");
    }
    unreachable!()
}

/// What a receiver does not get is dropped under the policy, and nothing else is.
pub(crate) fn drops_are_counted_by_policy() {
    for workers in WORKERS {
        for (policy, label) in [
            (SlowConsumerPolicy::DropNewest, "drop_newest"),
            (SlowConsumerPolicy::DropOldest, "drop_oldest"),
        ] {
            let site = Site::new(workers, |options| {
                options.slow = policy;
                options.limits.message_max = 60_000;
                options.receiver_buffer_max = 200_000;
            });
            let mut slow = Client::open(site.address, "/room");
            let mut publisher = Client::open(site.address, "/room");
            let series = format!("messages_dropped_total{{policy=\"{label}\"}}");
            let published = publish_until(&site, &mut publisher, &series, 5);
            // It reads all that comes, again whenever the connection is quiet.
            slow.socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            let before = slow.read;
            site.metrics_when(|metrics| {
                slow.read_to_end();
                (slow.read - before) / (60_000 + 4) + metrics.get(&series) >= published
            });
            let received = (slow.read - before) / (60_000 + 4);
            assert_eq!((slow.read - before) % (60_000 + 4), 0, "whole messages");
            let metrics = site.metrics();
            let dropped = metrics.get(&series);
            assert_eq!(published - received, dropped, "{label}, {workers} workers");
            assert_eq!(metrics.sum("messages_dropped_total"), dropped);
            assert_eq!(metrics.get("limit_hits_total{limit=\"receiver_buffer_max\"}"), dropped);
            assert_eq!(
                metrics.get("message_bytes_total{direction=\"out\"}"),
                received * 60_000,
                "the answers to the publisher are empty"
            );
            assert_eq!(metrics.sum("evictions_total"), 0);
            site.end();
        }
    }
}

pub(crate) fn evictions_are_counted_by_reason() {
    for workers in WORKERS {
        let site = Site::new(workers, |options| {
            options.slow = SlowConsumerPolicy::Evict;
            options.limits.message_max = 60_000;
            options.receiver_buffer_max = 200_000;
        });
        let _slow = Client::open(site.address, "/room");
        let mut publisher = Client::open(site.address, "/room");
        publish_until(&site, &mut publisher, "evictions_total{reason=\"slow\"}", 1);
        let metrics = site.metrics_when(|metrics| {
            metrics.get("connections{state=\"open\",transport=\"tcp\"}") == 1
        });
        assert_eq!(metrics.get("connections_closed_total{reason=\"evicted\"}"), 1);
        assert_eq!(metrics.get("evictions_total{reason=\"memory\"}"), 0);
        assert_eq!(metrics.get("close_codes_total{code=\"1006\"}"), 1);
        site.end();

        let site = Site::new(workers, |options| {
            options.limits.message_max = 60_000;
            options.receiver_buffer_max = 4 << 20;
            options.memory_max = Some(1 << 20);
        });
        let _slow = Client::open(site.address, "/room");
        let mut publisher = Client::open(site.address, "/room");
        publish_until(&site, &mut publisher, "evictions_total{reason=\"memory\"}", 1);
        let metrics = site.metrics_when(|metrics| {
            metrics.get("connections{state=\"open\",transport=\"tcp\"}") == 1
        });
        assert_eq!(metrics.get("evictions_total{reason=\"slow\"}"), 0);
        assert_eq!(metrics.get("memory_budget_bytes{use=\"limit\"}"), 1 << 20);
        assert!(metrics.get("limit_hits_total{limit=\"memory_max\"}") >= 1);
        site.end();
    }
}

/// A worker whose handler does not return is read as of its last copy, and the others as of now.
pub(crate) fn a_busy_worker_does_not_stop_the_metrics() {
    let (open_gate, gate) = mpsc::channel();
    let site = Site::with_gate(2, Some(gate), |_| {});
    let mut busy = Client::open(site.address, "/echo");
    busy.send(1, b"wait");
    let begin = Instant::now();
    let metrics = Exposition::parse(&site.counts.prometheus());
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(metrics.get("messages_total{direction=\"out\",kind=\"text\"}"), 0);
    open_gate.send(()).unwrap();
    assert_eq!(busy.next().1, b"wait");
    let metrics = site.metrics();
    assert_eq!(metrics.get("messages_total{direction=\"out\",kind=\"text\"}"), 1);
    site.end();
}

/// A hundred scrapes a second while clients echo. Counters never go back, and the last scrape has
/// everything.
pub(crate) fn scrapes_during_full_load(duration: Duration) {
    let site = Site::new(2, |_| {});
    let address = site.address;
    let (stop_sender, stops): (Vec<_>, Vec<_>) = (0..2).map(|_| mpsc::channel::<()>()).unzip();
    let load = stops.into_iter().map(|stop| {
        std::thread::spawn(move || {
            let mut client = Client::open(address, "/echo");
            let mut count = 0_u64;
            while stop.try_recv() == Err(mpsc::TryRecvError::Empty) {
                for _ in 0..16 {
                    client.send(2, &[9; 100]);
                }
                for _ in 0..16 {
                    assert_eq!(client.next().1.len(), 100);
                    count += 1;
                }
            }
            (count, client.written, client.read)
        })
    });
    let load: Vec<_> = load.collect();
    let (begin, period) = (Instant::now(), Duration::from_millis(10));
    let mut before = site.metrics();
    let mut scrapes = 0_u32;
    while begin.elapsed() < duration {
        let metrics = site.metrics();
        metrics.assert_not_before(&before);
        before = metrics;
        scrapes += 1;
        // sleep: the rate of the scrapes is part of this test.
        std::thread::sleep((begin + period * scrapes).saturating_duration_since(Instant::now()));
    }
    drop(stop_sender);
    let results = load.into_iter().map(|thread| thread.join().unwrap());
    let (count, written, read) =
        results.fold((0, 0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2));
    let metrics = site.metrics_when(|metrics| metrics.sum("connections_closed_total") == 2);
    assert_eq!(metrics.get("messages_total{direction=\"in\",kind=\"binary\"}"), count);
    assert_eq!(metrics.get("messages_total{direction=\"out\",kind=\"binary\"}"), count);
    assert_eq!(metrics.get("message_bytes_total{direction=\"in\"}"), 100 * count);
    assert_eq!(metrics.get("wire_bytes_total{direction=\"in\"}"), written);
    assert_eq!(metrics.get("wire_bytes_total{direction=\"out\"}"), read);
    println!("{scrapes} scrapes in {:?}, {count} messages", begin.elapsed());
    site.end();
}
