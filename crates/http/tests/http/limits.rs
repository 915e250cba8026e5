//! Limits of connections and times.

use std::{
    cell::RefCell,
    future::Ready,
    io,
    rc::Rc,
    time::{Duration, Instant},
};

use hyper::{StatusCode, service::service_fn};
use windlass_http::{AcceptedConnection, Handshaken, HttpListener, HttpServer};
use windlass_task::{
    net::{TcpListener, TcpStream},
    spawn,
    time::{now, sleep},
};

use crate::{
    scenarios::Build,
    stalls::frame,
    tools::{Log, answer, client, collect, get, read_head, read_to_end, run, run_paused, start},
    versions::{client2, get2},
};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n";

fn connections_beyond_the_limit_wait(build: Build) {
    run(build, async {
        let log = Log::default();
        let server = start(log.server().connections_max(2), service_fn(answer)).await;
        let mut first = client(server.connect().await).await;
        let mut second = client(server.connect().await).await;
        for sender in [&mut first, &mut second] {
            collect(sender.send_request(get("/")).await.unwrap()).await;
        }
        let mut third = server.connect().await;
        third.write_all(REQUEST).await.unwrap();
        // The others are served, and the third one is not.
        for _ in 0..5 {
            collect(first.send_request(get("/")).await.unwrap()).await;
        }
        let mut byte = [0];
        {
            let mut early = Box::pin(third.read(&mut byte));
            std::future::poll_fn(|context| {
                assert!(early.as_mut().poll(context).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            drop(second);
            assert_eq!(early.await.unwrap(), 1);
        }
        assert_eq!(&byte, b"H");
        drop((first, third));
        server.stop().await;
        let limit = "connection limit 2 reached; raise `connections_max`, or let clients wait";
        assert_eq!(log.lines(), [limit]);
    });
}

/// A server that is busy reaches its limit again with each connection.
fn a_limit_that_is_reached_often_is_logged_seldom(build: Build) {
    run_paused(build, async {
        let log = Log::default();
        let server = start(log.server().connections_max(1), service_fn(answer)).await;
        let connect = async || {
            let mut stream = server.connect().await;
            stream.write_all(REQUEST).await.unwrap();
            read_head(&mut stream).await;
            stream
        };
        for lines in [1, 1, 1, 1, 2] {
            drop(connect().await);
            assert_eq!(log.lines().len(), lines, "{:?}", log.lines());
            if log.lines().len() == 1 {
                sleep(Duration::from_millis(2600)).await;
            }
        }
        drop(connect().await);
        let lines = log.lines();
        assert!(lines[0].starts_with("connection limit 1 reached; raise"), "{lines:?}");
        assert!(lines[1].starts_with("connection limit 1 reached 4 times; raise"), "{lines:?}");
        server.stop().await;
    });
}

/// No descriptor is left.
const EMFILE: i32 = 24;

/// Accepts some connections, and has no descriptor for more.
struct Short {
    listener: TcpListener,
    left: usize,
    failures: Rc<RefCell<Vec<Instant>>>,
}

impl HttpListener for Short {
    type Stream = TcpStream;
    type Handshake = Ready<io::Result<Handshaken<TcpStream>>>;

    async fn accept(&mut self) -> io::Result<AcceptedConnection<Self::Handshake>> {
        if self.left == 0 {
            self.failures.borrow_mut().push(now());
            return Err(io::Error::from_raw_os_error(EMFILE));
        }
        let accepted = HttpListener::accept(&mut self.listener).await?;
        self.left -= 1;
        Ok(accepted)
    }
}

/// Connections end more often than the longest pause is over.
fn without_descriptors_the_end_of_a_connection_is_the_next_try(build: Build) {
    run_paused(build, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let failures = Rc::new(RefCell::new(Vec::new()));
        let mut streams = Vec::new();
        for _ in 0..4 {
            streams.push(TcpStream::connect(address).await.unwrap());
        }
        let listener = Short { listener, left: streams.len(), failures: Rc::clone(&failures) };
        let log = Log::default();
        spawn(log.server().serve(listener, service_fn(answer))).detach();
        // The pause is a second by then.
        sleep(Duration::from_secs(3)).await;
        assert_eq!(failures.borrow().len(), 9);
        let lines = log.lines();
        assert_eq!(lines.len(), 9, "{lines:?}");
        // The C libraries have texts of their own.
        let why = io::Error::from_raw_os_error(EMFILE);
        assert!(lines[0].starts_with(&format!("cannot accept connections: {why}")), "{lines:?}");
        assert!(lines[0].ends_with("; next try in 10ms"), "{lines:?}");
        for stream in streams {
            let (before, begin) = (failures.borrow().len(), now());
            drop(stream);
            sleep(Duration::from_millis(5)).await;
            assert_eq!(failures.borrow().get(before), Some(&begin));
            sleep(Duration::from_millis(600)).await;
        }
    });
}

/// Fails once, and accepts after that.
struct FailsOnce(Short);

impl HttpListener for FailsOnce {
    type Stream = TcpStream;
    type Handshake = Ready<io::Result<Handshaken<TcpStream>>>;

    async fn accept(&mut self) -> io::Result<AcceptedConnection<Self::Handshake>> {
        let accepted = HttpListener::accept(&mut self.0).await;
        self.0.left = 9;
        accepted
    }
}

fn a_connection_that_is_accepted_ends_the_pause(build: Build) {
    run_paused(build, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = FailsOnce(Short { listener, left: 0, failures: Rc::default() });
        spawn(HttpServer::new().serve(listener, service_fn(answer))).detach();
        let begin = now();
        let mut streams = Vec::new();
        for count in 1..5 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            stream.write_all(REQUEST).await.unwrap();
            read_head(&mut stream).await;
            assert_eq!(now() - begin, Duration::from_millis(10), "{count}");
            // The end of a connection would end the pause as well.
            streams.push(stream);
        }
    });
}

