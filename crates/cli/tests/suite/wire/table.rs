//! The table of requests, with the status of the response to each.

use super::{
    heads::{Head, KEY},
    peer::Peer,
};
use crate::harness::Server;

/// A request that is rejected.
struct Case {
    name: &'static str,
    bytes: Vec<u8>,
    status: u16,
}

fn case(name: &'static str, head: &Head, status: u16) -> Case {
    Case { name, bytes: head.bytes(), status }
}

fn raw(name: &'static str, bytes: &[u8], status: u16) -> Case {
    Case { name, bytes: bytes.to_vec(), status }
}

fn good() -> Head {
    Head::good()
}

/// Invalid first lines.
fn request_lines() -> Vec<Case> {
    let lines = [
        ("two spaces", "GET  / HTTP/1.1", 400),
        ("a tab for a space", "GET\t/ HTTP/1.1", 400),
        ("a space at the end", "GET / HTTP/1.1 ", 400),
        ("a space before", " GET / HTTP/1.1", 400),
        ("no version", "GET /", 400),
        ("no target", "GET HTTP/1.1", 400),
        ("nothing but a method", "GET", 400),
        ("a version in small letters", "GET / http/1.1", 400),
        ("a version without a number", "GET / HTTP/", 400),
        ("a version of three parts", "GET / HTTP/1.1.1", 400),
        ("a space in the target", "GET /a b HTTP/1.1", 400),
        ("a control character in the target", "GET /\u{1} HTTP/1.1", 400),
        ("a method that is no token", "G@T / HTTP/1.1", 400),
        ("a target without a slash", "GET chat HTTP/1.1", 400),
        ("an asterisk", "GET * HTTP/1.1", 400),
        ("an older version", "GET / HTTP/1.0", 505),
        ("a newer version", "GET / HTTP/2.0", 505),
        ("another method", "POST / HTTP/1.1", 405),
        ("HEAD", "HEAD / HTTP/1.1", 405),
        ("a method in small letters", "get / HTTP/1.1", 501),
        ("a method that nobody knows", "BREW / HTTP/1.1", 501),
    ];
    lines.map(|(name, line, status)| case(name, &good().line(line), status)).into()
}

/// Invalid ends and beginnings of lines.
fn lines() -> Vec<Case> {
    vec![
        case("bare LF", &good().ending("\n"), 400),
        case("bare CR", &good().ending("\r"), 400),
        raw("LF CR", b"GET / HTTP/1.1\n\rHost: a\n\r\n\r", 400),
        case("LF within a value", &good().and("X: a\nY: b"), 400),
        case("CR within a value", &good().and("X: a\rY: b"), 400),
        case("NUL within a value", &good().and("X: a\0b"), 400),
        case("a folded line", &good().and("X: a\r\n b"), 400),
        case("a line folded by a tab", &good().and("X: a\r\n\tb"), 400),
        case("a folded line that is empty", &good().and("X: a\r\n "), 400),
        raw("the first header is folded", b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400),
        case("a header without a colon", &good().and("X"), 400),
        case("a header without a name", &good().and(": a"), 400),
        case("a space before the colon", &good().and("X : a"), 400),
        case("a space in a name", &good().and("X Y: a"), 400),
        case("a name that is no token", &good().and("X(Y): a"), 400),
        case("a name beyond ASCII", &good().and("X\u{e9}: a"), 400),
        case("DEL within a value", &good().and("X: a\u{7f}"), 400),
    ]
}

/// Headers that may occur once.
fn duplicates() -> Vec<Case> {
    vec![
        case("two hosts", &good().and("Host: example.org"), 400),
        case("two hosts in other letters", &good().and("hOST: example.com"), 400),
        case("two keys", &good().and(&format!("Sec-WebSocket-Key: {KEY}")), 400),
        case("two versions", &good().and("Sec-WebSocket-Version: 13"), 400),
        case("two lengths", &good().and("Content-Length: 0").and("Content-Length: 0"), 400),
        case("a list of lengths", &good().and("Content-Length: 0, 0"), 400),
    ]
}

