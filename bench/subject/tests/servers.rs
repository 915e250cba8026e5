//! Runs every case of the suites that measure servers with small parameters, with the client and
//! the servers of this workspace.

use windlass_testkit::rings;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use windlass_bench_driver::load::LoadCase;
use windlass_bench_driver::protocol::{Case, Content, Outcome, Reply, Request, ServerInfo};
use windlass_bench_driver::server::listeners;
use windlass_bench_driver::tls::{TlsCase, TlsHandshake};
use windlass_bench_driver::websocket_cases::WebsocketCase;

const FLOOR_RING: &str = env!("CARGO_BIN_EXE_bench-server-floor-ring");
const FLOOR: &str = env!("CARGO_BIN_EXE_bench-server-floor");
const WINDLASS: &str = env!("CARGO_BIN_EXE_bench-server-windlass");
const TOKIO_ECHO: &str = env!("CARGO_BIN_EXE_bench-server-tokio-echo");
const WEBSOCKET: &str = env!("CARGO_BIN_EXE_bench-server-websocket");
const WEBSOCKET_TASK: &str = env!("CARGO_BIN_EXE_bench-server-websocket-task");
const WEBSOCKET_AXUM: &str = env!("CARGO_BIN_EXE_bench-server-websocket-axum");
const WEBSOCKET_HTTP2: &str = env!("CARGO_BIN_EXE_bench-server-websocket-http2");
const TOKIO_TUNGSTENITE: &str = env!("CARGO_BIN_EXE_bench-server-tokio-tungstenite");
const RUSTLS: &str = env!("CARGO_BIN_EXE_bench-server-rustls");

/// A program that ends with the test.
struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        let mut child = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program is built");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, input, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    fn ask(&mut self, request: &Request) -> Reply {
        writeln!(self.input, "{}", serde_json::to_string(request).unwrap()).unwrap();
        serde_json::from_str(&self.line()).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Starts a server for a case, and a client that connects to it.
fn connect(program: &str, case: &Case) -> (Running, Running, Reply) {
    connect_with(program, &[], case)
}

/// The same, with more arguments for the server.
fn connect_with(program: &str, more: &[&str], case: &Case) -> (Running, Running, Reply) {
    let case = case.workload();
    let mode = if matches!(case, Case::Publish { .. }) { "broadcast" } else { "echo" };
    let deflate: &[&str] = if let Case::Messages { deflate: true, .. }
    | Case::IdleConnection { deflate: true, .. } = case
    {
        &["--deflate"]
    } else {
        &[]
    };
    let work_us = match case {
        Case::BurstOfWork { work_us, .. } | Case::Load(LoadCase::BurstOfOne { work_us, .. }) => {
            *work_us
        }
        _ => 0,
    };
    let work = ["--work-us", &work_us.to_string()];
    let is_secure = match case {
        Case::Tls(case) => case.is_secure(),
        Case::WebsocketOnly(case) => case.is_secure(),
        _ => false,
    };
    let tls: &[&str] = if is_secure { &["--tls"] } else { &[] };
    let mut server = Running::start(program, &[&[mode], deflate, tls, &work, more].concat());
    let said: ServerInfo = serde_json::from_str(&server.line()).unwrap();
    let client = match case {
        Case::WebsocketOnly(WebsocketCase::Connect { .. }) => {
            env!("CARGO_BIN_EXE_bench-websocket-connect")
        }
        _ => env!("CARGO_BIN_EXE_bench-client"),
    };
    let mut client = Running::start(client, &[]);
    let connected = client.ask(&Request::Connect { case: case.clone(), server: said });
    (server, client, connected)
}

/// The client compares every byte, so an outcome means that they were right.
fn passes(program: &str, case: &Case) -> Outcome {
    passes_with(program, &[], case)
}

fn passes_with(program: &str, more: &[&str], case: &Case) -> Outcome {
    let (_server, mut client, connected) = connect_with(program, more, case);
    assert!(matches!(connected, Reply::Ready), "{case:?}: {connected:?}");
    let mut outcome = Outcome::default();
    for rounds in [1, 300] {
        match client.ask(&Request::Slice { rounds }) {
            Reply::Slice(measured) => outcome = measured,
            reply => panic!("{case:?}: {reply:?}"),
        }
    }
    assert!(outcome.units >= 300, "{case:?}: {outcome:?}");
    outcome
}