/// hyper would panic where such a deadline is no `Instant`.
fn times_may_be_as_long_as_a_duration(build: Build) {
    run(build, async {
        let log = Log::default();
        let limits = log
            .server()
            .handshake_timeout(Duration::MAX)
            .header_timeout(Duration::MAX)
            .write_timeout(Duration::MAX)
            .http2_idle_timeout(Duration::MAX)
            .shutdown_timeout(Duration::MAX);
        let server = start(limits, service_fn(answer)).await;
        let mut stream = server.connect().await;
        stream.write_all(REQUEST).await.unwrap();
        assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200 "));
        drop(stream);
        let mut sender = client2(&server).await;
        assert_eq!(sender.send_request(get2("/")).await.unwrap().status(), StatusCode::OK);
        drop(sender);
        server.stop().await;
        assert_eq!(log.other_lines(), [""; 0]);
    });
}

/// A limit of zero is the shortest, and no loop without an end.
fn times_may_be_zero(build: Build) {
    run(build, async {
        let limits = HttpServer::new()
            .write_timeout(Duration::ZERO)
            .http2_idle_timeout(Duration::ZERO)
            .http2_only();
        let slow = service_fn(async |request| {
            sleep(Duration::from_millis(5)).await;
            answer(request).await
        });
        let server = start(limits, slow).await;
        let mut sender = client2(&server).await;
        // Its connection may have ended before.
        if let Ok(response) = sender.send_request(get2("/")).await {
            assert_eq!(response.status(), StatusCode::OK);
        }
        server.stop().await;
    });
}

/// The clock passes when nothing else can run, so the times are exact.
fn slow_heads_and_silent_connections_are_closed(build: Build) {
    run_paused(build, async {
        let log = Log::default();
        let limit = Duration::from_secs(7);
        let server = start(log.server().header_timeout(limit), service_fn(answer)).await;
        // Nothing at all.
        let mut silent = server.connect().await;
        let begin = now();
        assert_eq!(read_to_end(&mut silent).await, "");
        assert_eq!(now() - begin, limit);
        // A part of a head, and of the preface of HTTP/2.
        for part in [&b"GET / HTTP/1.1\r\nHost:"[..], b"PRI * HTT"] {
            let mut slow = server.connect().await;
            slow.write_all(part).await.unwrap();
            let begin = now();
            read_to_end(&mut slow).await;
            assert!((limit..=2 * limit).contains(&(now() - begin)), "{:?}", now() - begin);
        }
        // Idle after a request.
        let mut idle = server.connect().await;
        idle.write_all(REQUEST).await.unwrap();
        read_head(&mut idle).await;
        let begin = now();
        assert!(read_to_end(&mut idle).await.ends_with("hello"));
        assert_eq!(now() - begin, limit);
        server.stop().await;
        let line = &log.lines()[0];
        let expected = "connection ended before a request: no request came within the time of";
        assert!(line.contains(expected) && line.starts_with("127.0.0.1:"), "{line}");
        assert!(log.lines().iter().all(|line| !line.contains("handshake")), "{:?}", log.lines());
    });
}

