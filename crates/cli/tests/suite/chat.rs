//! `windlass serve` with its defaults: rooms, an echo and a page; and the effects of its options.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::PathBuf,
};

use crate::client::{Client, Received};
use crate::harness::{Server, number_before, pattern, windlass};
use rustix::process::{Signal, kill_process};
use windlass_ws::{MessageRef, deflate::DeflateConfig};

fn enter(server: &Server, room: &str) -> Client<TcpStream> {
    let mut client = Client::open(server.connect(), room, None);
    // The server answers the ping after the connection has entered the room.
    client.ping(b"in?");
    assert_eq!(client.receive(), Received::Pong(b"in?".to_vec()));
    client
}

fn text(text: &str) -> Received {
    Received::Text(text.to_owned())
}

/// Returns status, head and body of the response to a request without an upgrade.
fn get(server: &Server, path: &str, headers: &str) -> (u16, String, Vec<u8>) {
    let mut socket = server.connect();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")
        .expect("it listens");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).expect("it ends in order");
    let end = answer.windows(4).position(|at| at == b"\r\n\r\n").expect("there is a head") + 4;
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    let status = head[9..12].parse().expect("a status");
    (status, head, answer.split_off(end))
}

const UPGRADE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// The same without the header that [`get`] writes.
const UPGRADE_OF_PAGE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// Returns the status of the response to an upgrade.
fn upgrade(server: &Server, path: &str, headers: &str) -> u16 {
    upgrade_at(server, path, "here.example:81", headers)
}

fn upgrade_at(server: &Server, path: &str, host: &str, headers: &str) -> u16 {
    let mut socket = server.connect();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: {host}\r\n{UPGRADE}{headers}\r\n")
        .expect("it listens");
    let mut status = [0; 12];
    socket.read_exact(&mut status).expect("it answers");
    std::str::from_utf8(&status[9..]).ok().and_then(|status| status.parse().ok()).expect("a status")
}

#[test]
fn a_message_goes_verbatim_to_everyone_else_in_the_room_in_order() {
    for workers in ["1", "3"] {
        let server = Server::start(&["--workers", workers]);
        let mut ada = enter(&server, "/room/a");
        let mut others: Vec<_> = (0..5).map(|_| enter(&server, "/room/a")).collect();
        let mut elsewhere = enter(&server, "/room/a/b");
        let long = pattern(3, 100_000);
        for number in 0..100 {
            ada.send(MessageRef::Text(&format!("message {number}")));
        }
        ada.send(MessageRef::Binary(&long));
        for other in &mut others {
            for number in 0..100 {
                assert_eq!(
                    other.receive(),
                    text(&format!("message {number}")),
                    "with {workers} workers"
                );
            }
            assert_eq!(other.receive(), Received::Binary(long.clone()));
        }
        // Her own message would arrive first. The same holds for the others.
        others[0].send(MessageRef::Text("last"));
        assert_eq!(ada.receive(), text("last"));
        elsewhere.ping(b"quiet?");
        assert_eq!(elsewhere.receive(), Received::Pong(b"quiet?".to_vec()));
        let line = server.stop_cleanly();
        assert_eq!(number_before("messages", &line), 102);
        assert_eq!(number_before("dropped", &line), 0);
    }
}

#[test]
fn a_member_that_has_left_gets_nothing() {
    let server = Server::start(&[]);
    let mut ada = enter(&server, "/room/a");
    let mut bob = enter(&server, "/room/a?query=does&not=matter");
    enter(&server, "/room/a").close();
    drop(enter(&server, "/room/a"));
    ada.send(MessageRef::Text("who is here?"));
    assert_eq!(bob.receive(), text("who is here?"));
    server.stop_cleanly();
}

