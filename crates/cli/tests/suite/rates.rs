//! Rates and limits of `windlass serve`, and the options that its log names for them.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use windlass_ws::MessageRef;

use crate::{
    client::{Client, Received},
    harness::{Server, windlass},
};

/// Asks for the page on a connection of its own. Returns the response.
fn page(server: &Server) -> String {
    let mut socket = server.connect();
    ask(&mut socket)
}

fn ask(socket: &mut TcpStream) -> String {
    // The server may have closed it already.
    let _ = socket.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut response = String::new();
    let _ = socket.read_to_string(&mut response);
    response
}

#[track_caller]
fn assert_line(server: &Server, words: &str, limit: &str, option: &str) {
    let line = server.wait_for_error(words);
    let expected = [limit.to_owned(), format!("option=\"{option}\"")];
    assert!(expected.iter().all(|part| line.contains(part)), "{line}");
}

/// Asks until the answer is not the page. However slow this machine is, a server that allows one
/// request a second cannot allow so many.
#[track_caller]
fn until_refused(server: &Server) -> String {
    let mut responses = (0..100).map(|_| page(server));
    let refused = responses.find(|response| !response.starts_with("HTTP/1.1 200 "));
    refused.expect("the rate is exceeded")
}

#[test]
fn requests_beyond_a_rate_are_answered_and_logged() {
    let server = Server::start(&["--request-rate-per-address", "1:2"]);
    assert!(page(&server).starts_with("HTTP/1.1 200 "));
    let response = until_refused(&server);
    assert!(response.starts_with("HTTP/1.1 429 "), "{response}");
    assert!(response.contains("\r\nRetry-After: 1\r\n"), "{response}");
    let option = "--request-rate-per-address";
    assert_line(&server, "refused", "limit=\"rates.requests_per_address\"", option);
    server.stop_cleanly();

    let server = Server::start(&["--request-rate", "1:1"]);
    let response = until_refused(&server);
    assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
    assert_line(&server, "refused", "limit=\"rates.requests\"", "--request-rate");
    server.stop_cleanly();
}

#[test]
fn connections_beyond_a_rate_are_closed_or_wait() {
    let server = Server::start(&["--connection-rate-per-address", "1:1"]);
    assert_eq!(until_refused(&server), "");
    let option = "--connection-rate-per-address";
    assert_line(&server, "refused", "limit=\"rates.connections_per_address\"", option);
    server.stop_cleanly();

    // All of them are served, each a second after the last one.
    let server = Server::start(&["--connection-rate", "1:1"]);
    let mut sockets = [(); 3].map(|()| server.connect());
    for socket in &mut sockets {
        assert!(ask(socket).starts_with("HTTP/1.1 200 "));
    }
    let line = server.wait_for_error("a rate of connections was reached");
    assert!(line.contains("--connection-rate"), "{line}");
    server.stop_cleanly();
}

#[test]
fn messages_beyond_a_rate_close_their_connection() {
    for (arguments, limit, option) in [
        (&["--message-rate", "1:2"][..], "rates.messages", "--message-rate"),
        (
            &["--message-byte-rate", "1:10", "--message-max", "10"],
            "rates.message_bytes",
            "--message-byte-rate",
        ),
    ] {
        let server = Server::start(arguments);
        let mut client = Client::new(server.connect(), None);
        client.exchange(MessageRef::Text("hello"));
        for _ in 0..50 {
            client.send(MessageRef::Binary(b"hello"));
        }
        let mut received = (0..51).map(|_| client.receive());
        let end = received.find(|received| *received != Received::Binary(b"hello".to_vec()));
        let Some(Received::Close(Some(1008), reason)) = end else { panic!("{end:?}") };
        assert!(reason.starts_with("too many"), "{reason}");
        assert_line(&server, "closed", limit, option);
        server.stop_cleanly();
    }
}

#[test]
fn a_full_server_rejects_or_lets_wait() {
    let server = Server::start(&["--connections", "1", "--when-full", "reject"]);
    let first = Client::new(server.connect(), None);
    let response = page(&server);
    assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
    assert_line(&server, "refused", "limit=\"connections_max\"", "--connections");
    first.close();
    server.stop_cleanly();
}

#[test]
fn the_end_of_a_flood_is_counted_in_the_log() {
    let server = Server::start(&["--request-rate-per-address", "1:1"]);
    let mut sockets: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for socket in &mut sockets {
        socket.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the server reads");
    }
    let line = server.wait_for_error("left out of the log");
    assert!(line.contains("kind=refused: rates.requests_per_address"), "{line}");
    assert!(line.contains("suppressed="), "{line}");
    server.stop_cleanly();
}

#[test]
fn invalid_limits_are_errors_that_name_the_option() {
    for (arguments, expected) in [
        (&["--message-rate", "0"][..], "--message-rate"),
        (&["--message-byte-rate", "1000"], "--message-byte-rate"),
        (&["--forwarded-from", "10.0.0.0/33"], "--forwarded-from"),
        (&["--proxy-protocol-from", "localhost"], "--proxy-protocol-from"),
        (&["--mode", "raw", "--request-rate", "1"], "mode raw"),
        (&["--mode", "raw", "--forwarded-from", "::1"], "mode raw"),
    ] {
        let command = [&["serve", "--listen", "127.0.0.1:0"], arguments].concat();
        let output = windlass(&command).output().expect("it runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(expected), "{arguments:?}: {error}");
    }
}
