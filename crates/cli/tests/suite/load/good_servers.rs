//! `windlass load` with `windlass serve`: every message comes back, in every mode.

use std::{fs, path::PathBuf};

use rustix::process::{Resource, getrlimit};

use super::runs::{Load, load};
use crate::harness::{Server, number_before, windlass};

fn echo() -> (Server, String) {
    let server = Server::start(&["--mode", "echo"]);
    let url = format!("ws://{}/echo", server.address);
    (server, url)
}

fn raw() -> (Server, String) {
    let server = Server::start(&["--mode", "raw"]);
    let url = format!("tcp://{}", server.address);
    (server, url)
}

#[test]
fn every_size_depth_and_content_comes_back() {
    let (server, url) = echo();
    let mut messages = 0;
    // Compression is slow in a build without optimisation, so it is tested with few sizes.
    let plain: &[&[&str]] = &[&[], &["--text", "ascii"], &["--text", "utf8"]];
    let compressed: &[&[&str]] = &[&["--deflate"], &["--deflate", "--text", "utf8"]];
    for (sizes, contents) in [
        (&["0", "2", "124", "126", "1024", "65536", "300000"][..], plain),
        (&["0", "2", "1024", "20000"], compressed),
    ] {
        for (size, content) in
            sizes.iter().flat_map(|size| contents.iter().map(move |content| (size, content)))
        {
            // Twice the maximum number of outstanding messages.
            let counts = [
                "--connections",
                "2",
                "--messages",
                "12",
                "--depth",
                "3",
                "--timeout",
                "60",
                "--size",
                size,
            ];
            let loaded = load(&[&[&*url], &counts[..], content].concat());
            assert_eq!(loaded.expect_clean().verified(), 12, "{size} {content:?}");
            messages += 12;
        }
    }
    let line = server.stop_cleanly();
    assert_eq!(number_before("messages", &line), messages);
    assert_eq!(number_before("broken off", &line), 0, "every connection was closed in order");
}

#[test]
fn a_byte_stream_comes_back() {
    let (server, url) = raw();
    for size in ["1", "64", "65536", "1000000"] {
        for depth in ["1", "16"] {
            let loaded = load(&[
                &url,
                "--connections",
                "3",
                "--messages",
                "50",
                "--size",
                size,
                "--depth",
                depth,
            ]);
            assert_eq!(loaded.expect_clean().verified(), 50, "{size} {depth}");
        }
    }
    assert_eq!(number_before("broken off", &server.stop_cleanly()), 0);
}

#[test]
fn several_workers_share_the_connections_and_the_messages() {
    let (server, url) = echo();
    let counts = ["--connections", "7", "--workers", "3", "--messages", "1001", "--depth", "4"];
    let loaded = load(&[&[&*url], &counts[..]].concat());
    assert_eq!(loaded.expect_clean().verified(), 1001);
    assert_eq!(loaded.number("/connections/opened"), 7.0);
    let loaded = load(&[&[&*url, "--rate", "20000"], &counts[..]].concat());
    assert_eq!(loaded.expect_clean().verified(), 1001);
    let line = server.stop_cleanly();
    assert_eq!(number_before("connections", &line), 14);
    assert_eq!(number_before("messages", &line), 2002);
}

#[test]
fn unix_sockets() {
    let socket = |name: &str| -> PathBuf {
        std::env::temp_dir().join(format!("windlass-load-{name}-{}", std::process::id()))
    };
    for (mode, scheme, path) in [("echo", "ws+unix", ":/echo"), ("raw", "unix", "")] {
        let socket = socket(mode);
        let listen = [
            "--mode",
            mode,
            "--unix",
            socket.to_str().expect("it is text"),
            "--listen",
            "127.0.0.1:0",
        ];
        let server = Server::of_several(windlass(&[&["serve"], &listen[..]].concat()), 2);
        // More connections at a time than the backlog of a Unix socket, with which connect(2) does
        // not wait.
        let url = format!("{scheme}:{}{path}", socket.display());
        let loaded = load(&[&url, "--connections", "300", "--messages", "600"]);
        assert_eq!(loaded.expect_clean().verified(), 600);
        server.stop_cleanly();
        assert!(!socket.exists());
    }
}