/// Requests whose end two programs could understand differently.
fn smuggling() -> Vec<Case> {
    let body = |head: Head, body: &str| [head.bytes(), body.as_bytes().to_vec()].concat();
    let pairs = [
        ("a length and chunks", "Content-Length: 4", "Transfer-Encoding: chunked"),
        ("chunks and a length", "Transfer-Encoding: chunked", "Content-Length: 4"),
        ("two codings", "Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
    ];
    let mut cases: Vec<Case> = pairs
        .iter()
        .map(|(name, first, second)| Case {
            name,
            bytes: body(good().and(first).and(second), "0\r\n\r\nGET / HTTP/1.1\r\n\r\n"),
            status: 400,
        })
        .collect();
    cases.extend([
        case("a length with a sign", &good().and("Content-Length: +4"), 400),
        case("a negative length", &good().and("Content-Length: -1"), 400),
        case("a length in hexadecimal", &good().and("Content-Length: 0x4"), 400),
        case(
            "a length beyond all numbers",
            &good().and("Content-Length: 99999999999999999999999"),
            400,
        ),
        case("an empty length", &good().and("Content-Length:"), 400),
        case(
            "a coding with a tab before it",
            &good().and("Transfer-Encoding:\tchunked").and("Content-Length: 4"),
            400,
        ),
        // Without chunked as the last coding the end is unknown (RFC 9112 section 6.3).
        case("a coding that nobody knows", &good().and("Transfer-Encoding: xchunked"), 400),
        case("a compressed body", &good().and("Transfer-Encoding: gzip"), 400),
        case("chunks that are compressed", &good().and("Transfer-Encoding: chunked, gzip"), 400),
        case("chunks twice", &good().and("Transfer-Encoding: chunked, chunked"), 400),
        case("no coding", &good().and("Transfer-Encoding:"), 400),
        case("compressed, in chunks", &good().and("Transfer-Encoding: gzip, chunked"), 501),
        Case {
            name: "an upgrade with a body",
            bytes: body(good().and("Content-Length: 4"), "body"),
            status: 400,
        },
        Case {
            name: "an upgrade with chunks",
            bytes: body(good().and("Transfer-Encoding: chunked"), "0\r\n\r\n"),
            status: 400,
        },
    ]);
    cases
}

/// The requirements of RFC 6455 section 4.2.1.
fn upgrades() -> Vec<Case> {
    let no_padding = KEY.trim_end_matches('=');
    vec![
        case("no host", &good().without("Host"), 400),
        case("a host with a space", &good().with("Host", "a b"), 400),
        case("an ordinary request", &good().without("Upgrade").without("Connection"), 426),
        case("no upgrade", &good().without("Upgrade"), 426),
        case("an upgrade to something else", &good().with("Upgrade", "h2c"), 426),
        case("no connection", &good().without("Connection"), 400),
        case("a connection that is kept", &good().with("Connection", "keep-alive"), 400),
        case("no version", &good().without("Sec-WebSocket-Version"), 426),
        case("an older version", &good().with("Sec-WebSocket-Version", "8"), 426),
        case("a version with a zero before it", &good().with("Sec-WebSocket-Version", "013"), 426),
        case("no key", &good().without("Sec-WebSocket-Key"), 400),
        case("an empty key", &good().with("Sec-WebSocket-Key", ""), 400),
        case("a key without padding", &good().with("Sec-WebSocket-Key", no_padding), 400),
        case("a short key", &good().with("Sec-WebSocket-Key", "c2hvcnQ="), 400),
        case(
            "a key that is no base64",
            &good().with("Sec-WebSocket-Key", "!!!!!!!!!!!!!!!!!!!!!!=="),
            400,
        ),
        case("protocols that are no tokens", &good().and("Sec-WebSocket-Protocol: a b"), 400),
        case("the same protocol twice", &good().and("Sec-WebSocket-Protocol: a, a"), 400),
        case("extensions that are none", &good().and("Sec-WebSocket-Extensions: ;x"), 400),
    ]
}

/// Requests that exceed the limits of a head.
fn floods() -> Vec<Case> {
    let many = (0..1000).fold(good(), |head, number| head.and(&format!("X-{number}: {number}")));
    vec![
        case("a thousand headers", &many, 431),
        case("a header of 64 KiB", &good().and(&format!("X: {}", "a".repeat(1 << 16))), 431),
        case("a name of 64 KiB", &good().and(&format!("{}: a", "X".repeat(1 << 16))), 431),
        case("a thousand empty headers", &(0..1000).fold(good(), |head, _| head.and("X:")), 431),
        case(
            "a target of 64 KiB",
            &good().line(&format!("GET /{} HTTP/1.1", "a".repeat(1 << 16))),
            414,
        ),
        raw("a first line that never ends", &vec![b'A'; 1 << 16], 414),
        raw("empty lines for ever", &b"\r\n".repeat(1 << 15), 400),
    ]
}

/// Other protocols.
fn strangers() -> Vec<Case> {
    // The beginning of a TLS 1.3 connection: a handshake record with a ClientHello.
    let client_hello = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[0x5a; 506]].concat();
    vec![
        raw("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04\0\0\0\0\0", 505),
        raw("TLS", &client_hello, 400),
        raw("SSH", b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n\r\n", 400),
        raw(
            "a frame without a handshake",
            &[0x81, 0x85, 1, 2, 3, 4, 0x69, 0x67, 0x6f, 0x68, 0x6e],
            400,
        ),
        raw(
            "the PROXY protocol",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\nGET / HTTP/1.1\r\n\r\n",
            400,
        ),
        raw("zeros", &[0; 512], 400),
        raw("ones", &[0xff; 1 << 13], 414),
    ]
}

/// Sends a request in pieces, and checks its rejection.
fn check<'a>(server: &Server, case: &Case, how: &str, pieces: impl IntoIterator<Item = &'a [u8]>) {
    let mut peer = Peer::new(server);
    peer.send(pieces);
    let answer = peer.answer(0);
    let (name, status) = (case.name, case.status);
    assert_eq!(
        answer.status(),
        Some(status),
        "{name}, {how}: {:?}",
        String::from_utf8_lossy(&answer.bytes)
    );
    assert!(answer.is_closed, "{name}, {how}: the connection stays open");
    let head = answer.head();
    let needed: &[&str] = match status {
        405 => &["allow: get\r\n"],
        426 => &["upgrade: websocket\r\n", "sec-websocket-version: 13\r\n"],
        _ => &[],
    };
    for line in needed {
        assert!(head.contains(line), "{name}, {how}: no {line:?} in {head}");
    }
    assert!(head.contains("\r\ndate: "), "{name}, {how}: no Date in {head}");
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")).map(str::parse);
    if case.name == "HEAD" {
        // The length is that of the response to GET (RFC 9110 section 9.3.2).
        assert!(matches!(length, Some(Ok(1_usize..))) && answer.body().is_empty(), "{how}: {head}");
    } else {
        assert_eq!(length, Some(Ok(answer.body().len())), "{name}, {how}: {head}");
    }
    assert!(
        head.contains("close"),
        "{name}, {how}: the client is not told that the connection ends: {head}"
    );
}

