//! `windlass serve --admin` as an operator sees it, and the dashboard for its metrics.

use windlass_testkit::{exposition, ptrace::StoppedThread, waiting::until};

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::PathBuf,
    process::Stdio,
};

use rustix::process::{Signal, kill_process};

use crate::harness::{Server, WAIT_MAX, windlass};
use exposition::Exposition;

const DASHBOARD: &str = include_str!("../../../../docs/grafana-dashboard.json");

/// Starts a server with an admin listener. Returns the address of that, as the log says it.
fn start(admin: &str, arguments: &[&str]) -> (Server, String) {
    let all = ["serve", "--listen", "127.0.0.1:0", "--drain-timeout", "0", "--admin", admin];
    // It prints the address of the admin listener before its own.
    let server = Server::of_several(windlass(&[&all, arguments].concat()), 2);
    let line = server.wait_for_error("admin listener");
    let (_, address) = line.split_once("address=").expect("the line has it");
    (server, address.trim_matches('"').to_owned())
}

fn connect(address: &str) -> TcpStream {
    let place = address.trim_start_matches("http://").trim_end_matches('/');
    let socket = TcpStream::connect(place).expect("it listens");
    socket.set_read_timeout(Some(WAIT_MAX)).expect("a timeout can be set");
    socket
}

/// Returns the whole response.
fn get(mut socket: impl Read + Write, path: &str, lines: &str) -> String {
    let head =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n");
    socket.write_all(head.as_bytes()).expect("it reads");
    let mut response = String::new();
    socket.read_to_string(&mut response).expect("it answers");
    response
}

fn metrics_of(address: &str) -> Exposition {
    let response = get(connect(address), "/metrics", "");
    Exposition::parse(response.split_once("\r\n\r\n").expect("the head ends").1)
}

/// A file that is removed at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("windlass-admin-{name}-{}", std::process::id())))
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

#[test]
fn an_operator_reads_metrics_health_and_status() {
    let (server, address) = start("127.0.0.1:0", &["--workers", "2"]);
    let page = get(server.connect(), "/", "");
    assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
    assert!(get(connect(&address), "/healthz", "").ends_with("\r\n\r\nalive\n"));
    assert!(get(connect(&address), "/readyz", "").ends_with("\r\n\r\nready\n"));
    let status = get(connect(&address), "/status", "");
    let body = status.split_once("\r\n\r\n").expect("the head ends").1;
    let status: serde_json::Value = serde_json::from_str(body).expect("it is JSON");
    assert_eq!(status["state"], "ready");
    assert_eq!(status["workers"].as_array().map(Vec::len), Some(2));
    let metrics = metrics_of(&address);
    assert!(metrics.get("wire_bytes_total{direction=\"out\"}") >= page.len() as u64);
    assert_eq!(metrics.get("connections_opened_total"), 0);
    server.stop_cleanly();
    let place = address.trim_start_matches("http://").trim_end_matches('/');
    assert!(TcpStream::connect(place).is_err(), "the port is closed");
}

/// A load balancer needs time to notice that a server ends.
#[test]
fn after_a_signal_new_clients_are_served_while_readiness_has_ended() {
    // Longer than any wait: a second signal ends it.
    let (server, address) = start("127.0.0.1:0", &["--drain-delay", "3600"]);
    assert!(get(connect(&address), "/readyz", "").starts_with("HTTP/1.1 200 "));
    kill_process(server.pid(), Signal::TERM).expect("it runs");
    server.wait_for_error("ending signal=SIGTERM shutdown=graceful");
    assert!(get(connect(&address), "/readyz", "").starts_with("HTTP/1.1 503 "));
    assert!(get(connect(&address), "/healthz", "").starts_with("HTTP/1.1 200 "));
    assert!(get(server.connect(), "/", "").starts_with("HTTP/1.1 200 "));
    let (status, line) = server.stop(Signal::TERM);
    assert!(status.success() && line.starts_with("stopped by SIGTERM: "), "{line}");

    // After it the drain begins by itself.
    let (server, _) = start("127.0.0.1:0", &["--drain-delay", "1"]);
    kill_process(server.pid(), Signal::TERM).expect("it runs");
    server.wait_for_error("draining");
    let (status, line) = server.ended();
    assert!(status.success() && line.starts_with("stopped by SIGTERM: "), "{line}");
}

#[test]
fn a_unix_socket_goes_with_the_server() {
    let file = File::new("socket");
    let (server, address) = start(file.path(), &[]);
    assert_eq!(address, format!("unix:{}", file.path()));
    let socket = UnixStream::connect(&file.0).expect("it listens");
    assert!(get(socket, "/healthz", "").contains("alive"));
    server.stop_cleanly();
    assert!(!file.0.exists(), "the file is removed");
}

#[test]
fn elsewhere_a_token_from_a_file_is_needed() {
    let file = File::new("token");
    fs::write(&file.0, "a-token-in-a-file-1\n").expect("it can be written");
    let (server, address) = start("0.0.0.0:0", &["--admin-token-file", file.path()]);
    let port = address.trim_end_matches('/').rsplit(':').next().expect("it has a port").to_owned();
    let ask = |lines: &str| get(connect(&format!("127.0.0.1:{port}")), "/metrics", lines);
    assert!(ask("").starts_with("HTTP/1.1 401 "));
    let line = server.wait_for_error("refused by the admin listener");
    assert!(line.contains("status=401") && line.contains("suppressed=0"), "{line}");
    assert!(ask("Authorization: Bearer a-token-in-a-file-2\r\n").starts_with("HTTP/1.1 401 "));
    assert!(ask("Authorization: Bearer a-token-in-a-file-1\r\n").starts_with("HTTP/1.1 200 "));
    server.stop_cleanly();
    // Probes may have no token.
    let options = ["--admin-token-file", file.path(), "--admin-open-health"];
    let (server, address) = start("127.0.0.1:0", &options);
    assert!(get(connect(&address), "/readyz", "").starts_with("HTTP/1.1 200 "));
    assert!(get(connect(&address), "/connections", "").starts_with("HTTP/1.1 401 "));
    server.stop_cleanly();
}

