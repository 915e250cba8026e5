//! Faults from outside the program: what the server guarantees then. `docs/serve.md` has the table.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Signal, kill_process};
use windlass_testkit::{frames::masked, waiting::until};

use crate::harness::{Running, Server, windlass, with_arguments};

/// Opens a WebSocket that echoes, and has read the response.
fn open(server: &Server) -> TcpStream {
    let mut client = ask(server);
    read_head(&mut client);
    client
}

/// Sends the request for one.
fn ask(server: &Server) -> TcpStream {
    let mut client = server.connect();
    let request = format!(
        "GET /echo HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        server.address
    );
    client.write_all(request.as_bytes()).expect("the kernel takes it");
    client
}

fn read_head(client: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).expect("the response comes");
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
}

fn say(client: &mut TcpStream, number: u8) {
    client.write_all(&masked(0x82, &[number])).expect("the kernel takes it");
}

fn heard(client: &mut TcpStream) -> u8 {
    let mut frame = [0; 3];
    client.read_exact(&mut frame).expect("an echo comes");
    assert_eq!(frame[..2], [0x82, 1], "{frame:?}");
    frame[2]
}

#[test]
fn a_server_that_is_stopped_and_continued_loses_nothing_and_takes_no_client_for_idle() {
    // All of the test but its sleep takes much less than these limits. A ping would come between.
    let limits = ["--idle-timeout", "5", "--handshake-timeout", "5", "--ping-interval", "0"];
    let server = Server::start(&[&["--workers", "2"], &limits[..]].concat());
    let mut clients: Vec<_> = (0..10).map(|_| open(&server)).collect();
    kill_process(server.pid(), Signal::STOP).expect("it runs");
    let status = format!("/proc/{}/status", server.pid().as_raw_nonzero());
    let text = || fs::read_to_string(&status).expect("it is there");
    until(|| text().contains("State:\tT").then_some(()), text);
    for number in 0..100 {
        clients.iter_mut().for_each(|client| say(client, number));
    }
    let mut new: Vec<_> = (0..10).map(|_| ask(&server)).collect();
    // sleep: all time limits pass while the server is stopped.
    thread::sleep(Duration::from_millis(6500));
    kill_process(server.pid(), Signal::CONT).expect("it is stopped");
    for client in &mut clients {
        assert_eq!(
            (0..100).map(|_| heard(client)).collect::<Vec<_>>(),
            (0..100).collect::<Vec<_>>()
        );
    }
    for client in &mut new {
        read_head(client);
        say(client, 7);
        assert_eq!(heard(client), 7);
    }
    server.stop_cleanly();
}

#[test]
fn without_room_for_its_output_a_server_does_not_start_and_says_so() {
    let full = File::options().write(true).open("/dev/full").expect("every Linux has it");
    let mut command = windlass(&["serve", "--listen", "127.0.0.1:0"]);
    command.stdin(Stdio::null()).stdout(full).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut errors = child.stderr.take().expect("piped");
    let status = Running(child).wait();
    let mut text = String::new();
    errors.read_to_string(&mut text).expect("it is text");
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("cannot write to the output: No space left on device"), "{text}");
}

/// A log on a full disk: no thread of the server panics.
#[test]
fn without_room_for_its_log_a_server_serves() {
    for format in ["text", "json"] {
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$0\" \"$@\" 2>/dev/full", env!("CARGO_BIN_EXE_windlass")]);
        let options = ["serve", "--listen", "127.0.0.1:0", "--drain-timeout", "0"];
        let log = ["--log", format, "--log-level", "debug"];
        let server = Server::of(with_arguments(shell, &[&options[..], &log].concat()));
        for number in 0..3 {
            let mut client = open(&server);
            say(&mut client, number);
            assert_eq!(heard(&mut client), number);
        }
        // It logs what it reads again, too.
        kill_process(server.pid(), Signal::HUP).expect("it runs");
        open(&server);
        server.stop_cleanly();
    }
}