fn messages(content: Content, bytes: usize, connections: usize, depth: usize) -> Case {
    Case::Messages { content, bytes, connections, depth, deflate: false }
}

fn echo_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for content in [Content::Binary, Content::Ascii, Content::TwoByte] {
        for bytes in [1, 20, 125, 126, 1_024, 16_384, 65_535, 65_536] {
            cases.push(messages(content, bytes, 3, 1));
        }
        cases.extend([
            messages(content, 64, 3, 16),
            messages(content, 1_024, 2, 128),
            messages(content, 30_000, 2, 16),
        ]);
    }
    cases
}

#[test]
fn the_floor_echoes_what_it_receives() {
    for case in echo_cases() {
        let outcome = passes(FLOOR, &case);
        assert!(
            outcome.gauges["server_cpu_ns"] > 0.0 && outcome.gauges["client_cpu_share"] > 0.0,
            "{case:?}: {outcome:?}"
        );
    }
}

#[test]
fn the_floor_on_a_ring_echoes_and_publishes_what_it_receives() {
    if !rings::are_to_be_had("the_floor_on_a_ring_echoes_and_publishes_what_it_receives") {
        return;
    }
    for case in echo_cases() {
        passes(FLOOR_RING, &case);
    }
    for (receivers, bytes, outstanding) in
        [(1, 64, 1), (7, 64, 16), (20, 1_024, 16), (5, 10_000, 3)]
    {
        passes(FLOOR_RING, &Case::Publish { receivers, bytes, outstanding });
    }
}

#[test]
fn windlass_echoes_what_it_receives() {
    for case in echo_cases() {
        passes(WINDLASS, &case);
    }
}

fn deflated(bytes: usize) -> Case {
    Case::Messages { content: Content::Json, bytes, connections: 3, depth: 2, deflate: true }
}

#[test]
fn windlass_compresses_and_inflates() {
    for bytes in [128, 1_024, 16_384] {
        passes(WINDLASS, &deflated(bytes));
    }
}

#[test]
fn a_server_that_echoes_bytes_is_checked_by_the_bytes() {
    for (bytes, depth) in [(20, 1), (20, 16), (1_024, 1), (30_000, 16), (70_000, 1)] {
        passes(TOKIO_ECHO, &messages(Content::Binary, bytes, 3, depth));
    }
    passes(TOKIO_ECHO, &deflated(4_096));
    passes(TOKIO_ECHO, &Case::Upgrade { parallel: 4 });
}

#[test]
fn windlass_tokio_tungstenite_serves_what_it_is_compared_in() {
    for case in echo_cases() {
        passes(TOKIO_TUNGSTENITE, &case);
    }
    for case in
        [Case::Upgrade { parallel: 4 }, Case::Publish { receivers: 7, bytes: 64, outstanding: 16 }]
    {
        passes(TOKIO_TUNGSTENITE, &Case::Websocket { workload: Box::new(case) });
    }
}

#[test]
fn windlass_websocket_serves_every_workload_on_two_runtimes() {
    for program in [WEBSOCKET, WEBSOCKET_TASK] {
        for case in echo_cases() {
            passes(program, &case);
        }
        for case in [
            deflated(4_096),
            Case::Upgrade { parallel: 4 },
            Case::Publish { receivers: 7, bytes: 64, outstanding: 16 },
            Case::Publish { receivers: 5, bytes: 10_000, outstanding: 3 },
        ] {
            passes(program, &Case::Websocket { workload: Box::new(case) });
        }
        passes_with(program, &["--owned"], &messages(Content::Binary, 1_024, 2, 16));
    }
}

#[test]
fn windlass_websocket_echoes_in_axum_and_over_http2() {
    for (bytes, depth) in [(1, 1), (20, 1), (20, 16), (900, 16), (16_000, 1)] {
        let case = WebsocketCase::AxumEcho { bytes, connections: 3, depth };
        passes(WEBSOCKET_AXUM, &Case::WebsocketOnly(case));
        let case = WebsocketCase::Http2Echo { bytes, connections: 2, streams: 5, depth };
        passes(WEBSOCKET_HTTP2, &Case::WebsocketOnly(case));
    }
}

#[test]
fn a_server_without_websockets_over_http2_fails_the_case() {
    let case = WebsocketCase::Http2Echo { bytes: 20, connections: 1, streams: 1, depth: 1 };
    let (_server, _client, connected) = connect(WINDLASS, &Case::WebsocketOnly(case));
    assert!(matches!(connected, Reply::Failed { .. }), "{connected:?}");
}

