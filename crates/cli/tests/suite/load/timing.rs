//! Durations, rates, warm-up and signals.

use std::{io::Read as _, process::Stdio, sync::mpsc, thread, time::Duration};

use rustix::process::{Signal, kill_process};

use super::{
    bad_server::BadServer,
    runs::{Load, Loaded, load},
};
use crate::harness::{Running, Server, WAIT_MAX, lines_of, windlass};

/// Length of the stall of the server.
const STALL: Duration = Duration::from_millis(400);

/// Number of messages of a run, at one per millisecond. The stall is two fifths of the run.
const MESSAGES: u64 = 1000;

fn stalling() -> BadServer {
    BadServer::websocket(|number, message, responder| {
        if number == MESSAGES / 5 {
            // sleep: the stall is what is measured, nothing waits for it.
            thread::sleep(STALL);
        }
        responder.send(message);
    })
}

/// The server stalls for 400 ms. At full speed one message measures the stall. At a fixed rate all
/// 400 messages that were due meanwhile do.
#[test]
fn a_stall_counts_for_every_message_that_was_due_in_it() {
    let run = |rate: &[&str]| -> Loaded {
        let server = stalling();
        let counts = ["--connections", "1", "--messages", "1000"];
        let loaded = load(&[&[&*server.ws()], &counts[..], rate].concat());
        assert_eq!(loaded.expect_clean().verified(), MESSAGES);
        server.join();
        loaded
    };
    let corrected = run(&["--rate", "1000"]);
    let stall_us = STALL.as_micros() as f64;
    assert_eq!(corrected.json()["latency"]["corrected_for_coordinated_omission"], true);
    assert!(corrected.number("/latency/max_us") >= stall_us * 0.99, "{corrected:?}");
    // Of 1000 messages at least 300 are late by at least 100 ms, and 100 by at least 300 ms. A slow
    // machine only increases these numbers.
    assert!(corrected.number("/latency/p90_us") >= stall_us * 0.74, "{corrected:?}");
    let late = |loaded: &Loaded| {
        let json = loaded.json();
        let buckets = json["latency"]["histogram"].as_array().expect("a list").clone();
        let is_late =
            |bucket: &&serde_json::Value| bucket["to_us"].as_f64().is_some_and(|to| to > 100_000.0);
        buckets.iter().filter(is_late).filter_map(|bucket| bucket["count"].as_u64()).sum::<u64>()
    };
    assert!(late(&corrected) >= 290, "{corrected:?}");

    let blind = run(&[]);
    assert_eq!(blind.json()["latency"]["corrected_for_coordinated_omission"], false);
    assert!(blind.number("/latency/max_us") >= stall_us * 0.99, "{blind:?}");
    assert!(late(&blind) < 100, "only the one that was under way has seen it: {blind:?}");
}

/// A server that never answers. Messages that were due but not sent count with the time that they
/// have waited. None of these numbers depends on the speed of the machine.
#[test]
fn what_could_not_be_sent_counts() {
    let server = BadServer::websocket(|_, _, _| {});
    let loaded = load(&[
        &server.ws(),
        "--connections",
        "1",
        "--rate",
        "100",
        "--duration",
        "1",
        "--timeout",
        "4",
    ]);
    loaded.expect_fault("lost", "no answer to message 1 ");
    let [verified, unanswered, unsent] = ["verified", "unanswered", "unsent"]
        .map(|name| loaded.number(&format!("/messages/{name}")));
    assert_eq!(
        (verified, unanswered, unsent),
        (0.0, 1.0, 99.0),
        "one found room, of the hundred of this second"
    );
    // The others have waited for 990, 980, .. and 10 ms.
    assert!((990_000.0..992_000.0).contains(&loaded.number("/latency/max_us")), "{loaded:?}");
    assert!((500_000.0..502_000.0).contains(&loaded.number("/latency/p50_us")), "{loaded:?}");
    assert!((9_990.0..10_010.0).contains(&loaded.number("/latency/min_us")), "{loaded:?}");
    server.join();
}

/// The server answers again after the end. Messages that were not sent by the end are not sent
/// later, and count once.
#[test]
fn every_message_that_was_due_counts_once() {
    let server = BadServer::websocket(|number, message, responder| {
        if number == 1 {
            // sleep: the stall is what is measured, nothing waits for it.
            thread::sleep(Duration::from_millis(800));
        }
        responder.send(message);
    });
    let loaded = load(&[&server.ws(), "--connections", "1", "--rate", "100", "--duration", "0.5"]);
    loaded.expect_clean();
    let (verified, unsent) = (loaded.verified(), loaded.number("/messages/unsent") as u64);
    assert_eq!(verified + unsent, 50, "{loaded:?}");
    assert!(unsent > 40, "{loaded:?}");
    let buckets = loaded.json()["latency"]["histogram"].as_array().expect("a list").clone();
    assert_eq!(buckets.iter().filter_map(|bucket| bucket["count"].as_u64()).sum::<u64>(), 50);
    server.join();
}

