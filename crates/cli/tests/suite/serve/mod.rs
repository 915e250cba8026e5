//! `windlass serve` as its users see it: the program and real sockets.

use windlass_testkit::rings;

mod faults;
mod hand_over;
mod hangup;
mod load_run;
mod notify;
mod reload;
mod sandbox;
mod tls;

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    os::fd::OwnedFd,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use crate::harness::{
    Running, Server, number_before, pattern, windlass, windlass_under_ulimit, with_arguments,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt,
    process::{Resource, Rlimit, Signal, getrlimit, kill_process, prlimit},
};
use sandbox::without_rings;

/// Sends all bytes and reads them back concurrently, and then shuts down the client's side.
fn exchange(client: &mut TcpStream, bytes: &[u8]) -> Vec<u8> {
    let mut writer = client.try_clone().expect("a socket can be cloned");
    thread::scope(|scope| {
        scope.spawn(move || {
            writer.write_all(bytes).expect("the server takes it");
            writer.shutdown(Shutdown::Write).expect("the half can be closed");
        });
        let mut received = Vec::with_capacity(bytes.len());
        client.read_to_end(&mut received).expect("the server sends it back");
        received
    })
}

/// Sends one byte and reads it back, so that the server has accepted the client.
fn ping(client: &mut TcpStream) {
    client.write_all(b"!").expect("the server takes a byte");
    let mut byte = [0];
    client.read_exact(&mut byte).expect("the server sends the byte back");
    assert_eq!(&byte, b"!");
}

#[test]
fn many_clients_at_once_each_get_their_own_bytes_back() {
    const CLIENTS: u64 = 32;
    const LENGTH: usize = 512 * 1024 + 13;
    let server = Server::start(&["--mode", "raw"]);
    thread::scope(|scope| {
        for seed in 0..CLIENTS {
            let mut client = server.connect();
            scope.spawn(move || {
                let sent = pattern(seed, LENGTH);
                assert!(exchange(&mut client, &sent) == sent, "client {seed} got other bytes");
            });
        }
    });
    let line = server.stop_cleanly();
    assert_eq!(number_before("connections", &line), CLIENTS);
    assert_eq!(number_before("bytes echoed", &line), CLIENTS * LENGTH as u64);
    assert_eq!(number_before("broken off", &line), 0);
}

#[test]
fn a_client_that_does_not_read_is_slowed_down_and_loses_nothing() {
    // More than the maximum of the four socket buffers on the way (net.ipv4.tcp_rmem, tcp_wmem).
    const LENGTH: usize = 64 << 20;
    let server = Server::start(&["--mode", "raw", "--buffer", "10000"]);
    let mut client = server.connect();
    let sent = pattern(1, LENGTH);

    // Writes until the kernel takes nothing for a while. A slow server would only make the test
    // easier.
    client.set_nonblocking(true).expect("it can be set");
    let mut written = 0;
    loop {
        match client.write(&sent[written..]) {
            Ok(count) => written += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let a_while = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
                let takes_more = |timeout: &Timespec| {
                    let mut fds = [PollFd::new(&client, PollFlags::OUT)];
                    poll(&mut fds, Some(timeout)).expect("poll works") > 0
                };
                if !takes_more(&a_while) {
                    // The server has had a turn after each of these, and has not read.
                    (0..2).for_each(|_| ping(&mut server.connect()));
                    if !takes_more(&Timespec { tv_sec: 0, tv_nsec: 0 }) {
                        break;
                    }
                }
            }
            Err(error) => panic!("the server broke off: {error}"),
        }
        assert!(written < LENGTH, "the server keeps without bound what its client does not read");
    }
    // Another client is served meanwhile.
    ping(&mut server.connect());

    client.set_nonblocking(false).expect("it can be set");
    let received = exchange(&mut client, &sent[written..]);
    assert!(received == sent, "{} of {LENGTH} bytes came back, or others", received.len());
    let line = server.stop_cleanly();
    assert!(number_before("times, accepting", &line) > 0, "reading was never paused: {line}");
}