#[test]
fn rooms_relay_between_clients_with_and_without_compression() {
    let server = Server::start(&[]);
    let mut plain = enter(&server, "/room/r");
    let mut packed = Client::open(server.connect(), "/room/r", Some(&DeflateConfig::DEFAULT));
    assert!(packed.has_deflate);
    packed.ping(b"");
    assert_eq!(packed.receive(), Received::Pong(vec![]));
    let said = "again and again, ".repeat(100);
    plain.send(MessageRef::Text(&said));
    assert_eq!(packed.receive(), text(&said));
    packed.send(MessageRef::Text(&said));
    assert_eq!(plain.receive(), text(&said));
    server.stop_cleanly();
}

#[test]
fn the_page_is_served_in_chat_alone_and_the_echo_is_not_a_room() {
    let server = Server::start(&["--host", "here.example"]);
    let (status, head, body) = get(&server, "/", "");
    assert_eq!(status, 200);
    assert!(
        head.contains("content-type: text/html") && head.contains("frame-ancestors 'none'"),
        "{head}"
    );
    assert!(body.starts_with(b"<!doctype html>"));
    let tag = head
        .lines()
        .find_map(|line| line.strip_prefix("etag: "))
        .expect("it can be asked for again")
        .to_owned();
    assert_eq!(get(&server, "/", &format!("If-None-Match: {tag}\r\n")).0, 304);
    assert_eq!(get(&server, "/room/lobby", "").2, body, "a room is the same page");
    assert_eq!(get(&server, "/echo", "").0, 426);
    for path in ["/lobby", "/room", "/room/", "/echo/"] {
        assert_eq!(upgrade(&server, path, ""), 404, "{path}");
    }
    let (status, _, text) = get(&server, "/lobby", "");
    assert!(
        status == 404 && String::from_utf8_lossy(&text).contains("/room/NAME"),
        "{status} {text:?}"
    );
    let mut client = Client::new(server.connect(), None);
    client.exchange(MessageRef::Text("echo"));
    client.close();
    server.stop_cleanly();
    let server = Server::start(&["--mode", "echo"]);
    assert_eq!(get(&server, "/", "").0, 426);
    let mut client = Client::open(server.connect(), "/any/path", None);
    client.exchange(MessageRef::Text("echo"));
    server.stop_cleanly();
}