#[test]
fn a_client_by_url_makes_the_handshake_of_its_case() {
    for handshake in [TlsHandshake::None, TlsHandshake::Full, TlsHandshake::Resumed] {
        let case = Case::WebsocketOnly(WebsocketCase::Connect { handshake, parallel: 4 });
        let outcome = passes(RUSTLS, &case);
        assert!(outcome.allocations > 0 && outcome.gauges["client_cpu_ns"] > 0.0, "{outcome:?}");
    }
}

#[test]
fn without_compression_there_is_no_case_with_it() {
    let (_server, _client, connected) = connect(FLOOR, &deflated(128));
    assert!(matches!(connected, Reply::Failed { .. }), "{connected:?}");
}

#[test]
fn all_receivers_get_what_is_published() {
    for (receivers, bytes, outstanding) in
        [(1, 64, 1), (7, 64, 16), (20, 1_024, 16), (5, 10_000, 3)]
    {
        for program in [FLOOR, WINDLASS] {
            passes(program, &Case::Publish { receivers, bytes, outstanding });
        }
    }
}

#[test]
fn answers_to_a_burst_take_as_long_as_the_work() {
    let name = "answers_to_a_burst_take_as_long_as_the_work";
    let has_rings = rings::are_to_be_had(name);
    let case = Case::BurstOfWork { connections: 30, work_us: 100 };
    for program in [FLOOR, WINDLASS].into_iter().chain(has_rings.then_some(FLOOR_RING)) {
        let outcome = passes(program, &case);
        // Half of the messages are worked on before the median answer, and nearly all before the
        // last.
        let [median, last] = ["latency_p50_us", "latency_p99_us"].map(|name| outcome.gauges[name]);
        assert!(median >= 1_400.0 && last >= 2_900.0, "{program}: {outcome:?}");
    }
}

#[test]
fn many_connections_and_several_workers_echo() {
    for program in [FLOOR, WINDLASS] {
        passes(program, &Case::Load(LoadCase::Connections { connections: 30 }));
    }
    let case = Case::Load(LoadCase::Workers { workers: 3, connections: 30 });
    for program in [WINDLASS, TOKIO_ECHO] {
        passes_with(program, &["--workers", "3"], &case);
        // The frame of `TOKIO_ECHO` is that of all peers on tokio.
        let mut server = Running::start(program, &["echo", "--workers", "3"]);
        let said: ServerInfo = serde_json::from_str(&server.line()).unwrap();
        assert_eq!(listeners(said.address).unwrap(), 3, "one for each worker of {program}");
    }
}

#[test]
fn each_message_of_a_burst_is_worked_on() {
    let case = Case::Load(LoadCase::BurstOfOne { burst: 20, others: 2, work_us: 100 });
    for program in [FLOOR, WINDLASS] {
        let outcome = passes(program, &case);
        assert!(outcome.ns >= outcome.units * 100_000, "{program}: {outcome:?}");
        // The two others are worked on before or after.
        assert!(outcome.gauges["latency_p50_us"] >= 100.0, "{program}: {outcome:?}");
    }
}

#[test]
fn beside_a_hot_connection_messages_come_back_at_their_rate() {
    let hot = |depth| Case::Load(LoadCase::HotConnection { depth, bytes: 64, quiet: 3 });
    for program in [FLOOR, WINDLASS] {
        let alone = passes(program, &hot(0));
        // The last of 300 messages is due then.
        assert!(alone.ns as f64 >= 299.0 * 1e9 / alone.gauges["due_per_s"], "{alone:?}");
        assert_eq!(alone.units, 300);
        assert!(passes(program, &hot(16)).units > 300);
    }
}

#[test]
fn messages_are_due_at_a_share_of_the_rate_that_the_server_reaches() {
    for program in [FLOOR, WINDLASS] {
        let case = Case::Load(LoadCase::AtRate { per_cent: 50, connections: 3 });
        let outcome = passes(program, &case);
        assert_eq!(outcome.units, 300);
        assert!(outcome.ns as f64 >= 299.0 * 1e9 / outcome.gauges["due_per_s"], "{outcome:?}");
        let latencies = ["latency_p50_us", "latency_p99_us", "latency_p999_us"];
        assert!(latencies.map(|name| outcome.gauges[name]).is_sorted(), "{outcome:?}");
    }
}

