//! `--token-file`: who may open a WebSocket.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::PathBuf,
};

use rustix::process::{Signal, kill_process};
use windlass_ws::MessageRef;

use crate::{
    client::Client,
    harness::{Server, windlass},
};

/// A file that is removed at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("windlass-tokens-{name}-{}", std::process::id());
        let file = Self(std::env::temp_dir().join(name));
        fs::write(&file.0, text).expect("it can be written");
        file
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("temporary paths are text")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns the response to an upgrade with these further lines.
fn upgrade(server: &Server, target: &str, lines: &str) -> String {
    let mut socket = server.connect();
    write!(
        socket,
        "GET {target} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{lines}\r\n"
    )
    .expect("the server reads");
    let mut response = String::new();
    socket.read_to_string(&mut response).expect("it answers and ends");
    response
}

#[test]
fn a_websocket_needs_a_token_of_the_file() {
    let file = File::new("good", "# Ada\na-token-of-the-test\nanother-token-of-it\n");
    let server = Server::start(&["--token-file", file.path()]);
    for (target, lines) in [
        ("/echo", ""),
        ("/room/lobby", "Authorization: Bearer a-token-of-the-tes\r\n"),
        ("/echo?token=", "Authorization: Basic a-token-of-the-test\r\n"),
        ("/live/lobby?token=a-token-of-the-test2", ""),
        // A header that is wrong is not made good by a parameter.
        ("/echo?token=a-token-of-the-test", "Authorization: Bearer wrong\r\n"),
    ] {
        let response = upgrade(&server, target, lines);
        assert!(response.starts_with("HTTP/1.1 401 "), "{target} {lines}: {response}");
        assert!(response.contains("\r\nWWW-Authenticate: Bearer\r\n"), "{response}");
    }
    let line = server.wait_for_error("refused");
    assert!(line.contains("status=401") && line.contains("option=\"--token-file\""), "{line}");
    assert!(!line.contains("a-token"), "{line}");
    for token in ["a-token-of-the-test", "another-token-of-it"] {
        let path = format!("/echo?token={token}");
        let mut client = Client::open(server.connect(), &path, None);
        client.exchange(MessageRef::Text("hello"));
        client.close();
    }
    // Pages need none: a browser has the token in their address.
    let mut socket = server.connect();
    write!(socket, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .expect("the server reads");
    let mut page = String::new();
    socket.read_to_string(&mut page).expect("it answers and ends");
    assert!(page.starts_with("HTTP/1.1 200 ") && page.contains("location.search"), "{page}");
    server.stop_cleanly();
}

#[test]
fn a_hangup_reads_the_tokens_again() {
    let file = File::new("again", "the-first-token-of-it\n");
    let server = Server::start(&["--token-file", file.path()]);
    let mut kept = Client::open(server.connect(), "/echo?token=the-first-token-of-it", None);
    let reload = |text: &str, line: &str| {
        fs::write(&file.0, text).expect("it can be written");
        kill_process(server.pid(), Signal::HUP).expect("it runs");
        server.wait_for_error(line)
    };
    reload("the-second-token-of-it\n", "configuration reloaded");
    let refused = upgrade(&server, "/echo?token=the-first-token-of-it", "");
    assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
    let line = reload("broken\n", "configuration not reloaded");
    assert!(line.contains("line 1 is no token"), "{line}");
    let mut next = Client::open(server.connect(), "/echo?token=the-second-token-of-it", None);
    next.exchange(MessageRef::Text("hello"));
    kept.exchange(MessageRef::Text("still open"));
    server.stop_cleanly();
}

#[test]
fn a_file_without_tokens_is_an_error() {
    for (name, text, expected) in
        [("empty", "\n", "it has no token"), ("short", "short\n", "line 1 is no token")]
    {
        let file = File::new(name, text);
        let command = &["serve", "--listen", "127.0.0.1:0", "--token-file", file.path()];
        let output = windlass(command).output().expect("it runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(expected), "{error}");
    }
}
