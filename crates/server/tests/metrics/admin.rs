//! The admin listener: who gets an answer, and which.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    sync::mpsc::{self, Receiver},
    time::Duration,
};

use rustix::net::{AddressFamily, SocketType};
use windlass_server::{Admin, AdminToken, RunningAdmin, http::Hosts};

use crate::{
    backend::chosen,
    clients::{Client, Site, fresh},
    exposition::Exposition,
    waiting::until,
};

pub(crate) const TOKEN: &str = "a-token-of-the-test";

pub(crate) fn start(site: &Site, configure: impl FnOnce(Admin) -> Admin) -> RunningAdmin {
    let admin = Admin::listen("127.0.0.1:0".parse().unwrap()).unwrap().backend(chosen());
    configure(admin).start(site.counts.clone()).unwrap()
}

/// Returns the head and the body of the response to a request on a connection of its own.
pub(crate) fn exchange(address: SocketAddr, request: &str) -> (String, String) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    socket.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").expect("the head ends");
    (head.to_owned(), body.to_owned())
}

pub(crate) fn get(admin: &RunningAdmin, path: &str, lines: &str) -> (String, String) {
    let address = admin.address().socket_addr().unwrap();
    exchange(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n"),
    )
}

#[track_caller]
pub(crate) fn assert_status(response: &(String, String), status: u16) {
    assert!(response.0.starts_with(&format!("HTTP/1.1 {status} ")), "{response:?}");
}