/// Opens as many connections as the hard limit of open files allows, which is usually enough for
/// all of them.
#[test]
fn five_thousand_connections_at_once() {
    let files = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let connections = files.saturating_sub(100).min(5000);
    let (server, url) = echo();
    let counts = [connections, 2 * connections].map(|count| count.to_string());
    let loaded =
        load(&[&url, "--connections", &counts[0], "--messages", &counts[1], "--timeout", "50"]);
    assert_eq!(loaded.expect_clean().verified(), 2 * connections);
    let line = server.stop_cleanly();
    assert_eq!(number_before("at most at once", &line), connections);
}

#[test]
fn the_report_is_for_people_and_the_json_for_programs() {
    let (server, url) = echo();
    let path = std::env::temp_dir().join(format!("windlass-load-json-{}", std::process::id()));
    let file = path.to_str().expect("it is text");
    let loaded = Load::start(&[&url, "--messages", "1000", "--json", file]).wait();
    assert_eq!(
        (loaded.status, &*loaded.errors),
        (Some(0), ""),
        "no progress bar where there is no terminal"
    );
    for words in ["  messages    1 000 in ", " messages/s, ", "p99.9 ", "  errors      none\n"] {
        assert!(loaded.output.contains(words), "`{words}` is not in: {}", loaded.output);
    }
    let json: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&path).expect("it was written"))
            .expect("it is JSON");
    fs::remove_file(&path).expect("it is there");
    for field in [
        "/parameters/connections",
        "/parameters/size_bytes",
        "/parameters/depth",
        "/connections/opened",
        "/messages/verified",
        "/elapsed_s",
        "/messages_per_s",
        "/bytes_per_s",
        "/latency/min_us",
        "/latency/mean_us",
        "/latency/p50_us",
        "/latency/p90_us",
        "/latency/p99_us",
        "/latency/p99_9_us",
        "/latency/max_us",
    ] {
        let value = json.pointer(field).and_then(serde_json::Value::as_f64);
        assert!(value.is_some_and(|value| value > 0.0), "{field}: {value:?}");
    }
    let buckets = json["latency"]["histogram"].as_array().expect("a list");
    assert_eq!(buckets.iter().filter_map(|bucket| bucket["count"].as_u64()).sum::<u64>(), 1000);
    let quantiles = ["min_us", "p50_us", "p90_us", "p99_us", "p99_9_us", "max_us"]
        .map(|name| json["latency"][name].as_f64().expect("a number"));
    assert!(quantiles.is_sorted(), "{quantiles:?}");
    server.stop_cleanly();
}

#[test]
fn with_json_on_the_output_the_report_goes_elsewhere() {
    let (server, url) = raw();
    let loaded = Load::start(&[&url, "--messages", "100", "--json", "-"]).wait();
    assert_eq!(loaded.verified(), 100);
    assert!(loaded.errors.contains("  messages    100 in "), "{}", loaded.errors);
    server.stop_cleanly();
}

#[test]
fn what_cannot_be_written_or_found_is_an_error() {
    let (server, url) = raw();
    let loaded = Load::start(&[&url, "--messages", "1", "--json", "/nobody/writes/here"]).wait();
    assert_eq!(loaded.status, Some(1));
    assert!(loaded.errors.contains("cannot write the results"), "{}", loaded.errors);
    server.stop_cleanly();
}

#[test]
fn invalid_arguments_are_rejected_with_status_2() {
    for (arguments, words) in [
        (&["ws://localhost/", "--insecure"][..], "--insecure needs a target with TLS: wss://"),
        (&["ftp://localhost/"], "the URL must begin with ws://, wss://, http://, https://"),
        (&["ws://localhost/", "--size", "3", "--text", "utf8"], "--size must be even"),
        (&["tcp://localhost:1", "--deflate"], "--text and --deflate need a WebSocket target"),
        (&["ws://localhost/", "--rate", "0"], "must be between"),
        (&[], "<URL>"),
    ] {
        let loaded = Load::start(arguments).wait();
        assert_eq!(loaded.status, Some(2), "{arguments:?}: {}", loaded.errors);
        assert!(loaded.errors.contains(words), "`{words}` is not in: {}", loaded.errors);
    }
}
