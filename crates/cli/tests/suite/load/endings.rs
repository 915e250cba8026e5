//! `windlass load http://` against servers that end connections between two responses, and against
//! servers that never end a response.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use super::{
    bad_server::{BadServer, read_request},
    runs::load,
};
use crate::harness::{Server, WAIT_MAX};

const PLAIN: &str = "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, World!";
const LAST: &str =
    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 13\r\n\r\nHello, World!";

/// A server that serves each connection in a thread, and its counts.
struct HttpServer {
    url: String,
    connections: Arc<AtomicU64>,
}

impl HttpServer {
    fn start(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let url = format!("http://{}/", listener.local_addr().expect("it has an address"));
        let connections = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&connections);
        thread::spawn(move || {
            for socket in listener.incoming() {
                let socket = socket.expect("a client connects");
                socket.set_nodelay(true).expect("it can be set");
                socket.set_read_timeout(Some(WAIT_MAX)).expect("it can be set");
                count.fetch_add(1, Relaxed);
                let serve = serve.clone();
                thread::spawn(move || serve(socket));
            }
        });
        Self { url, connections }
    }

    /// Answers so many requests of each connection with [`PLAIN`], and one more with `last`. Then
    /// it ends the connection, in order or with a reset if there are unread requests.
    fn ending_after(requests: u64, last: &'static str, is_abrupt: bool) -> Self {
        Self::start(move |mut socket| {
            for number in 0..=requests {
                // The client of an idle connection may have ended it.
                if !matches!(socket.peek(&mut [0]), Ok(1)) {
                    return;
                }
                read_request(&mut socket);
                let response = if number == requests { last } else { PLAIN };
                socket.write_all(response.as_bytes()).expect("the client waits");
            }
            if !is_abrupt {
                socket.shutdown(Shutdown::Write).expect("it is open");
                while let Ok(1..) = socket.read(&mut [0; 1024]) {}
            }
        })
    }

    fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }
}

/// `windlass serve` ends each connection after a number of requests, as nginx and Apache do.
#[test]
fn a_server_that_limits_the_requests_of_a_connection() {
    let server = Server::start(&[]);
    let url = format!("http://{}/", server.address);
    for more in [&["--depth", "1"][..], &["--depth", "16"], &["--workers", "2"]] {
        let counts = ["--connections", "2", "--messages", "1000"];
        let loaded = load(&[&[&*url], &counts[..], more].concat());
        assert_eq!(loaded.expect_clean().verified(), 1000, "{more:?}");
        assert_eq!(loaded.number("/connections/opened"), 2.0, "{more:?}");
        let reconnects = loaded.number("/connections/reconnects");
        // It also ends a connection whose output waits.
        assert!(reconnects >= 8.0, "{more:?}: {reconnects}");
    }
    server.stop_cleanly();
}

/// The requests behind the last one get no response, and are sent again.
#[test]
fn a_server_that_ends_each_connection_after_a_response() {
    const OLD: &str = "HTTP/1.0 200 OK\r\nContent-Length: 13\r\n\r\nHello, World!";
    for (last, is_abrupt) in
        [(LAST, false), (LAST, true), (PLAIN, false), (PLAIN, true), (OLD, false)]
    {
        for (before, depth) in [(0, "1"), (0, "4"), (2, "1"), (2, "4")] {
            let server = HttpServer::ending_after(before, last, is_abrupt);
            let counts = ["--connections", "3", "--messages", "60", "--timeout", "30"];
            let loaded = load(&[&[&*server.url, "--depth", depth], &counts[..]].concat());
            assert_eq!(loaded.expect_clean().verified(), 60, "{before} {depth} {last}");
            let reconnects = loaded.number("/connections/reconnects") as u64;
            assert_eq!(reconnects + 3, server.connections(), "{before} {depth} {last}");
            let least = 3 * 20_u64.div_ceil(before + 1);
            // A reset may destroy responses, whose requests are then sent again.
            let is_right = if is_abrupt { u64::ge } else { u64::eq };
            assert!(is_right(&(reconnects + 3), &least), "{before} {depth} {last}: {reconnects}");
        }
    }
}

#[test]
fn the_report_tells_reconnects() {
    let server = HttpServer::ending_after(0, LAST, false);
    let arguments = [&server.url, "--connections", "1", "--messages", "5"];
    let loaded = super::runs::Load::start(&arguments).wait();
    let words = "reconnects  4: the server ended connections in order";
    assert!(loaded.output.contains(words), "{loaded:?}");
}