pub(crate) fn each_path_has_its_answer() {
    let site = Site::new(2, |_| {});
    let admin = start(&site, |admin| admin);
    let mut client = Client::open(site.address, "/echo");
    client.send(1, b"hello");
    assert_eq!(client.next().1, b"hello");

    let metrics = fresh(|| get(&admin, "/metrics", ""));
    assert_status(&metrics, 200);
    assert!(metrics.0.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    assert!(metrics.0.contains("\r\nCache-Control: no-store\r\n"), "{}", metrics.0);
    let exposition = Exposition::parse(&metrics.1);
    assert_eq!(exposition.get("connections_opened_total"), 1);
    assert_eq!(exposition.get("messages_total{direction=\"in\",kind=\"text\"}"), 1);
    let build = format!(
        "build_info{{version=\"{}\",backend=\"{}\"}}",
        env!("CARGO_PKG_VERSION"),
        site.running.backend()
    );
    assert_eq!(exposition.get(&build), 1);

    assert_eq!(get(&admin, "/healthz", "").1, "alive\n");
    assert_eq!(get(&admin, "/readyz", "").1, "ready\n");
    let status = fresh(|| get(&admin, "/status", ""));
    assert!(status.0.contains("\r\nContent-Type: application/json\r\n"), "{}", status.0);
    for part in
        ["\"state\":\"ready\"", "\"open\":1", "\"messages\":{\"in\":1,\"out\":1", "\"worker\":1,"]
    {
        assert!(status.1.contains(part), "{part}: {}", status.1);
    }
    assert_status(&get(&admin, "/", ""), 404);
    assert_status(&get(&admin, "/metrics/", ""), 404);

    let address = admin.address().socket_addr().unwrap();
    let head = exchange(address, "HEAD /healthz HTTP/1.1\r\nHost: a.localhost\r\n\r\n");
    assert_status(&head, 421);
    let head = "HEAD /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let head = exchange(address, head);
    assert!(head.0.contains("Content-Length: 6") && head.1.is_empty(), "{head:?}");
    let post = exchange(address, "POST /status HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(post.0.contains("\r\nAllow: GET, HEAD\r\n"), "{post:?}");
    assert_status(&post, 405);
    assert_status(&exchange(address, "nonsense\r\n\r\n"), 400);
    site.end();
    admin.join();
}

/// Two requests in pieces, on one connection.
pub(crate) fn a_connection_is_kept_for_further_requests() {
    let site = Site::new(1, |_| {});
    let admin = start(&site, |admin| admin);
    let mut socket = TcpStream::connect(admin.address().socket_addr().unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for _ in 0..3 {
        let (first, rest) = request.split_at(20);
        for piece in [first, rest] {
            socket.write_all(piece.as_bytes()).unwrap();
        }
        let mut response = Vec::new();
        while !response.ends_with(b"\r\n\r\nalive\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).unwrap();
            response.push(byte[0]);
        }
    }
    socket.write_all(request.repeat(2).as_bytes()).unwrap();
    socket.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    let mut responses = String::new();
    socket.read_to_string(&mut responses).unwrap();
    assert_eq!(responses.matches("alive\n").count(), 3, "{responses}");
    site.end();
}

pub(crate) fn a_foreign_host_is_rejected() {
    let site = Site::new(1, |_| {});
    let admin = start(&site, |admin| admin);
    let address = admin.address().socket_addr().unwrap();
    let ask = |host: &str| {
        exchange(
            address,
            &format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"),
        )
    };
    assert_status(&ask("example.com"), 421);
    assert_status(&ask(&address.to_string()), 200);
    let listed = start(&site, |admin| admin.hosts(Hosts::parse(&["example.com"]).unwrap()));
    let address = listed.address().socket_addr().unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n";
    assert_status(&exchange(address, request), 200);
    site.end();
}

pub(crate) fn elsewhere_only_the_token_gets_an_answer() {
    let site = Site::new(1, |_| {});
    let everywhere = || Admin::listen("0.0.0.0:0".parse().unwrap()).unwrap().backend(chosen());
    let error = everywhere().start(site.counts.clone()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("has no token"), "{error}");
    assert!(everywhere().token("short").is_err());

    let admin = everywhere().token(TOKEN).unwrap().start(site.counts.clone()).unwrap();
    let port = admin.address().socket_addr().unwrap().port();
    let ask = |path: &str, lines: &str| {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n");
        exchange(([127, 0, 0, 1], port).into(), &request)
    };
    for path in ["/metrics", "/healthz", "/readyz", "/status", "/nowhere"] {
        for lines in ["", "Authorization: Bearer a-token-of-the-tesT\r\n", "Authorization: \r\n"] {
            let rejected = ask(path, lines);
            assert_status(&rejected, 401);
            assert!(rejected.0.contains("\r\nWWW-Authenticate: Bearer\r\n"), "{rejected:?}");
            assert!(!rejected.1.contains("windlass"), "{rejected:?}");
        }
    }
    assert_status(&ask("/metrics", &format!("Authorization: Bearer {TOKEN}\r\n")), 200);
    // On loopback too, if there is a token.
    let local = start(&site, |admin| admin.token(TOKEN).unwrap());
    assert_status(&get(&local, "/healthz", ""), 401);
    assert_status(&get(&local, "/healthz", &format!("Authorization: Bearer {TOKEN}\r\n")), 200);
    site.end();
}

type Reports = Receiver<(Option<u16>, String)>;

/// Starts a listener that reports the status and the reason of each rejection, and then panics.
fn start_reporting(site: &Site, configure: impl FnOnce(Admin) -> Admin) -> (RunningAdmin, Reports) {
    let (reported, reports) = mpsc::channel();
    let admin = start(site, |admin| {
        configure(admin).on_rejected(move |rejected| {
            let _ = reported.send((rejected.status, rejected.reason.to_owned()));
            // Without the hook, which would print it.
            std::panic::resume_unwind(Box::new("as asked"));
        })
    });
    (admin, reports)
}

pub(crate) fn rejections_are_counted_and_reported() {
    let site = Site::new(1, |_| {});
    let (admin, reports) = start_reporting(&site, |admin| admin.token(TOKEN).unwrap());
    let address = admin.address().socket_addr().unwrap();
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    let head = |first: &str, host: &str, lines: &str| {
        format!("{first} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{lines}\r\n")
    };
    let requests = [
        (400, "nonsense\r\n\r\n".to_owned(), "request line"),
        (431, format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(70_000)), "head"),
        (421, head("GET /metrics", "example.com", &token), "example.com"),
        (421, head("HEAD /metrics", "example.com", &token), "Misdirected"),
        (401, head("GET /metrics", "localhost", ""), "bearer token"),
        (401, head("GET /x", "localhost", "Authorization: Bearer x\r\n"), "bearer token"),
        (404, head("GET /x", "localhost", &token), "nothing here"),
        (405, head("POST /metrics", "localhost", &token), "only GET"),
    ];
    for (status, request, words) in &requests {
        assert_status(&exchange(address, request), *status);
        let (reported, reason) = reports.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(reported, Some(*status));
        assert!(reason.contains(words), "{status}: {reason}");
        assert!(!reason.contains(char::is_control), "{reason:?}");
    }
    let metrics = get(&admin, "/metrics", &token);
    assert_status(&metrics, 200);
    let metrics = Exposition::parse(&metrics.1);
    let count = |reason| metrics.get(&format!("admin_refusals_total{{reason=\"{reason}\"}}"));
    let counts = ["bad_request", "bad_host", "token", "not_found", "method"].map(count);
    assert_eq!(counts, [2, 2, 2, 1, 1]);
    assert_eq!(metrics.sum("admin_refusals_total"), 8);
    assert!(reports.try_recv().is_err(), "an answered request is no rejection");
    site.end();
}

/// Clients without a request cannot keep others out: the oldest of them goes.
pub(crate) fn silent_connections_keep_nobody_out() {
    const SILENT: usize = 200;
    let site = Site::new(1, |_| {});
    let (admin, reports) = start_reporting(&site, |admin| admin.token(TOKEN).unwrap());
    let address = admin.address().socket_addr().unwrap();
    let connect = || {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    };
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    // It has had an answer, so the others go first.
    let mut kept = connect();
    let request = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{token}\r\n");
    let ask = |socket: &mut TcpStream| {
        socket.write_all(request.as_bytes()).unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"\r\n\r\nalive\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).unwrap();
            response.push(byte[0]);
        }
    };
    ask(&mut kept);
    // Some send nothing, some a part of a request, and some were rejected and stay.
    let mut silent: Vec<_> = (0..SILENT).map(|_| connect()).collect();
    for (index, socket) in silent.iter_mut().enumerate() {
        // The server may have closed it already.
        let _ = match index % 3 {
            0 => Ok(()),
            1 => socket.write_all(b"GET /healthz HTTP/1.1\r\n"),
            _ => socket.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        };
    }
    assert_status(&get(&admin, "/healthz", &token), 200);
    ask(&mut kept);
    let metrics = Exposition::parse(&get(&admin, "/metrics", &token).1);
    let count = metrics.get("admin_refusals_total{reason=\"connections_max\"}");
    assert!(count >= (SILENT - 64) as u64 / 3, "{count}");
    let (status, reason) = reports
        .iter()
        .find(|(status, _)| status.is_none())
        .expect("the listener reports until it is dropped");
    assert_eq!(status, None);
    assert!(reason.starts_with("connection limit 64 of the admin listener reached"), "{reason}");
    site.end();
}

/// Issue 29: over a long way, a flood without a token came between a connection and its request.
pub(crate) fn a_flood_from_one_address_keeps_no_other_out() {
    let site = Site::new(1, |_| {});
    let admin = start(&site, |admin| admin.token(TOKEN).unwrap());
    let address = admin.address().socket_addr().unwrap();
    let own = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&own, &SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
    rustix::net::connect(&own, &address).unwrap();
    // Connections are accepted in this order. So when the last one of these is closed, the flood
    // has been accepted, and nobody has sent a request.
    let flood: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    for mut closed in &flood[..200 - 64] {
        closed.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        match closed.read(&mut [0]) {
            Ok(count) => assert_eq!(count, 0),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
    let token = format!("Authorization: Bearer {TOKEN}\r\nConnection: close\r\n");
    let request = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{token}\r\n");
    let mut client = TcpStream::from(own);
    client.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).unwrap();
    assert!(response.ends_with("\r\n\r\nalive\n"), "{response}");
    site.end();
}

/// A connection without a byte is closed long before the idle time of one that was answered.
pub(crate) fn a_silent_connection_is_closed_soon() {
    let site = Site::new(1, |_| {});
    let admin = start(&site, |admin| admin);
    let mut socket = TcpStream::connect(admin.address().socket_addr().unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    match socket.read(&mut [0]) {
        Ok(count) => assert_eq!(count, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    site.end();
}

/// Requests that come together share one copy of the counts. A busy worker delays each copy.
pub(crate) fn pipelined_requests_share_a_copy() {
    const REQUESTS: usize = 100;
    let (open_gate, gate) = mpsc::channel();
    let site = Site::with_gate(1, Some(gate), |_| {});
    // If the test fails, the gate opens before the server is joined.
    let open_gate = open_gate;
    let admin = start(&site, |admin| admin);
    let mut busy = Client::open(site.address, "/echo");
    busy.send(1, b"wait");
    let address = admin.address().socket_addr().unwrap();
    let mut requests = "HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(REQUESTS - 1);
    requests += "HEAD /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let (first, others) = exchange(address, &requests);
    assert_eq!(first.matches("200 OK").count() + others.matches("200 OK").count(), REQUESTS);
    open_gate.send(()).unwrap();
    assert_eq!(busy.next().1, b"wait");
    site.end();
}

pub(crate) fn a_unix_socket_needs_no_token() {
    let site = Site::new(1, |_| {});
    let path = std::env::temp_dir().join(format!("windlass-admin-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let admin = Admin::listen_unix(&path).unwrap().backend(chosen());
    let admin = admin.start(site.counts.clone()).unwrap();
    let mut socket = UnixStream::connect(&path).unwrap();
    socket.write_all(b"GET /readyz HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    socket.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200 ") && response.ends_with("ready\n"), "{response}");
    std::fs::remove_file(&path).unwrap();
    drop(admin);
    site.end();
}

/// During a drain the server is alive and not ready. After it, the port is closed.
pub(crate) fn a_drain_ends_readiness_and_then_the_listener() {
    for workers in [1, 3] {
        let site = Site::new(workers, |_| {});
        let admin = start(&site, |admin| admin);
        let address = admin.address().socket_addr().unwrap();
        let mut client = Client::open(site.address, "/echo");
        assert_status(&get(&admin, "/readyz", ""), 200);
        site.running.drain(Duration::from_secs(20));
        assert_eq!(client.next().0, 8);
        let not_ready = get(&admin, "/readyz", "");
        assert_status(&not_ready, 503);
        assert!(not_ready.1.starts_with("draining"), "{not_ready:?}");
        assert_status(&get(&admin, "/healthz", ""), 200);
        assert!(get(&admin, "/status", "").1.contains("\"state\":\"draining\""));
        let metrics = Exposition::parse(&fresh(|| get(&admin, "/metrics", "")).1);
        assert_eq!(metrics.get("connections{state=\"closing\",transport=\"tcp\"}"), 1);
        client.send(8, &1001_u16.to_be_bytes());
        client.read_to_end();
        drop(client);
        site.running.join().unwrap();
        admin.join();
        assert!(TcpStream::connect(address).is_err(), "the port is closed");
        let last = Exposition::parse(&site.counts.prometheus());
        assert_eq!(last.get("connections_closed_total{reason=\"local\"}"), 1);
        assert_eq!(last.get("close_codes_total{code=\"1001\"}"), 1);
        assert_eq!(last.sum("connections"), 0);
    }
}

pub(crate) fn access_changes_while_it_runs() {
    let site = Site::new(1, |_| {});
    let admin = start(&site, |admin| admin.token(TOKEN).unwrap());
    let ask = |token: &str, host: &str| {
        let address = admin.address().socket_addr().unwrap();
        let lines = format!("Host: {host}\r\nAuthorization: Bearer {token}\r\n");
        exchange(address, &format!("GET /healthz HTTP/1.1\r\nConnection: close\r\n{lines}\r\n"))
    };
    let other = "another-token-of-the-test";
    assert_status(&ask(TOKEN, "localhost"), 200);
    assert_status(&ask(other, "localhost"), 401);
    assert_status(&ask(TOKEN, "admin.example"), 421);
    let hosts = Hosts::parse(&["admin.example"]).unwrap();
    admin.set_access(Some(AdminToken::new(other).unwrap()), hosts).unwrap();
    assert_status(&ask(TOKEN, "admin.example"), 401);
    assert_status(&ask(other, "admin.example"), 200);
    admin.set_access(None, Hosts::default()).unwrap();
    assert_status(&ask(TOKEN, "localhost"), 200);

    let listener = Admin::listen("0.0.0.0:0".parse().unwrap()).unwrap();
    let public = listener.token(TOKEN).unwrap().start(site.counts.clone()).unwrap();
    let error = public.set_access(None, Hosts::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let port = public.address().socket_addr().unwrap().port();
    let head = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    assert_status(&exchange(([127, 0, 0, 1], port).into(), head), 401);
}

pub(crate) fn it_ends_readiness_and_leaves_its_socket() {
    let site = Site::new(1, |_| {});
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let admin = Admin::listen_on(socket.try_clone().unwrap()).unwrap().backend(chosen());
    let admin = admin.start(site.counts.clone()).unwrap();
    admin.announce_shutdown();
    assert_status(&get(&admin, "/readyz", ""), 503);
    assert_status(&get(&admin, "/healthz", ""), 200);
    Client::open(site.address, "/echo").send(1, b"it is served still");

    let mut accepted = TcpStream::connect(address).unwrap();
    accepted.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let head = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut start = [0; 15];
    accepted.write_all(head.as_bytes()).unwrap();
    accepted.read_exact(&mut start).unwrap();
    admin.stop_accepting();
    socket.set_nonblocking(false).unwrap();
    let left = TcpStream::connect(address).unwrap();
    let (other, _) = socket.accept().unwrap();
    assert_eq!(other.peer_addr().unwrap(), left.local_addr().unwrap());
    // Connections that it has accepted are answered.
    accepted.write_all(head.as_bytes()).unwrap();
    let mut text = String::new();
    while text.matches("alive").count() < 2 {
        let mut some = [0; 512];
        let count = accepted.read(&mut some).unwrap();
        assert!(count > 0, "it ended after {text}");
        text.push_str(std::str::from_utf8(&some[..count]).unwrap());
    }
}

pub(crate) fn a_worker_in_a_long_handler_is_reported() {
    let (open_gate, gate) = mpsc::channel();
    let site = Site::with_gate(2, Some(gate), |_| {});
    let limit = Duration::from_millis(1500);
    let admin = start(&site, |admin| admin.stall_limit(limit));
    let status = |path: &str| get(&admin, path, "").0[9..12].to_owned();
    let all = || ["/healthz", "/readyz"].map(status);
    let until_status = |expected: &str| {
        until(|| (all() == [expected; 2]).then_some(()), || format!("{:?}", all()));
    };
    until_status("200");
    let mut busy = Client::open(site.address, "/echo");
    busy.send(1, b"wait");
    until_status("503");
    let (worker, age) = site.counts.slowest_worker().unwrap();
    assert!(age > limit, "{age:?}");
    let text = get(&admin, "/healthz", "").1;
    assert!(text.starts_with(&format!("stalled: worker {worker} has not finished")), "{text}");
    let sample = format!("windlass_worker_turn_age_seconds{{worker=\"{worker}\"}} ");
    let metrics = site.counts.prometheus();
    let age = metrics.lines().find_map(|line| line.strip_prefix(&sample)).unwrap();
    assert!(age.parse::<f64>().unwrap() > limit.as_secs_f64(), "{age}");
    open_gate.send(()).unwrap();
    until_status("200");
    let counts = site.counts.clone();
    site.end();
    assert_eq!(counts.slowest_worker(), None, "they have ended");
}