#[test]
fn a_start_is_measured_until_the_first_answer() {
    for program in [FLOOR, WINDLASS] {
        let (_server, mut client, connected) = connect(program, &Case::Load(LoadCase::FirstAnswer));
        assert!(matches!(connected, Reply::Ready), "{connected:?}");
        match client.ask(&Request::Slice { rounds: 1 }) {
            Reply::Slice(outcome) => {
                assert!(outcome.ns > 0 && outcome.gauges["server_cpu_ns"] > 0.0, "{outcome:?}");
                assert!(outcome.gauges["rss_bytes_after_start"] > 1e5, "{outcome:?}");
            }
            reply => panic!("{reply:?}"),
        }
    }
}

#[test]
fn connections_come_and_go() {
    for program in [FLOOR, WINDLASS] {
        passes(program, &Case::Upgrade { parallel: 4 });
    }
}

#[test]
fn messages_over_tls_come_back() {
    for (bytes, connections, depth) in [(20, 3, 1), (1_024, 2, 16), (16_384, 3, 1), (40_000, 2, 2)]
    {
        for program in [RUSTLS, WINDLASS] {
            let case = TlsCase::TlsMessages { bytes, connections, depth };
            passes(program, &Case::Tls(case));
        }
    }
}

#[test]
fn tls_connections_come_and_go() {
    for handshake in [TlsHandshake::None, TlsHandshake::Full, TlsHandshake::Resumed] {
        for program in [RUSTLS, WINDLASS] {
            passes(program, &Case::Tls(TlsCase::TlsUpgrade { handshake, parallel: 4 }));
        }
    }
}

#[test]
fn beside_a_flood_of_handshakes_messages_come_back() {
    for program in [RUSTLS, WINDLASS] {
        let case = Case::Tls(TlsCase::TlsFlood { connections: 3, handshakes: 8 });
        let outcome = passes(program, &case);
        assert!(outcome.gauges["handshakes_per_s"] > 0.0, "{outcome:?}");
        assert!(outcome.gauges["latency_p99_us"] > 0.0, "{outcome:?}");
    }
}

#[test]
fn idle_connections_take_memory_that_can_be_seen() {
    let connections = 300;
    let tls = |bytes, tls| Case::Tls(TlsCase::TlsIdleConnection { connections, bytes, tls });
    let plain = Case::IdleConnection { connections, deflate: false };
    for (program, case) in [
        (FLOOR, plain.clone()),
        (WINDLASS, plain.clone()),
        (TOKIO_ECHO, plain),
        (TOKIO_ECHO, Case::IdleConnection { connections, deflate: true }),
        (WEBSOCKET, Case::IdleConnection { connections, deflate: true }),
        (WINDLASS, tls(64, true)),
        (WINDLASS, tls(64, false)),
        (RUSTLS, tls(16_384, true)),
    ] {
        let (_server, mut client, connected) = connect(program, &case);
        assert!(matches!(connected, Reply::Ready), "{connected:?}");
        match client.ask(&Request::Slice { rounds: 1 }) {
            Reply::Slice(outcome) => {
                let bytes = outcome.gauges["rss_bytes_per_connection"];
                // Pages that are given back meanwhile count too.
                assert!((-10_000.0..100_000.0).contains(&bytes), "{bytes}");
            }
            reply => panic!("{reply:?}"),
        }
    }
}

/// `windlass-bench` ends servers by SIGTERM, while they wait for the next event. valgrind does not
/// interrupt io_uring_enter(2) for a signal.
#[test]
fn servers_under_valgrind_end_at_sigterm() {
    let name = "servers_under_valgrind_end_at_sigterm";
    if !Command::new("valgrind").arg("--version").output().is_ok_and(|out| out.status.success()) {
        let line = format!("skipped here: {name}: valgrind is not installed\n");
        return std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    let has_rings = rings::are_to_be_had(name);
    let servers = [
        (FLOOR, "epoll"),
        (WINDLASS, "epoll"),
        (WINDLASS, "poll"),
        (FLOOR_RING, "uring"),
        (WINDLASS, "uring"),
    ];
    for (program, backend) in servers.into_iter().filter(|server| has_rings || server.1 != "uring")
    {
        let chosen: &[&str] = if program == WINDLASS { &["--backend", backend] } else { &[] };
        let arguments = [&["--tool=none", "-q", program, "echo"], chosen].concat();
        let case = messages(Content::Binary, 64, 2, 1);
        let mut server = Running::start("valgrind", &arguments);
        let said: ServerInfo = serde_json::from_str(&server.line()).unwrap();
        let process = said.process.to_string();
        let mut client = Running::start(env!("CARGO_BIN_EXE_bench-client"), &[]);
        let connected = client.ask(&Request::Connect { case: case.clone(), server: said });
        assert!(matches!(connected, Reply::Ready), "{program} on {backend}: {connected:?}");
        // The server sends its last answer when it begins to wait.
        let slice = client.ask(&Request::Slice { rounds: 1 });
        assert!(matches!(slice, Reply::Slice(_)), "{program} on {backend}: {slice:?}");
        assert!(Command::new("kill").arg("-TERM").arg(&process).status().unwrap().success());
        let (sender, ended) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(server.child.wait().is_ok()));
            let in_time = ended.recv_timeout(Duration::from_secs(10));
            // This fails if the server has ended, and otherwise lets the other thread end.
            let _ = Command::new("kill").arg("-KILL").arg(&process).stderr(Stdio::null()).status();
            assert_eq!(in_time, Ok(true), "{program} on {backend}");
        });
    }
}