#[test]
fn a_half_closed_client_gets_the_rest_and_then_the_end() {
    let server = Server::start(&["--mode", "raw"]);
    for length in [0, 1, 65_536, 65_537, 3_000_000] {
        let mut client = server.connect();
        let sent = pattern(2, length);
        assert!(exchange(&mut client, &sent) == sent, "{length} bytes");
    }
    assert_eq!(number_before("broken off", &server.stop_cleanly()), 0);
}

#[test]
fn resets_do_not_harm_the_server() {
    const RESETS: u64 = 50;
    // There is room for the witness and one more: the next client waits until the server has seen
    // the end of the one before.
    let server = Server::start(&["--mode", "raw", "--connections", "2"]);
    let mut witness = server.connect();
    ping(&mut witness);
    for _ in 0..RESETS {
        let mut client = server.connect();
        ping(&mut client);
        // This option makes closing discard unsent bytes and reset the connection (socket(7)).
        sockopt::set_socket_linger(&client, Some(Duration::ZERO)).expect("it can be set");
        drop(client);
        ping(&mut witness);
    }
    ping(&mut server.connect());
    let line = server.stop_cleanly();
    assert_eq!(number_before("connections", &line), RESETS + 2);
    assert_eq!(number_before("broken off", &line), RESETS);
}

#[test]
fn no_more_connections_than_allowed_are_served_at_once() {
    const CLIENTS: usize = 12;
    let server = Server::start(&["--mode", "raw", "--connections", "3"]);
    let clients: Vec<TcpStream> = (0..CLIENTS).map(|_| server.connect()).collect();
    for mut client in clients {
        // In the order of their arrival. The end of each lets a waiting one in.
        ping(&mut client);
    }
    let line = server.stop_cleanly();
    assert_eq!(number_before("connections", &line), CLIENTS as u64);
    assert_eq!(number_before("at most at once", &line), 3);
}

#[test]
fn without_descriptors_accepting_pauses_until_a_connection_closes() {
    let server = Server::of(windlass_under_ulimit(
        "-n 32",
        &["serve", "--mode", "raw", "--listen", "127.0.0.1:0", "--connections", "1000"],
    ));
    let clients: Vec<TcpStream> = (0..60).map(|_| server.connect()).collect();
    server.wait_for_error("accepting is paused: out of file descriptors");
    for mut client in clients {
        ping(&mut client);
    }
    let line = server.stop_cleanly();
    assert_eq!(number_before("connections", &line), 60);
    let at_once = number_before("at most at once", &line);
    assert!((2..32).contains(&at_once), "{line}");
}

#[test]
fn without_descriptors_accepting_resumes_by_itself_when_there_are_some_again() {
    let server = Server::start(&["--mode", "raw", "--connections", "1000"]);
    // The hard limit is inherited from this process and does not change.
    let few = Rlimit { current: Some(32), maximum: getrlimit(Resource::Nofile).maximum };
    let before =
        prlimit(Some(server.pid()), Resource::Nofile, few).expect("a soft limit can be lowered");
    let mut clients: Vec<TcpStream> = (0..60).map(|_| server.connect()).collect();
    server.wait_for_error("accepting is paused: out of file descriptors");
    prlimit(Some(server.pid()), Resource::Nofile, before)
        .expect("the soft limit can be raised again");
    // No client disconnects, so only a timer makes the server try again.
    clients.iter_mut().for_each(ping);
    assert_eq!(number_before("at most at once", &server.stop_cleanly()), 60);
}

#[test]
fn the_default_limit_of_connections_fits_the_limit_of_open_files() {
    let server =
        Server::of(windlass_under_ulimit("-n 32", &["--mode", "raw", "--listen", "127.0.0.1:0"]));
    let mut clients: Vec<TcpStream> = (0..16).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(ping);
    let mut waiting = server.connect();
    drop(clients);
    ping(&mut waiting);
    assert_eq!(number_before("at most at once", &server.stop_cleanly()), 16);
}