#[test]
fn a_rate_is_kept_by_all_connections_together() {
    let server = Server::start(&["--mode", "echo"]);
    let url = format!("ws://{}/", server.address);
    let loaded = load(&[
        &url,
        "--connections",
        "10",
        "--rate",
        "2000",
        "--duration",
        "0.5",
        "--depth",
        "100",
    ]);
    // At a low rate the number of messages does not depend on the speed of the machine.
    assert_eq!(loaded.expect_clean().verified(), 1000);
    assert!(
        loaded.number("/elapsed_s") >= 0.5 && loaded.number("/messages_per_s") <= 2000.0,
        "{loaded:?}"
    );
    server.stop_cleanly();
}

#[test]
fn a_duration_ends_and_warming_up_is_not_counted() {
    let (seen, numbers) = mpsc::channel();
    let server = BadServer::websocket(move |number, message, responder| {
        responder.send(message);
        seen.send(number).expect("the test listens");
    });
    let loaded =
        load(&[&server.ws(), "--connections", "1", "--warm-up", "0.1", "--duration", "0.2"]);
    loaded.expect_clean();
    server.join();
    let sent = numbers.try_iter().last().expect("some came");
    let warm_up = loaded.number("/messages/warm_up") as u64;
    assert!(warm_up > 0);
    assert_eq!(loaded.verified() + warm_up, sent, "every message is one or the other");
    assert!(loaded.number("/elapsed_s") >= 0.15, "{loaded:?}");
}

/// A run of an hour against a server that answers some messages. The signals are sent after it has
/// seen another message.
fn interrupted(signals: &[Signal], answers: u64) -> Loaded {
    let (seen, numbers) = mpsc::channel();
    let server = BadServer::websocket(move |number, message, responder| {
        if number <= answers {
            responder.send(message);
        }
        // The receiver is gone after the first messages.
        let _ = seen.send(number);
    });
    let hour = ["--duration", "3600", "--timeout", "3600"];
    let load = Load::start(
        &[&[&*server.ws(), "--connections", "1", "--json", "-", "--quiet"], &hour[..]].concat(),
    );
    let wanted = if answers == u64::MAX { 10 } else { answers + 1 };
    while numbers.recv_timeout(WAIT_MAX).expect("messages come") < wanted {}
    for signal in signals {
        kill_process(load.running().pid(), *signal).expect("it runs");
    }
    let loaded = load.wait();
    server.join();
    loaded
}

#[test]
fn a_signal_ends_it_in_order_and_the_status_says_so() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let loaded = interrupted(&[signal], u64::MAX);
        assert_eq!((loaded.status, &*loaded.errors), (Some(status), ""), "{loaded:?}");
        assert_eq!(loaded.json()["signal"], signal.as_raw());
        assert_eq!(
            loaded.number("/messages/unanswered"),
            0.0,
            "what was outstanding was waited for"
        );
        assert!(loaded.verified() >= 9);
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let loaded = interrupted(&[Signal::INT, Signal::TERM], 5);
    assert_eq!(loaded.status, Some(143), "{loaded:?}");
    assert_eq!((loaded.verified(), loaded.number("/messages/unanswered")), (5, 1.0));
}

#[test]
fn a_signal_ends_it_while_it_connects() {
    let (seen, connected) = mpsc::channel();
    let server = BadServer::start(move |mut socket| {
        seen.send(()).expect("the test listens");
        // The upgrade is not answered until the client disconnects.
        while let Ok(1..) = socket.read(&mut [0; 4096]) {}
    });
    let load = Load::start(&[
        &server.ws(),
        "--connections",
        "1",
        "--json",
        "-",
        "--quiet",
        "--timeout",
        "3600",
    ]);
    connected.recv_timeout(WAIT_MAX).expect("it connects");
    kill_process(load.running().pid(), Signal::INT).expect("it runs");
    let loaded = load.wait();
    assert_eq!((loaded.status, loaded.verified()), (Some(130), 0), "{loaded:?}");
    server.join();
}

/// Without progress lines a long run would look like a hang in a log file.
#[test]
fn without_a_terminal_lines_say_how_far_it_is() {
    let server = Server::start(&["--mode", "echo"]);
    let url = format!("ws://{}/", server.address);
    let mut command = windlass(&["load", &url, "--duration", "3600", "--rate", "100"]);
    let mut running =
        Running(command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts"));
    let line = lines_of(running.0.stderr.take().expect("piped"))
        .recv_timeout(WAIT_MAX)
        .expect("a line comes");
    assert!(
        line.starts_with("windlass: ") && line.contains(" s: ") && line.ends_with(" per second"),
        "{line}"
    );
    kill_process(running.pid(), Signal::INT).expect("it runs");
    assert_eq!(running.wait().code(), Some(130));
    server.stop_cleanly();
}