/// Notices of other rooms came no more while a client changed rooms (issue 29).
#[test]
fn the_notices_of_a_room_come_while_strangers_change_rooms() {
    const ROOMS: usize = 4000;
    let server = Server::start(&[]);
    for at in 0..ROOMS {
        assert_eq!(upgrade_at(&server, &format!("/room/{at}"), "localhost", ""), 101);
    }
    let mut page = Client::open(server.connect(), "/live/zebra?as=Ada", None);
    // The live status comes twice a second, as the notices do.
    let mut statuses = 0;
    let notice = loop {
        match page.receive() {
            Received::Text(text) if text.contains("\"joined\"") => break text,
            _ => statuses += 1,
        }
        assert!(statuses < 8, "its notice waits behind those of rooms that nobody looks at");
    };
    assert_eq!(notice, r#"{"joined":["Ada"],"left":[],"members":0}"#);
    server.stop_cleanly();
}

/// Every member of a room and the server itself keep its name (issue 29).
#[test]
fn a_room_with_a_long_name_is_refused_with_the_limit_and_the_option() {
    for (arguments, max) in [(&[][..], 256), (&["--room-name-max", "7"], 7)] {
        let server = Server::start(&[&["--host", "here.example"], arguments].concat());
        for start in ["/room/", "/live/"] {
            let path = |len| format!("{start}{}?as=Ada", "n".repeat(len));
            assert_eq!(upgrade(&server, &path(max), ""), 101, "{start}");
            let (status, head, body) = get(&server, &path(max + 1), UPGRADE_OF_PAGE);
            assert_eq!(status, 400, "{head}");
            let body = String::from_utf8_lossy(&body).into_owned();
            let names = body.contains(&max.to_string()) && body.contains("--room-name-max");
            assert!(names && body.contains(&(max + 1).to_string()), "{body}");
        }
        server.stop_cleanly();
    }
}

#[test]
fn pages_of_other_origins_are_kept_out_unless_they_are_allowed() {
    const OWN: &str = "Origin: http://here.example:81\r\n";
    const OTHER: &str = "Origin: https://other.example\r\n";
    for (arguments, none, own, other) in [
        (&[][..], 101, 101, 403),
        (&["--origin", "any"], 101, 101, 101),
        (&["--origin", "https://other.example"], 101, 403, 101),
    ] {
        let server = Server::start(&[&["--host", "here.example"], arguments].concat());
        let statuses = ["", OWN, OTHER].map(|origin| upgrade(&server, "/room/a", origin));
        assert_eq!(statuses, [none, own, other], "{arguments:?}");
        server.stop_cleanly();
    }
}

/// Returns status and text of the response to a request for this host.
fn ask_for(server: &Server, host: &str, headers: &str) -> (u16, String) {
    let mut socket = server.connect();
    write!(socket, "GET /echo HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n").expect("it listens");
    let mut answer = [0; 1024];
    let count = socket.read(&mut answer).expect("it answers");
    let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
    (answer[9..12].parse().expect("a status"), answer)
}

/// A page whose name resolves to 127.0.0.1 could connect otherwise: DNS rebinding (issue 13).
#[test]
fn requests_for_other_hosts_are_refused_on_loopback_unless_they_are_allowed() {
    let port =
        |server: &Server, host: &str| host.replace("PORT", &server.address.port().to_string());
    let own = ["localhost:PORT", "LocalHost.", "127.0.0.1:PORT", "127.0.0.1", "[::1]:1"];
    for (arguments, allowed, refused) in [
        (
            &[][..],
            &[][..],
            &["evil.example:PORT", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1"]
                [..],
        ),
        (
            &["--host", "Here.Example", "--host", "10.0.0.1"],
            &["here.example", "here.example.:PORT", "HERE.EXAMPLE:80", "10.0.0.1:PORT"],
            &["evil.example:PORT", "a.here.example", "10.0.0.2"],
        ),
        (&["--host", "any"], &["evil.example:PORT"], &[]),
    ] {
        let server = Server::start(arguments);
        for host in own.iter().chain(allowed) {
            let (status, answer) = ask_for(&server, &port(&server, host), UPGRADE);
            assert_eq!(status, 101, "{host} with {arguments:?}: {answer}");
        }
        for host in refused {
            for headers in [UPGRADE, ""] {
                let (status, answer) = ask_for(&server, &port(&server, host), headers);
                assert_eq!(status, 421, "{host} with {arguments:?}: {answer}");
                assert!(answer.contains("--host") && answer.contains("\r\nDate: "), "{answer}");
            }
        }
        server.stop_cleanly();
    }
}

#[test]
fn a_host_that_is_none_is_refused_by_its_name() {
    for host in ["http://example.com", "example.com:80", "*.example.com", ""] {
        let output = windlass(&["serve", "--listen", "127.0.0.1:0", "--host", host])
            .output()
            .expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("--host"), "{errors}");
    }
}

#[test]
fn an_origin_that_is_none_is_refused_by_its_name() {
    let output = windlass(&["serve", "--listen", "127.0.0.1:0", "--origin", "example.com/path"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("--origin"), "{errors}");
}

/// A temporary file.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_file_configures_it_and_the_command_line_goes_before_it() {
    let file =
        File(std::env::temp_dir().join(format!("windlass-serve-{}.toml", std::process::id())));
    let options = "listen = '127.0.0.1:0'\nmode = 'echo'\nbackend = 'poll'\nmessage-max = 10\n\
                   log = 'json'\nlog-level = 'debug'\n";
    fs::write(&file.0, options).expect("a file for temporary use");
    let path = file.0.to_str().expect("it is text");
    let server = Server::of(windlass(&[
        "serve",
        "--config",
        path,
        "--message-max",
        "20",
        "--drain-timeout",
        "0",
    ]));
    let mut client = Client::open(server.connect(), "/anywhere", None);
    client.exchange(MessageRef::Text("fifteen bytes.."));
    client.send(MessageRef::Text("more than twenty bytes"));
    assert_eq!(client.receive(), Received::Close(Some(1009), String::new()));
    // The log is JSON, one object per line.
    server.wait_for_error(r#""backend":"poll""#);
    Client::open(server.connect(), "/again", None).close();
    server.wait_for_error(r#""level":"DEBUG""#);
    server.stop_cleanly();
    fs::write(&file.0, "mode = 'morse'\n").expect("it can be written again");
    let output = windlass(&["serve", "--config", path]).output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains(path) && errors.contains("morse"), "{errors}");
    fs::write(&file.0, "backend = 'select'\n").expect("it can be written again");
    let output = windlass(&["serve", "--config", path]).output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("epoll, uring, uring-or-epoll, poll"), "{errors}");
}

#[test]
fn connections_of_one_address_are_limited() {
    let server = Server::start(&["--connections-per-address", "2"]);
    let (ada, mut bob) = (enter(&server, "/room/a"), enter(&server, "/room/a"));
    let mut third = server.connect();
    assert_eq!(third.read(&mut [0; 1]).expect("it is closed in order"), 0);
    ada.close();
    // The server has closed first, so the connection limit allows another one.
    let mut cleo = enter(&server, "/room/a");
    bob.send(MessageRef::Text("hello"));
    assert_eq!(cleo.receive(), text("hello"));
    assert_eq!(number_before("refused", &server.stop_cleanly()), 1);
}

#[test]
fn the_first_signal_ends_it_gracefully_and_the_second_immediately() {
    let server = Server::start(&["--drain-timeout", "60"]);
    let mut client = enter(&server, "/room/a");
    let mut silent = enter(&server, "/room/a");
    kill_process(server.pid(), Signal::TERM).expect("it runs");
    // Every client gets a Close frame, and a client that answers it is closed in order.
    assert_eq!(client.receive(), Received::Close(Some(1001), String::new()));
    client.expect_end();
    assert_eq!(silent.receive(), Received::Close(Some(1001), String::new()));
    server.stop_cleanly();

    let server = Server::start(&["--drain-timeout", "3600"]);
    // A client that never answers, because its engine is not called.
    let stubborn = enter(&server, "/room/a").socket;
    kill_process(server.pid(), Signal::INT).expect("it runs");
    server.wait_for_error("ending");
    // New connections are rejected meanwhile. The listener may exist for a moment.
    while TcpStream::connect(server.address)
        .is_ok_and(|mut late| late.read(&mut [0; 1]).is_ok_and(|count| count > 0))
    {}
    let (status, line) = server.stop(Signal::TERM);
    assert_eq!(status.code(), Some(0));
    assert!(line.starts_with("stopped by SIGINT: "), "{line}");
    drop(stubborn);
}

#[test]
fn a_receiver_that_does_not_read_is_treated_as_was_said_and_the_others_miss_nothing() {
    for (policy, words) in
        [("drop-newest", "dropped"), ("drop-oldest", "dropped"), ("evict", "evicted")]
    {
        let server =
            Server::start(&["--slow", policy, "--buffer", "300000", "--message-max", "262144"]);
        let mut sender = enter(&server, "/room/a");
        let mut reader = enter(&server, "/room/a");
        let slow = enter(&server, "/room/a");
        // More than the maximum of the socket buffers.
        let message = pattern(5, 256 << 10);
        for _ in 0..64 {
            sender.send(MessageRef::Binary(&message));
            assert_eq!(reader.receive(), Received::Binary(message.clone()), "{policy}");
        }
        drop(slow);
        let line = server.stop_cleanly();
        assert!(number_before(words, &line) > 0, "{policy}: {line}");
    }
}