#[test]
fn a_signal_stops_it_cleanly_with_connections_open() {
    for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
        let arguments =
            ["serve", "--listen", "127.0.0.1:0", "--mode", "raw", "--drain-timeout", "0"];
        let server = Server::of(windlass(&arguments));
        let mut client = server.connect();
        ping(&mut client);
        let (status, line) = server.stop(signal);
        assert_eq!(status.code(), Some(0), "{line}");
        assert!(line.starts_with(&format!("stopped by {name}: 1 connections")), "{line}");
        assert_eq!(client.read(&mut [0; 8]).expect("the connection was closed in order"), 0);
    }
}

#[test]
fn the_connection_limit_warning_names_the_option_to_raise() {
    for mode in ["raw", "echo"] {
        let server = Server::start(&["--mode", mode, "--connections", "2"]);
        let _clients: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
        let line = server.wait_for_error("connection limit 2 reached");
        assert!(line.contains("WARN") && line.contains("--connections"), "{line}");
        let line = server.stop_cleanly();
        assert!(number_before("times, on", &line) > 0, "{line}");
        assert!(line.contains("connection limit reached"), "{line}");
    }
}

#[test]
fn the_log_says_things_plainly() {
    let server = Server::of(windlass(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--log-level",
        "debug",
        "--mode",
        "chat",
        "--drain-timeout",
        "60",
    ]));
    let mut lines = Vec::new();
    for path in ["/room/lobby", "/echo"] {
        let mut client = server.connect();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
             Connection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        client.write_all(request.as_bytes()).expect("the server reads");
        lines.push(server.wait_for_error(" open "));
        // A Close frame without a code.
        client.write_all(&[0x88, 0x80, 0, 0, 0, 0]).expect("the server reads");
        lines.push(server.wait_for_error(" closed "));
    }
    kill_process(server.pid(), Signal::TERM).expect("it runs");
    lines.push(server.wait_for_error(" ending "));
    lines.push(server.wait_for_error(" stopped "));
    for (line, part) in lines.iter().zip([
        "room=/room/lobby",
        "reason=closed by the peer",
        "room=/echo",
        "reason=closed by the peer",
        "signal=SIGTERM shutdown=graceful",
        "stopped_by=SIGTERM",
    ]) {
        assert!(line.contains(part), "{part} in {line}");
    }
}

#[test]
fn an_address_in_use_is_named() {
    let occupied = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = occupied.local_addr().expect("it has an address").to_string();
    let output = windlass(&["serve", "--listen", &address]).output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains(&format!("cannot listen on {address}: address already in use")),
        "{errors}"
    );
    assert!(output.stdout.is_empty());
}

/// Issue 13: the sockets were taken after the program had opened descriptors of its own. A number
/// that was not passed was then one of those.
#[test]
fn sockets_from_the_service_manager_are_taken_before_anything_is_opened() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let mut command = Command::new("sh");
    // Two sockets are announced, and one exists.
    let script = "LISTEN_PID=$$ LISTEN_FDS=2 exec \"$0\" \"$@\" 3<&0 4<&- </dev/null";
    command
        .args(["-c", script, env!("CARGO_BIN_EXE_windlass")])
        .stdin(Stdio::from(OwnedFd::from(listener)));
    let output = with_arguments(command, &["serve"]).output().expect("there is a shell");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("descriptor 4 of LISTEN_FDS is not open"), "{errors}");
}