/// A request that takes long is no slow head, and each head has the whole time.
fn requests_may_take_longer_than_their_heads(build: Build) {
    run_paused(build, async {
        let limit = Duration::from_secs(5);
        let slow = service_fn(move |request| async move {
            sleep(3 * limit).await;
            answer(request).await
        });
        let server = start(HttpServer::new().header_timeout(limit), slow).await;
        let mut sender = client(server.connect().await).await;
        for _ in 0..4 {
            let begin = now();
            collect(sender.send_request(get("/")).await.unwrap()).await;
            assert_eq!(now() - begin, 3 * limit);
            sleep(limit / 2).await;
        }
        drop(sender);
        server.stop().await;
    });
}

/// Of the listener below.
const ENOTSOCK: i32 = 88;

/// A listener that cannot be used any more.
struct Broken;

impl HttpListener for Broken {
    type Stream = TcpStream;
    type Handshake = Ready<io::Result<Handshaken<TcpStream>>>;

    async fn accept(&mut self) -> io::Result<AcceptedConnection<Self::Handshake>> {
        Err(io::Error::from_raw_os_error(ENOTSOCK))
    }
}

fn a_broken_listener_ends_the_server(build: Build) {
    run(build, async {
        let error = HttpServer::new().serve(Broken, service_fn(answer)).await.unwrap_err();
        let why = io::Error::from_raw_os_error(ENOTSOCK).to_string();
        assert!(error.to_string().starts_with(&why), "{error}");
    });
}

fn the_smallest_limits_still_serve(build: Build) {
    run(build, async {
        let limits = HttpServer::new().connections_max(0).head_bytes_max(0);
        let server = start(limits, service_fn(answer)).await;
        let mut sender = client(server.connect().await).await;
        assert_eq!(sender.send_request(get("/")).await.unwrap().status(), StatusCode::OK);
        drop(sender);
        server.stop().await;
    });
}

/// HTTP/2 has the same limit of heads, and the default is larger than hyper's.
fn a_head_of_http2_has_its_limit(build: Build) {
    run(build, async {
        for (limits, status) in [
            (HttpServer::new(), StatusCode::OK),
            (HttpServer::new().head_bytes_max(8192), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE),
        ] {
            let server = start(limits, service_fn(answer)).await;
            let mut sender = client2(&server).await;
            let mut request = get2("/");
            request.headers_mut().insert("long", "x".repeat(20_000).parse().unwrap());
            assert_eq!(sender.send_request(request).await.unwrap().status(), status);
            drop(sender);
            server.stop().await;
        }
    });
}

/// `SETTINGS_MAX_CONCURRENT_STREAMS` (RFC 9113 section 6.5.2) tells the client.
fn the_streams_of_a_connection_are_limited(build: Build) {
    run(build, async {
        for (limits, max) in [(HttpServer::new(), 128), (HttpServer::new().http2_streams_max(3), 3)]
        {
            let server = start(limits, service_fn(answer)).await;
            let mut stream = server.connect().await;
            stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
            stream.write_all(&frame(4, 0, 0, &[])).await.unwrap();
            let mut settings = [0; 9];
            stream.read_exact(&mut settings).await.unwrap();
            assert_eq!(settings[3], 4, "the first frame is SETTINGS");
            let mut values = vec![0; usize::from(settings[2])];
            stream.read_exact(&mut values).await.unwrap();
            assert!(values.chunks(6).any(|value| value == [0, 3, 0, 0, 0, max]), "{values:?}");
            drop(stream);
            server.stop().await;
        }
    });
}

fn a_head_that_is_too_large_is_rejected(build: Build) {
    run(build, async {
        let log = Log::default();
        let server = start(log.server().head_bytes_max(8192), service_fn(answer)).await;
        let mut stream = server.connect().await;
        let head = format!("GET / HTTP/1.1\r\nHost: h\r\nLong: {}", "x".repeat(8192));
        stream.write_all(head.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 431 "), "{head}");
        drop(stream);
        server.stop().await;
        assert!(log.lines()[0].contains("connection failed: message head is too large"));
    });
}

scenarios! {
    connections_beyond_the_limit_wait,
    a_limit_that_is_reached_often_is_logged_seldom,
    without_descriptors_the_end_of_a_connection_is_the_next_try,
    a_connection_that_is_accepted_ends_the_pause,
    times_may_be_as_long_as_a_duration,
    times_may_be_zero,
    slow_heads_and_silent_connections_are_closed,
    requests_may_take_longer_than_their_heads,
    a_broken_listener_ends_the_server,
    the_smallest_limits_still_serve,
    a_head_of_http2_has_its_limit,
    the_streams_of_a_connection_are_limited,
    a_head_that_is_too_large_is_rejected,
}
