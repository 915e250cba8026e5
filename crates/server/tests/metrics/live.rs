//! The live status: who gets it, who cannot send it, and what it says.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::clients::{Client, Site};

/// Returns the next status.
#[track_caller]
fn status(watcher: &mut Client) -> Value {
    let (opcode, payload) = watcher.next();
    assert_eq!(opcode, 1);
    let text = String::from_utf8(payload).unwrap();
    assert!(text.starts_with("{\"version\":"), "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Waits for a status that the closure accepts.
#[track_caller]
fn status_when(watcher: &mut Client, mut there: impl FnMut(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let status = status(watcher);
        if there(&status) {
            return status;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "not in time: {status}");
    }
}

/// Its figures are what the clients did.
pub(crate) fn its_figures_are_those_of_the_clients() {
    for workers in [1, 3] {
        let site = Site::new(workers, |options| options.live_status = true);
        let mut watcher = Client::open(site.address, "/live");
        let mut room: Vec<_> = (0..3).map(|_| Client::open(site.address, "/room")).collect();
        let mut echo = Client::open(site.address, "/echo");
        echo.send(2, &[7; 1000]);
        assert_eq!(echo.next().1.len(), 1000);
        for _ in 0..5 {
            room[0].send(1, b"hello");
            assert_eq!(room[0].next().1, b"");
        }
        for client in &mut room[1..] {
            for _ in 0..5 {
                assert_eq!(client.next().1, b"hello");
            }
        }
        let found = status_when(&mut watcher, |status| {
            // Each worker copies its figures at a time of its own.
            let mut rows = status["workers"].as_array().into_iter().flatten();
            rows.all(|row| row["at_ms"].as_u64() > Some(0))
                && status["connections"]["open"] == 5
                && status["messages"]["in"] == 6
                && status["message_bytes"]["in"] == 1000 + 5 * 5
                && status["busiest"][0]["delivered"] == 10
                && status["busiest"][0]["subscribers"] == 3
        });
        assert_eq!(found["state"], "ready");
        assert_eq!(found["backend"], site.running.backend().to_string());
        assert_eq!(found["slow_receivers"], 0);
        let rows = found["workers"].as_array().unwrap();
        assert_eq!(rows.len(), workers);
        let sum = |field: &str| rows.iter().map(|row| row[field].as_u64().unwrap()).sum::<u64>();
        assert_eq!((sum("open"), sum("messages_in"), sum("bytes_in")), (5, 6, 1025));
        assert_eq!(found["busiest"].as_array().unwrap().len(), 1, "{found}");
        assert_eq!(found["busiest"][0]["name"], "room");
        // What was sent between two statuses is a rate, and later it is none.
        status_when(&mut watcher, |status| status["busiest"][0]["per_second"] == 0);
        site.end();
    }
}

/// A receiver that does not read is in the status while its output waits.
pub(crate) fn a_slow_receiver_is_seen() {
    let site = Site::new(2, |options| {
        options.live_status = true;
        options.limits.message_max = 60_000;
        options.receiver_buffer_max = 200_000;
    });
    let mut watcher = Client::open(site.address, "/live");
    let mut slow = Client::open(site.address, "/room");
    let mut publisher = Client::open(site.address, "/room");
    let series = "messages_dropped_total{policy=\"drop_newest\"}";
    while site.metrics().get(series) == 0 {
        publisher.send(2, &[1; 60_000]);
        assert_eq!(publisher.next().1.len(), 0);
    }
    status_when(&mut watcher, |status| {
        status["slow_receivers"] == 1 && status["messages"]["dropped"].as_u64() >= Some(1)
    });
    // It reads all that comes, again whenever the connection is quiet.
    slow.socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    status_when(&mut watcher, |status| {
        slow.read_to_end();
        status["slow_receivers"] == 0
    });
    site.end();
}

/// No call that takes the name of a topic reaches the one of the status.
pub(crate) fn no_client_reaches_its_topic() {
    for workers in [1, 3] {
        let site = Site::new(workers, |options| options.live_status = true);
        let mut watcher = Client::open(site.address, "/live");
        let mut other = Client::open(site.address, "/live");
        status(&mut watcher);
        for topic in ["$windlass/status", "$windlass/", "$windlass/anything"] {
            other.send(1, topic.as_bytes());
            assert_eq!(site.running.sender().publish(topic, "by another thread"), Ok(()));
        }
        // Other names with the same beginning are ordinary topics.
        other.send(1, b"$windlas");
        let mut answers = Vec::new();
        let mut statuses = 0;
        while answers.len() < 6 || statuses < 3 {
            let (_, payload) = other.next();
            let text = String::from_utf8(payload).unwrap();
            match text.starts_with("{\"version\"") {
                true => statuses += 1,
                false => answers.push(text),
            }
        }
        let rejected = "[0, 0, 0, 0, 0, 0, 0]";
        assert_eq!(answers[..3], [rejected; 3]);
        answers[3..].sort();
        assert_eq!(answers[3], "[1, 0, 1, 0, 1, 1, 0]", "{answers:?}");
        assert_eq!(answers[4..], ["by a client"; 2]);
        for _ in 0..3 {
            // It checks that this is a status.
            status(&mut watcher);
        }
        site.end();
    }
}

/// Without the option nobody can watch it.
pub(crate) fn it_is_off_by_default() {
    let site = Site::new(1, |_| {});
    let mut watcher = Client::open(site.address, "/live");
    assert_eq!(watcher.next(), (1, b"off".to_vec()));
    site.end();
}

/// At most two a second go to a watcher, and none is computed when nobody watches.
pub(crate) fn it_is_bounded() {
    let site = Site::new(2, |options| {
        options.live_status = true;
        // A timer event every ten milliseconds.
        options.close_timeout = Duration::from_millis(80);
    });
    let begin = Instant::now();
    let mut watcher = Client::open(site.address, "/live");
    let first = status(&mut watcher);
    for _ in 0..3 {
        status(&mut watcher);
    }
    assert!(begin.elapsed() >= Duration::from_millis(1400), "{:?}", begin.elapsed());
    drop(watcher);
    let quiet = site.metrics_when(|metrics| metrics.sum("connections") == 0);
    let out = quiet.get("messages_total{direction=\"out\",kind=\"text\"}");
    assert!(out >= 4, "{first}");
    // sleep: longer than the time between two statuses.
    std::thread::sleep(Duration::from_millis(700));
    let later = site.metrics().get("messages_total{direction=\"out\",kind=\"text\"}");
    assert_eq!(later, out);
    site.end();
}