/// Otherwise they would share connections and rooms without an error (issue 13).
#[test]
fn a_second_server_on_the_address_is_refused_with_several_workers_too() {
    for (first, second) in [("2", "2"), ("1", "2"), ("2", "1")] {
        let server = Server::start(&["--workers", first]);
        let address = server.address.to_string();
        let mut command = windlass(&["serve", "--listen", &address, "--workers", second]);
        let mut refused = Running(command.stderr(Stdio::piped()).spawn().expect("it starts"));
        assert_eq!(refused.wait().code(), Some(1), "{first} and {second} workers");
        let mut errors = String::new();
        refused.0.stderr.take().expect("piped").read_to_string(&mut errors).expect("it is text");
        assert!(
            errors.contains(&format!("cannot listen on {address}: address already in use")),
            "{errors}"
        );
        server.stop_cleanly();
    }
}

#[test]
fn the_chosen_backend_serves_and_is_named() {
    for backend in ["epoll", "poll"] {
        serves_and_is_named(backend);
    }
    let server = Server::start(&["--mode", "raw", "--backend", "auto"]);
    let (_, line) = server.stop(Signal::TERM);
    assert!(line.ends_with(", on epoll"), "what is at work is named: {line}");
}

#[test]
fn a_chosen_ring_serves_and_is_named() {
    if rings::are_to_be_had("a_chosen_ring_serves_and_is_named") {
        serves_and_is_named("uring");
    }
}

/// The kernel releases the ring, and with it the socket, after the process has ended.
#[test]
fn a_server_on_a_ring_that_was_killed_can_be_started_again_at_once() {
    if !rings::are_to_be_had("a_server_on_a_ring_that_was_killed_can_be_started_again_at_once") {
        return;
    }
    let mut address = "127.0.0.1:0".to_owned();
    for mode in ["raw", "echo", "raw", "echo", "raw"] {
        let arguments = [
            "serve",
            "--listen",
            &address,
            "--mode",
            mode,
            "--backend",
            "uring",
            "--drain-timeout",
            "0",
        ];
        let server = Server::of(windlass(&arguments));
        address = server.address.to_string();
        let client = server.connect();
        server.kill();
        drop(client);
    }
}

#[test]
fn an_address_that_stays_in_use_is_named_on_a_ring_too() {
    if !rings::are_to_be_had("an_address_that_stays_in_use_is_named_on_a_ring_too") {
        return;
    }
    let occupied = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = occupied.local_addr().expect("it has an address").to_string();
    let output = windlass(&["serve", "--listen", &address, "--backend", "uring"])
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains(&format!("cannot listen on {address}: address already in use")),
        "{errors}"
    );
}

fn serves_and_is_named(backend: &str) {
    for mode in ["raw", "echo"] {
        let server = Server::start(&["--mode", mode, "--backend", backend]);
        let (status, line) = server.stop(Signal::TERM);
        assert!(status.success() && line.ends_with(&format!(", on {backend}")), "{line}");
    }
    let server = Server::start(&["--mode", "raw", "--backend", backend]);
    ping(&mut server.connect());
    server.stop(Signal::TERM);
}