/// Checks the cases with one server, which then serves further clients.
fn check_all(cases: &[Case]) {
    let server = Server::start(&["--mode", "echo"]);
    for case in cases {
        let bytes = &case.bytes[..];
        check(&server, case, "at once", [bytes]);
        let (first, second) = bytes.split_at(bytes.len() / 2);
        check(&server, case, "in two pieces", [first, second]);
        // Byte by byte takes a system call each. The end of a long request does not matter.
        let few = &bytes[..bytes.len().min(20_000)];
        check(&server, case, "byte by byte", few.chunks(1));
    }
    let mut peer = Peer::new(&server);
    peer.send([&good().bytes()[..]]);
    assert_eq!(peer.answer(0).status(), Some(101), "the server goes on");
    server.stop_cleanly();
}

#[test]
fn request_lines_that_are_none() {
    check_all(&request_lines());
}

#[test]
fn lines_that_end_or_begin_wrongly() {
    check_all(&lines());
}

#[test]
fn what_is_there_twice() {
    check_all(&duplicates());
}

#[test]
fn requests_within_requests() {
    check_all(&smuggling());
}

#[test]
fn upgrades_that_lack_something() {
    check_all(&upgrades());
}

#[test]
fn floods_of_headers() {
    check_all(&floods());
}

#[test]
fn other_protocols() {
    check_all(&strangers());
}