/// An idle connection is not opened again before a request is due.
#[test]
fn at_a_fixed_rate_a_connection_is_opened_when_it_is_needed() {
    let server = HttpServer::ending_after(0, PLAIN, false);
    let counts = ["--connections", "4", "--messages", "40", "--rate", "400"];
    let loaded = load(&[&[&*server.url], &counts[..]].concat());
    assert_eq!(loaded.expect_clean().verified(), 40);
    assert_eq!((server.connections(), loaded.number("/connections/reconnects")), (40, 36.0));
}

#[test]
fn a_run_ends_in_time_although_its_connections_end() {
    for rate in [&[][..], &["--rate", "100"]] {
        let server = HttpServer::ending_after(0, PLAIN, false);
        let counts = ["--connections", "2", "--duration", "0.5", "--warm-up", "0.1"];
        let loaded = load(&[&[&*server.url], &counts[..], rate].concat());
        assert!(loaded.expect_clean().verified() > 0, "{rate:?}");
    }
}

/// It would not answer on the next connection either.
#[test]
fn a_server_that_ends_a_connection_without_a_response() {
    let server = HttpServer::start(|mut socket| read_request(&mut socket));
    let loaded = load(&[&server.url, "--connections", "1", "--messages", "5"]);
    let words = "the server has disconnected with 1 message unanswered";
    loaded.expect_fault("closed_early", words);
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_server_that_is_gone_when_it_is_needed_again() {
    // It serves one connection, and its listener is closed with it.
    let (told, heard) = std::sync::mpsc::channel();
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    told.send(listener.local_addr().expect("it has an address")).expect("heard");
    let serving = thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("the client connects");
        // Not only closed: a child that another test is starting holds it until its exec.
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).expect("it listens");
        read_request(&mut socket);
        socket.write_all(LAST.as_bytes()).expect("the client waits");
    });
    let url = format!("http://{}/", heard.recv().expect("it has told"));
    let loaded = load(&[&url, "--connections", "1", "--messages", "5"]);
    loaded.expect_fault("connect", "not connected: Connection refused");
    assert_eq!(loaded.verified(), 1);
    serving.join().expect("it does not panic");
}

/// Sends a piece again and again until the client disconnects.
fn dripping(start: &'static str, piece: &'static str) -> BadServer {
    BadServer::start(move |mut socket| {
        read_request(&mut socket);
        let mut next = start;
        while socket.write_all(next.as_bytes()).is_ok() {
            next = piece;
            // The client sends nothing more, so this waits for its end or for the time between two
            // pieces.
            socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a time");
            if let Ok(0) = socket.read(&mut [0; 1024]) {
                return;
            }
        }
    })
}

fn load_limited(server: &BadServer, more: &[&str]) -> super::runs::Loaded {
    let url = server.tcp().replace("tcp:", "http:");
    let counts = ["--connections", "1", "--messages", "3"];
    load(&[&[&*url], &counts[..], more].concat())
}

/// Each byte is progress, so only the limit of the whole answer ends it.
#[test]
fn an_answer_that_arrives_byte_by_byte_without_end() {
    for (start, piece) in [
        ("HTTP/1.1 200 OK\r\nX: ", "x"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", "x"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n"),
    ] {
        let server = dripping(start, piece);
        let words = "no end of the answer to message 1 within 1 s; --answer-timeout sets the limit";
        load_limited(&server, &["--answer-timeout", "1"]).expect_fault("lost", words);
        server.join();
    }
}

#[test]
fn informational_responses_without_end() {
    let server = dripping("", "HTTP/1.1 100 Continue\r\n\r\n");
    let words = "response 1 follows more than 10 informational ones (1xx); --informational-max";
    load_limited(&server, &[]).expect_fault("protocol", words);
    server.join();
    let server = dripping("", "HTTP/1.1 102 Processing\r\n\r\n");
    let words = "no end of the answer to message 1 within 1 s";
    let limits = ["--informational-max", "1000000", "--answer-timeout", "1"];
    load_limited(&server, &limits).expect_fault("lost", words);
    server.join();
}

/// Each answer comes in time, but the last one would come long after the end.
#[test]
fn the_last_answers_have_a_limit() {
    let server = BadServer::start(|mut socket| {
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a time");
        read_request(&mut socket);
        while socket.write_all(PLAIN.as_bytes()).is_ok() {
            if let Ok(0) = socket.read(&mut [0; 64 << 10]) {
                return;
            }
        }
    });
    let url = server.tcp().replace("tcp:", "http:");
    let counts = ["--connections", "1", "--depth", "4096", "--duration", "0.2"];
    let loaded = load(&[&[&*url, "--answer-timeout", "1"], &counts[..]].concat());
    loaded.expect_fault("lost", " did not come within 1 s of the end of the run");
    server.join();
}
