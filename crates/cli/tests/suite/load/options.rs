//! Headers, subprotocols and thresholds.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tungstenite::{
    Message,
    handshake::server::{Request, Response},
};

use super::runs::load;
use crate::harness::{Server, WAIT_MAX, number_before};

/// A server on tungstenite that checks a header and chooses a subprotocol. It serves one
/// connection.
fn choosing(protocol: &'static str) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let url = format!("ws://{}/", listener.local_addr().expect("it has an address"));
    let serve = move || {
        let (socket, _) = listener.accept().expect("the client connects");
        socket.set_read_timeout(Some(WAIT_MAX)).expect("it can be set");
        #[expect(clippy::result_large_err, reason = "the type of tungstenite's callback")]
        let choose = |request: &Request, mut response: Response| {
            assert_eq!(request.headers()["cookie"], "session=7");
            assert_eq!(request.headers()["sec-websocket-protocol"], "chat.v2");
            let chosen = protocol.parse().expect("it is a value");
            response.headers_mut().insert("sec-websocket-protocol", chosen);
            Ok(response)
        };
        let Ok(mut client) = tungstenite::accept_hdr(socket, choose) else { return };
        while let Ok(message) = client.read() {
            if let Message::Binary(_) = message {
                client.send(message).expect("it is read");
            }
        }
    };
    (url, thread::spawn(serve))
}

#[test]
fn a_websocket_has_the_headers_and_the_subprotocol_that_are_asked_for() {
    let options = ["--header", "Cookie: session=7", "--subprotocol", "chat.v2"];
    let counts = ["--connections", "1", "--messages", "5"];
    for (chosen, is_right) in [("chat.v2", true), ("chat.v1", false)] {
        let (url, server) = choosing(chosen);
        let loaded = load(&[&[&*url], &options[..], &counts[..]].concat());
        if is_right {
            assert_eq!(loaded.expect_clean().verified(), 5);
        } else {
            assert_eq!(loaded.status, Some(1), "{loaded:?}");
        }
        server.join().expect("the request is as it should be");
    }
    // A server that chooses none.
    let server = Server::start(&["--mode", "echo"]);
    let url = format!("ws://{}/", server.address);
    let loaded = load(&[&[&*url, "--subprotocol", "chat.v2"], &counts[..]].concat());
    loaded.expect_fault("handshake", "the server declines the subprotocol");
    server.stop_cleanly();
}

#[test]
fn an_origin_is_a_header_too() {
    let server = Server::start(&["--mode", "echo", "--origin", "https://shop.example"]);
    let url = format!("ws://{}/", server.address);
    let run =
        |origin: &str| load(&[&*url, "--connections", "1", "--messages", "1", "--header", origin]);
    run("origin: https://shop.example").expect_clean();
    run("Origin: https://evil.example").expect_fault("handshake", "403");
    server.stop_cleanly();
}

#[test]
fn a_request_has_further_headers_and_others_in_place_of_the_defaults() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let url = format!("http://{}/", listener.local_addr().expect("it has an address"));
    let server = thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("the client connects");
        socket.set_read_timeout(Some(WAIT_MAX)).expect("it can be set");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).expect("the request comes");
            head.push(byte[0]);
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        socket.write_all(answer).expect("the client reads");
        String::from_utf8(head).expect("it is text")
    });
    let headers = ["--header", "user-agent: me", "--header", "X-Trace: 1"];
    load(&[&[&*url, "--connections", "1", "--messages", "1"], &headers[..]].concat())
        .expect_clean();
    let head = server.join().expect("it does not panic");
    assert!(head.contains("\r\nuser-agent: me\r\n") && head.contains("\r\nX-Trace: 1\r\n"));
    assert!(head.contains("\r\nAccept: */*\r\n") && !head.contains("windlass/"), "{head}");
}

#[test]
fn connections_are_opened_over_the_time_of_a_ramp() {
    let server = Server::start(&["--mode", "echo"]);
    let url = format!("ws://{}/", server.address);
    let begun = Instant::now();
    let counts = ["--connections", "10", "--messages", "10", "--ramp-up", "1s"];
    let loaded = load(&[&[&*url], &counts[..]].concat());
    assert_eq!(loaded.expect_clean().verified(), 10);
    // The last one may be opened after nine tenths.
    assert!(begun.elapsed() >= Duration::from_millis(900));
    server.stop_cleanly();
}

#[test]
fn connections_end_after_so_many_messages_and_are_opened_again() {
    let counts = ["--connections", "3", "--messages", "60", "--churn", "4"];
    for (mode, scheme, rate) in
        [("echo", "ws", &[][..]), ("raw", "tcp", &[]), ("echo", "ws", &["--rate", "500"])]
    {
        let server = Server::start(&["--mode", mode]);
        let url = format!("{scheme}://{}", server.address);
        for depth in ["1", "3"] {
            let loaded = load(&[&[&*url, "--depth", depth], &counts[..], rate].concat());
            assert_eq!(loaded.expect_clean().verified(), 60, "{mode} {depth}");
            // Each of three connections has twenty messages, four at a time.
            assert_eq!(loaded.number("/connections/reconnects"), 12.0, "{mode} {depth}");
        }
        let line = server.stop_cleanly();
        assert_eq!(number_before("connections", &line), 30, "{line}");
        assert_eq!(number_before("broken off", &line), 0, "{line}");
    }
    let server = Server::start(&[]);
    let url = format!("http://{}/", server.address);
    let loaded = load(&[&[&*url], &counts[..]].concat());
    assert_eq!(loaded.expect_clean().number("/connections/reconnects"), 12.0);
    server.stop_cleanly();
}

#[test]
fn thresholds_decide_the_exit_status() {
    let server = Server::start(&["--mode", "echo"]);
    let url = format!("ws://{}/", server.address);
    let run = |expected: &[&str]| {
        let options = expected.iter().flat_map(|threshold| ["--expect", threshold]);
        let counts = [&*url, "--connections", "1", "--messages", "10"];
        load(&counts.into_iter().chain(options).collect::<Vec<_>>())
    };
    let met = run(&["p99<1h", "rate>0.001"]);
    assert_eq!(met.expect_clean().json()["thresholds"][0]["is_met"], true);
    let missed = run(&["p99<1h", "max<0.001ms", "rate>1000000000"]);
    assert_eq!(missed.status, Some(3), "{missed:?}");
    assert!(missed.errors.contains("max<0.001ms missed: "), "{missed:?}");
    assert!(missed.errors.contains("rate>1000000000 missed: "), "{missed:?}");
    assert!(!missed.errors.contains("p99"), "{missed:?}");
    let json = missed.json();
    assert_eq!(
        (&json["is_clean"], &json["thresholds"][1]["is_met"]),
        (&true.into(), &false.into())
    );
    assert_eq!(json["thresholds"][1]["measured"], json["latency"]["max_us"]);
    server.stop_cleanly();
    // An error goes before a threshold.
    assert_eq!(load(&[&*url, "--messages", "1", "--expect", "max<1h"]).status, Some(1));
}