#[test]
fn an_unsafe_or_impossible_listener_is_an_error() {
    let short = File::new("short");
    fs::write(&short.0, "short\n").expect("it can be written");
    for (arguments, expected) in [
        (&["--admin", "0.0.0.0:0"][..], "--admin-token-file"),
        (&["--admin", "9001"], "neither an IP address"),
        (&["--admin-token-file", "/x"], "needs --admin"),
        (&["--admin-open-health"], "needs --admin"),
        (&["--admin", "https://127.0.0.1:0"], "needs a certificate"),
        (&["--unix-mode", "660"], "--unix"),
        (&["--unix", "/x/y", "--unix-mode", "68"], "no octal mode"),
        (&["--admin", "127.0.0.1:0", "--mode", "raw"], "not available in mode raw"),
        (&["--admin", "127.0.0.1:0", "--admin-token-file", "/no/such"], "/no/such"),
        (&["--admin", "127.0.0.1:0", "--admin-token-file", short.path()], "at least 16"),
    ] {
        let all = [&["serve", "--listen", "127.0.0.1:0"], arguments].concat();
        let output = windlass(&all).stdin(Stdio::null()).output().expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(expected), "{arguments:?}: {errors}");
    }
}

#[test]
fn a_close_that_the_server_causes_is_logged() {
    let server = Server::start(&[]);
    let mut socket = server.connect();
    let head = "GET /echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
                Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket.write_all(head.as_bytes()).expect("it reads");
    // A frame without a mask.
    socket.write_all(&[0x81, 1, b'a']).expect("it reads");
    let line = server.wait_for_error("closed id=");
    assert!(line.contains("INFO") && line.contains("protocol violation"), "{line}");
    assert!(line.contains("suppressed=0"), "{line}");
    server.stop_cleanly();
}

/// Each metric that the dashboard names exists, and each metric is on the dashboard.
#[test]
fn the_dashboard_shows_the_metrics_that_there_are() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let expressions = panels.iter().flat_map(|panel| {
        let targets = panel["targets"].as_array().expect("each panel has targets");
        targets.iter().map(|target| target["expr"].as_str().expect("a text"))
    });
    let is_name = |byte: char| byte.is_ascii_lowercase() || byte == '_';
    let mut named: BTreeSet<String> = expressions
        .flat_map(|text| text.split(|byte| !is_name(byte)))
        .filter(|word| word.starts_with("windlass_") || word.starts_with("process_"))
        .map(|word| word.strip_suffix("_bucket").unwrap_or(word).to_owned())
        .collect();
    // A variable of the dashboard uses it.
    named.insert("windlass_build_info".to_owned());

    let file = |name: &str| {
        format!("{}/../tls/tests/certificates/localhost.{name}", env!("CARGO_MANIFEST_DIR"))
    };
    let (cert, key) = (file("pem"), file("key"));
    // Only with TLS a certificate expires.
    let arguments = ["--watchdog", "--tls-cert", &cert, "--tls-key", &key];
    let (server, address) = start("127.0.0.1:0", &arguments);
    // The first event gives the longest handler a value: plain HTTP is answered on this port too.
    get(server.connect(), "/", "");
    let metrics = metrics_of(&address);
    let there: BTreeSet<String> = metrics.families().into_iter().map(str::to_owned).collect();
    // They are there in a cluster only. A test of windlass-server compares them.
    named.retain(|name| !name.starts_with("windlass_cluster_"));
    assert_eq!(named, there);
    server.stop_cleanly();
}

/// The names of a process' threads.
fn threads(process: i32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let names =
        tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

#[test]
fn a_worker_that_is_stopped_makes_the_server_unhealthy() {
    let (server, address) = start("127.0.0.1:0", &["--workers", "2", "--stall-limit", "2"]);
    let names = ["wl-worker-0", "wl-worker-1", "wl-admin", "wl-waiter"];
    let process = server.pid().as_raw_nonzero().get();
    let has_all =
        |threads: &Vec<String>| names.iter().all(|name| threads.iter().any(|of| of == name));
    let threads = || threads(process);
    until(|| Some(threads()).filter(has_all), || format!("{:?}", threads()));
    let health = || ["/healthz", "/readyz"].map(|path| get(connect(&address), path, ""));
    let until_status = |status: &str| {
        let is_it = |response: &String| response.starts_with(&format!("HTTP/1.1 {status} "));
        until(|| health().iter().all(is_it).then_some(()), || format!("{:?}", health()));
    };
    until_status("200");
    let Some(stopped) = StoppedThread::of(process, "wl-worker-1") else {
        eprintln!("skipped here: a_worker_that_is_stopped: ptrace(2) is forbidden");
        return;
    };
    until_status("503");
    assert!(health()[0].contains("stalled: worker 1 has not finished a turn"), "{:?}", health());
    drop(stopped);
    until_status("200");
    server.stop_cleanly();
}
