//! What each failure says. Errors name the phase.

use std::{error::Error as _, future::pending, io, net::SocketAddr, time::Duration};

use tokio::io::duplex;
use windlass_websocket::{
    Config,
    client::{Client, ConnectError, Phase},
};

use crate::{
    fake::{Fake, paused},
    server::{answering, echo_server, trusting},
};

const ONE: &[&str] = &["192.0.2.1:80"];

fn run<F: Future>(test: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime").block_on(test)
}

fn check(error: &ConnectError, phase: Phase, text: &str) {
    assert_eq!(error.phase(), phase, "{error}");
    assert!(error.to_string().starts_with(text), "{error}\n does not begin with\n{text}");
}

#[test]
fn a_bad_request_is_known_before_a_connection() {
    let cases = [
        (Client::new("http://a.example"), "the scheme of the URL is not supported here"),
        (Client::new("ws://a.example/#x"), "the URL has a fragment"),
        (Client::new("ws://a.example").proxy("ftp://p"), "the scheme of the URL is not supported"),
    ];
    paused(async {
        let fake = Fake::new(ONE, |_| Box::pin(pending()));
        for (client, text) in cases {
            let (error, _) = fake.clone().failure(client).await;
            check(&error, Phase::Prepare, text);
            assert!(error.is_permanent());
        }
        let own = Client::new("ws://a.example").header("Upgrade", "x");
        let (error, _) = fake.clone().failure(own).await;
        let text =
            "the WebSocket handshake failed: the request is invalid: the handshake writes this";
        check(&error, Phase::Handshake, text);
        assert!(fake.attempts.lock().expect("no test panicked").is_empty());
    });
}

#[test]
fn a_name_that_is_not_resolved_is_an_error_of_its_phase() {
    paused(async {
        let fake = Fake::new(&[], |_| Box::pin(pending()));
        let client = Client::new("ws://a.example");
        let (error, _) = fake.clone().failure(client.clone()).await;
        check(&error, Phase::Resolve, "the host has no address");
        let failing = fake.clone().resolving(|| Box::pin(async { Err(io::Error::other("NX")) }));
        let (error, _) = failing.failure(client.clone()).await;
        check(&error, Phase::Resolve, "resolving the host failed: NX");
        let slow = fake.resolving(|| Box::pin(pending()));
        let limit = Duration::from_secs(3);
        let (error, after) = slow.failure(client.time_limit(Phase::Resolve, limit)).await;
        check(&error, Phase::Resolve, "resolving the host took too long; Client::time_limit sets");
        assert!((3000..3010).contains(&after), "after {after} ms");
    });
}

#[test]
fn each_phase_behind_the_connection_has_a_time_limit() {
    let ws = Client::new("ws://a.example");
    let cases = [
        (ws.clone(), Phase::Handshake, "the WebSocket handshake took too long"),
        (ws.proxy("http://p"), Phase::Proxy, "connecting through the proxy took too long"),
        (Client::new("wss://localhost").tls(trusting("ca")), Phase::Tls, "the TLS handshake took"),
    ];
    for (client, phase, text) in cases {
        paused(async {
            let (ends, _kept) = std::sync::mpsc::channel();
            let fake = Fake::new(ONE, move |_| {
                let (ours, theirs) = duplex(1 << 16);
                ends.send(theirs).expect("they are kept");
                Box::pin(async { Ok(ours) })
            });
            let client = client.time_limit(phase, Duration::from_secs(4));
            let (error, after) = fake.failure(client).await;
            check(&error, phase, text);
            assert!((4000..4010).contains(&after), "after {after} ms");
        });
    }
}

#[test]
fn a_closed_port_is_an_error_with_the_address() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    drop(listener);
    let error = run(Client::new(&format!("ws://{address}")).connect()).expect_err("it is closed");
    check(&error, Phase::Connect, &format!("no address could be reached: {address}: "));
    assert!(error.source().is_some() && !error.is_permanent());
}

