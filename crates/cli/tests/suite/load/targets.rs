//! Several targets: how the connections are spread, and the results of each and of all.

use serde_json::Value;

use super::runs::{Load, Loaded, load};
use crate::harness::{Server, number_before, windlass};

/// A number of the results of a target.
fn of_target(loaded: &Loaded, target: usize, pointer: &str) -> f64 {
    loaded.number(&format!("/targets/{target}{pointer}"))
}

#[test]
fn connections_are_spread_evenly_over_the_targets() {
    let plain = Server::start(&["--mode", "echo"]);
    let listen = ["serve", "--listen", "127.0.0.1:0", "--tls-self-signed", "--drain-timeout", "0"];
    let (tls, _) = Server::with_lines(windlass(&listen), 2);
    let urls = [format!("ws://{}/", plain.address), format!("wss://{}/echo", tls.address)];
    let counts = ["--connections", "5", "--messages", "50", "--workers", "2", "--insecure"];
    let loaded = load(&[&[&*urls[0], &*urls[1]], &counts[..]].concat());
    assert_eq!(loaded.expect_clean().verified(), 50);
    assert_eq!(loaded.json()["url"], urls.join(" "));
    for (target, connections) in [(0, 3.0), (1, 2.0)] {
        assert_eq!(loaded.json()["targets"][target]["url"], urls[target]);
        assert_eq!(of_target(&loaded, target, "/connections/opened"), connections);
        assert_eq!(of_target(&loaded, target, "/messages/verified"), 10.0 * connections);
        let buckets = loaded.json()["targets"][target]["latency"]["histogram"].clone();
        let of_bucket = |bucket: &Value| bucket["count"].as_f64().expect("a number");
        let latencies: f64 = buckets.as_array().expect("a list").iter().map(of_bucket).sum();
        assert_eq!(latencies, 10.0 * connections);
    }
    assert_eq!(loaded.json()["targets"][0]["tls"], Value::Null);
    assert_eq!(of_target(&loaded, 1, "/tls/handshakes"), 2.0);
    assert_eq!(loaded.number("/tls/handshakes"), 2.0);
    for (server, connections) in [(plain, 3), (tls, 2)] {
        assert_eq!(number_before("connections", &server.stop_cleanly()), connections);
    }
}

#[test]
fn a_target_that_fails_leaves_the_others_alone() {
    let server = Server::start(&["--mode", "echo"]);
    let gone = Server::start(&["--mode", "echo"]);
    let urls = [format!("ws://{}/", server.address), format!("ws://{}/", gone.address)];
    gone.stop_cleanly();
    let counts = ["--connections", "4", "--messages", "40"];
    let loaded = load(&[&[&*urls[0], &*urls[1]], &counts[..]].concat());
    loaded.expect_fault("connect", &format!("{}: connection 2: not connected", urls[1]));
    assert!(!loaded.errors.contains(&urls[0]), "{}", loaded.errors);
    assert_eq!(of_target(&loaded, 0, "/messages/verified"), 20.0);
    assert_eq!(of_target(&loaded, 0, "/connections/failed"), 0.0);
    assert_eq!(of_target(&loaded, 1, "/connections/failed"), 2.0);
    assert_eq!(loaded.json()["targets"][1]["errors"]["connect"], 2);
    // The text for people has the same.
    let text = Load::start(&[&[&*urls[0], &*urls[1]], &counts[..]].concat()).wait().output;
    let part = |url: &str| text.rsplit_once(url).expect("it is named").1.to_owned();
    assert!(part(&urls[0]).contains("2 opened, 20 messages"), "{text}");
    assert!(part(&urls[1]).contains("0 opened, 0 messages"), "{text}");
    assert!(part(&urls[1]).contains("errors in 2 connections: 2 connect"), "{text}");
    server.stop_cleanly();
}

#[test]
fn streams_of_http2_and_requests_are_spread_too() {
    let servers = [Server::start(&[]), Server::start(&[])];
    let urls = servers.each_ref().map(|server| format!("http://{}/", server.address));
    let counts = ["--connections", "4", "--messages", "40"];
    let loaded = load(&[&[&*urls[0], &*urls[1]], &counts[..]].concat());
    assert_eq!(loaded.expect_clean().verified(), 40);
    for (target, server) in servers.into_iter().enumerate() {
        assert_eq!(of_target(&loaded, target, "/messages/verified"), 20.0);
        assert_eq!(number_before("pages", &server.stop_cleanly()), 20);
    }
    // Nothing listens there, and each target has its share of the failures.
    let options = ["--http2", "--streams", "2"];
    let loaded = load(&[&["ws://[::1]:1/", "ws://[::1]:1/b"], &options[..], &counts[..]].concat());
    assert_eq!(loaded.status, Some(1), "{loaded:?}");
    for target in 0..2 {
        assert_eq!(of_target(&loaded, target, "/connections/failed"), 2.0);
    }
}

#[test]
fn targets_that_do_not_go_together_are_rejected_with_the_reason() {
    for (arguments, words) in [
        (&["ws://[::1]:1/", "http://[::1]:1/"][..], "http://[::1]:1/ are not of one kind"),
        (&["ws://[::1]:1/", "nonsense"], "the URL must begin with ws://"),
        (&["tcp://[::1]:1", "tcp://[::1]:2", "--connections", "1"], "more targets than"),
        (&[], "<URL>..."),
    ] {
        let loaded = Load::start(arguments).wait();
        assert_eq!(loaded.status, Some(2), "{loaded:?}");
        assert!(loaded.errors.contains(words), "{arguments:?}: {}", loaded.errors);
    }
}