/// Length of a client's frame with 20 bytes.
const FRAME_BYTES: usize = 26;

/// A server in this process: accepts a connection and the upgrade, and passes the connection on.
fn upgraded(serve: impl FnOnce(TcpStream) + Send + 'static) -> ServerInfo {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let (mut request, mut piece) = (Vec::new(), [0; 1024]);
        while !request.ends_with(b"\r\n\r\n") {
            let count = socket.read(&mut piece).unwrap();
            request.extend_from_slice(&piece[..count]);
        }
        let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                      Connection: Upgrade\r\n\
                      Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        socket.write_all(answer.as_bytes()).unwrap();
        serve(socket);
    });
    ServerInfo::new(address, "")
}

/// Returns the answer to a frame of 20 bytes.
fn answer(frame: &[u8]) -> Vec<u8> {
    let key = frame[2..6].iter().cycle();
    let payload = frame[6..].iter().zip(key).map(|(byte, key)| byte ^ key);
    [0x82, 20].into_iter().chain(payload).collect()
}

#[test]
fn a_wrong_byte_is_noticed() {
    let mut client = Running::start(env!("CARGO_BIN_EXE_bench-client"), &[]);
    let server = upgraded(|mut socket| {
        let mut frame = [0; FRAME_BYTES];
        while socket.read_exact(&mut frame).is_ok() {
            let mut answer = answer(&frame);
            *answer.last_mut().unwrap() ^= 1;
            // The client may have disconnected.
            let _ = socket.write_all(&answer);
        }
    });
    let case = messages(Content::Binary, 20, 1, 1);
    let connected = client.ask(&Request::Connect { case, server });
    assert!(matches!(connected, Reply::Ready), "{connected:?}");
    match client.ask(&Request::Slice { rounds: 1 }) {
        Reply::Failed { reason } => assert!(reason.starts_with("wrong bytes"), "{reason}"),
        reply => panic!("{reply:?}"),
    }
}

/// The server is silent until all messages have come. With coordinated omission the client would
/// not send the second one before the first answer.
#[test]
fn a_latency_counts_from_when_the_message_was_due() {
    const MESSAGES: usize = 20;
    let mut client = Running::start(env!("CARGO_BIN_EXE_bench-client"), &[]);
    let server = upgraded(|mut socket| {
        let mut frames = [0; MESSAGES * FRAME_BYTES];
        socket.read_exact(&mut frames).unwrap();
        let answers: Vec<_> = frames.chunks_exact(FRAME_BYTES).map(answer).collect();
        socket.write_all(&answers.concat()).unwrap();
    });
    let case = Case::Load(LoadCase::HotConnection { depth: 0, bytes: 64, quiet: 1 });
    let connected = client.ask(&Request::Connect { case, server });
    assert!(matches!(connected, Reply::Ready), "{connected:?}");
    match client.ask(&Request::Slice { rounds: MESSAGES as u64 }) {
        Reply::Slice(outcome) => {
            let spacing_us = 1e6 / outcome.gauges["due_per_s"];
            // The two first have waited for the last, and half of them for a half.
            let [half, late] =
                ["latency_p50_us", "latency_p99_us"].map(|name| outcome.gauges[name]);
            assert!(late >= 18.0 * spacing_us && half >= 9.0 * spacing_us, "{outcome:?}");
        }
        reply => panic!("{reply:?}"),
    }
}