#[test]
fn a_server_that_is_not_trusted_is_an_error_of_tls() {
    let address = echo_server(true);
    let url = format!("wss://localhost:{}/", address.port());
    let error = run(Client::new(&url).tls(trusting("other-ca")).connect()).expect_err("a stranger");
    check(&error, Phase::Tls, "the TLS handshake failed: invalid peer certificate: UnknownIssuer");
    let url = format!("wss://127.0.0.2:{}/", address.port());
    let bad_name = Client::new(&url).tls(trusting("ca")).connect();
    let error = run(bad_name).expect_err("another name, or no listener");
    assert!(matches!(error.phase(), Phase::Tls | Phase::Connect), "{error}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("wss://{}/", listener.local_addr().expect("it is bound"));
    let server = std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let (mut stream, _) = listener.accept().expect("it is accepted");
        stream.write_all(b"HTTP/1.1 400 No\r\n\r\n").expect("it is open");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = run(Client::new(&url).tls(trusting("ca")).connect()).expect_err("it is no TLS");
    check(&error, Phase::Tls, "the TLS handshake failed: received corrupt message");
    server.join().expect("the server is good");
}

fn answer(bytes: &[u8]) -> ConnectError {
    let (address, server) = answering(bytes);
    let error = run(Client::new(&format!("ws://{address}")).connect()).expect_err("no 101");
    server.join().expect("the server is good");
    error
}

#[test]
fn a_response_other_than_101_is_in_the_error() {
    let error = answer(
        b"HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 401 Who\r\nWWW-Authenticate: Bearer\r\n\
          Content-Length: 9\r\n\r\nno token.and more",
    );
    check(&error, Phase::Handshake, "the server answered with status 401 instead of 101");
    let response = error.response().expect("it has one");
    assert_eq!(response.status, 401);
    assert_eq!(response.header("www-authenticate"), Some("Bearer"));
    assert_eq!(response.body, b"no token.");
    assert!(error.is_permanent());
    let chunked =
        answer(b"HTTP/1.1 503 Later\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nlater\r\n0\r\n\r\n");
    assert_eq!(chunked.response().expect("it has one").body, b"later");
    assert!(!chunked.is_permanent());
    let endless = [b"HTTP/1.1 404 No\r\n\r\n".as_slice(), &[b'x'; 9000]].concat();
    assert_eq!(answer(&endless).response().expect("it has one").body.len(), 4096);
    for status in [408, 429, 500] {
        let error = answer(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n").as_bytes());
        assert!(!error.is_permanent(), "{error}");
    }
}

#[test]
fn a_body_that_never_ends_is_cut_at_the_time_limit() {
    paused(async {
        let fake = Fake::new(ONE, |_| {
            let (ours, mut theirs) = duplex(1 << 16);
            tokio::spawn(async move {
                use tokio::io::AsyncWriteExt as _;
                theirs.write_all(b"HTTP/1.1 500 Oh\r\n\r\nbegin").await.expect("it is read");
                pending::<()>().await;
            });
            Box::pin(async { Ok(ours) })
        });
        let (error, after) = fake.failure(Client::new("ws://a.example")).await;
        assert_eq!(error.response().expect("it has one").body, b"begin");
        assert!((10_000..10_010).contains(&after), "after {after} ms");
    });
}

#[test]
fn strange_responses_are_errors_of_the_handshake() {
    let long = [b"HTTP/1.1 101 X\r\nX: ".as_slice(), &[b'x'; 9000]].concat();
    let many = format!("HTTP/1.1 101 X\r\n{}\r\n", "X: y\r\n".repeat(100));
    let cases: [(&[u8], &str); 6] = [
        (b"", "the connection ended within the response"),
        (b"HTTP/1.1 101 Switching", "the connection ended within the response"),
        (b"SSH-2.0-x\r\n\r\n", "malformed response"),
        (b"HTTP/1.1 101 X\r\n\r\n", "missing or wrong Upgrade in the response"),
        (&long, "the head of the response is longer than head_bytes_max"),
        (many.as_bytes(), "the response has more headers than headers_max"),
    ];
    for (bytes, text) in cases {
        check(&answer(bytes), Phase::Handshake, &format!("the WebSocket handshake failed: {text}"));
    }
}

#[test]
fn the_head_of_the_response_has_the_limits_of_the_configuration() {
    let (address, server) =
        answering(b"HTTP/1.1 404 No\r\nX: 0123456789012345678901234567\r\n\r\n");
    let mut limits = windlass_websocket::HeadLimits::DEFAULT;
    limits.head_bytes_max = 40;
    let client = Client::new(&format!("ws://{address}")).config(Config::new().head_limits(limits));
    let error = run(client.connect()).expect_err("it is too long");
    check(&error, Phase::Handshake, "the WebSocket handshake failed: the head of the response");
    server.join().expect("the server is good");
}

#[test]
fn secrets_are_in_no_text() {
    let (address, server) = answering(b"HTTP/1.1 407 No\r\n\r\n");
    let client = Client::new("ws://alice:sesame@a.example/?token=sesame")
        .header("Authorization", "sesame")
        .proxy(&format!("http://bob:sesame@{address}"));
    let error = run(client.connect()).expect_err("the proxy refuses");
    let text = "connecting through the proxy failed: the proxy answered with status 407";
    check(&error, Phase::Proxy, text);
    for shown in [format!("{client:?}"), format!("{error:?}"), format!("{:?}", client.connect())] {
        assert!(!shown.contains("sesame") && !shown.contains("alice"), "{shown}");
    }
    let request = server.join().expect("the server is good");
    assert!(request.contains("Proxy-Authorization: Basic Ym9iOnNlc2FtZQ==\r\n"), "{request}");
    // What is for the server is not shown to the proxy.
    assert!(!request.contains("\r\nAuthorization"), "{request}");
}

#[test]
fn a_strange_proxy_is_an_error_of_its_phase() {
    let (address, server) = answering(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 101 X\r\n\r\n");
    let client = Client::new("ws://a.example").proxy(&format!("http://{address}"));
    let error = run(client.connect()).expect_err("the proxy lies");
    let text = "connecting through the proxy failed: the proxy sent bytes that cannot be the";
    check(&error, Phase::Proxy, text);
    server.join().expect("the server is good");
    let echo: SocketAddr = echo_server(false);
    let client = Client::new("ws://a.example").proxy(&format!("socks5://{echo}"));
    let error = run(client.time_limit(Phase::Proxy, Duration::from_millis(20)).connect());
    assert_eq!(error.expect_err("it is no proxy").phase(), Phase::Proxy);
}