#[test]
fn where_rings_are_forbidden_auto_serves_and_a_demanded_ring_is_an_error_that_says_why() {
    for mode in ["raw", "echo"] {
        let args = ["serve", "--listen", "127.0.0.1:0", "--mode", mode, "--backend", "auto"];
        let server = Server::of(without_rings(windlass(&args)));
        let (status, line) = server.stop(Signal::TERM);
        assert!(status.success() && line.ends_with(", on epoll"), "{line}");
        let args = ["serve", "--listen", "127.0.0.1:0", "--mode", mode, "--backend", "uring"];
        let output = without_rings(windlass(&args)).output().expect("the program starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("io_uring is forbidden or absent here"), "{errors}");
    }
}

#[test]
fn a_preferred_ring_is_replaced_by_epoll_where_rings_are_forbidden() {
    let has_rings = rings::refusal().is_none();
    for mode in ["raw", "echo"] {
        let args = ["serve", "--listen", "127.0.0.1:0", "--mode", mode];
        let args = [&args[..], &["--backend", "uring-or-epoll"]].concat();
        let server = Server::of(without_rings(windlass(&args)));
        let line = server.wait_for_error("a worker has no io_uring, and uses epoll instead");
        assert!(line.contains("io_uring is forbidden or absent here"), "{line}");
        let (status, line) = server.stop(Signal::TERM);
        assert!(status.success() && line.ends_with(", on epoll"), "{line}");
        if has_rings {
            let (status, line) = Server::of(windlass(&args)).stop(Signal::TERM);
            assert!(status.success() && line.ends_with(", on uring"), "{line}");
        }
    }
}

#[test]
fn a_load_run_tells_why_it_had_no_ring() {
    let server = Server::start(&["--mode", "echo"]);
    let url = format!("ws://{}/echo", server.address);
    for protocol in [&[][..], &["--http2"]] {
        let args = ["load", &url, "--messages", "1", "--backend", "uring-or-epoll"];
        let command = windlass(&[&args, protocol].concat());
        let output = without_rings(command).output().expect("the program starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        // The server has no WebSockets over HTTP/2.
        assert_eq!(output.status.success(), protocol.is_empty(), "{errors}");
        assert!(
            errors.contains(
                "a worker has no io_uring, and uses epoll instead: io_uring is forbidden"
            ),
            "{errors}"
        );
    }
}

#[test]
fn wrong_arguments_are_refused_with_status_2() {
    for wrong in [
        &["serve", "--listen", "nowhere"][..],
        &["--connections", "none"],
        &["no-such-command"],
        &["--backend", "select"],
        &["load", "tcp://127.0.0.1:1", "--backend", ""],
    ] {
        let output = windlass(wrong).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: "), "{wrong:?}");
    }
}

#[test]
fn a_buffer_that_cannot_hold_the_longest_message_is_refused_by_the_options_names() {
    let small = &["--listen", "127.0.0.1:0", "--message-max", "5000", "--buffer", "5009"][..];
    let output = windlass(&[&["serve"], small].concat()).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("--buffer 5009 ")
            && text.contains("--message-max 5000 ")
            && text.contains("raise --buffer"),
        "{text}"
    );
    // A byte stream has no messages.
    Server::start(&[&["--mode", "raw"], &small[2..]].concat()).stop_cleanly();
}

#[test]
fn it_stops_cleanly_without_a_reader_of_its_output() {
    let mut command = windlass(&["serve", "--listen", "127.0.0.1:0"]);
    let mut running = Running(
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the program starts"),
    );
    let mut output = running.0.stdout.take().expect("piped");
    output.read_exact(&mut [0; 13]).expect("the line comes");
    drop(output);
    kill_process(running.pid(), Signal::TERM).expect("it still runs");
    assert_eq!(running.wait().code(), Some(0));
}

#[test]
fn refusals_and_peers_are_in_the_log() {
    const UPGRADE: &str = "Host: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                       Sec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let server = Server::start(&["--mode", "echo", "--log-level", "debug", "--log", "json"]);
    let ask = |more: &str| {
        let mut client = server.connect();
        client
            .write_all(format!("GET / HTTP/1.1\r\n{UPGRADE}{more}\r\n").as_bytes())
            .expect("the server reads");
        let local = client.local_addr().expect("it is connected");
        (client, format!(r#""peer":"{local}""#))
    };
    let (_evil, peer) = ask("Origin: https://evil.example\r\n");
    let line = server.wait_for_error(&peer);
    for part in
        [r#""message":"refused""#, r#""status":403"#, "https://evil.example", r#""level":"INFO""#]
    {
        assert!(line.contains(part), "{part} in {line}");
    }
    let (_good, peer) = ask("");
    let line = server.wait_for_error(&peer);
    assert!(line.contains(r#""message":"open""#), "{line}");
    server.stop_cleanly();
}

#[cfg(not(feature = "cluster"))]
#[test]
fn a_program_without_clusters_says_how_to_build_one_with_them() {
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--cluster", "nats://127.0.0.1:1"];
    let output = windlass(&arguments).stdin(Stdio::null()).output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("--features cluster"), "{errors}");
}
