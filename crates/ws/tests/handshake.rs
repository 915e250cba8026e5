//! The opening handshake over bytes: which requests are accepted or rejected, and with which
//! answer, however the bytes are cut.

use proptest::prelude::*;
use windlass_ws::handshake::{
    AcceptOptions, BodyLength, HeadLimits, HeadReader, Rejection, Request, Upgrade,
};

#[path = "handshake/client.rs"]
mod client;
#[cfg(feature = "deflate")]
#[path = "handshake/negotiation.rs"]
mod negotiation;

const LIMITS: HeadLimits = HeadLimits::DEFAULT;

/// The handshake of RFC 6455 section 1.2, with other header lines. `\n` stands for CR LF.
fn head(lines: &str) -> Vec<u8> {
    format!("{lines}\n\n").replace('\n', "\r\n").into_bytes()
}

const GOOD: &str = "GET /chat HTTP/1.1\nHost: server.example.com\n\
    Upgrade: websocket\nConnection: Upgrade\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\nOrigin: http://example.com\n\
    Sec-WebSocket-Protocol: chat, superchat\nSec-WebSocket-Version: 13";

/// `GOOD` with the line that starts with `start` replaced, or left out.
fn with(start: &str, line: &str) -> Vec<u8> {
    assert!(GOOD.lines().any(|other| other.starts_with(start)), "{start}");
    let lines = GOOD.lines().map(|other| if other.starts_with(start) { line } else { other });
    head(&lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n"))
}

/// `GOOD` with additional lines.
fn plus(lines: &str) -> Vec<u8> {
    head(&format!("{GOOD}\n{lines}"))
}

/// A server's decision: an upgrade, or the rejection.
fn judge(bytes: &[u8]) -> Result<Upgrade<'_>, Rejection> {
    match Request::parse(bytes, &LIMITS)? {
        Some((request, len)) => {
            assert_eq!(len, bytes.len());
            request.upgrade()
        }
        None => panic!("incomplete: {}", bytes.escape_ascii()),
    }
}

fn accepted(bytes: &[u8], accept: &AcceptOptions<'_>) -> String {
    let mut out = Vec::new();
    judge(bytes).unwrap().accept(accept, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn the_handshake_of_the_rfc_is_accepted() {
    let bytes = head(GOOD);
    let upgrade = judge(&bytes).unwrap();
    assert_eq!(upgrade.protocols().collect::<Vec<_>>(), ["chat", "superchat"]);
    assert_eq!(upgrade.origin(), Some("http://example.com"));
    assert_eq!(upgrade.request().path(), "/chat");
    assert_eq!(
        accepted(
            &bytes,
            &AcceptOptions::DEFAULT
                .protocol(Some("chat"))
                .headers(&[("X-A", "b c"), ("Set-Cookie", "")])
        ),
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: chat\r\n\
         X-A: b c\r\n\
         Set-Cookie: \r\n\r\n"
    );
}

#[test]
fn requests_of_browsers_and_proxies_are_accepted() {
    for good in [
        with("Connection", "Connection: keep-alive, Upgrade"),
        with("Connection", "Connection: keep-alive\nConnection: x,,uPGRADE ,"),
        with("Connection", "connection:\tUPGRADE \t"),
        with("Upgrade", "UPGRADE:WebSocket"),
        with("Upgrade", "Upgrade: h2c, websocket"),
        with("Upgrade", "Upgrade: h2c\nUpgrade: websocket"),
        with("Host", "Host: [::1]:8080"),
        with("Host", "Host: a,b"), // Odd, but a name.
        with("Origin", ""),
        with("Origin", "Origin: null"),
        with("Sec-WebSocket-Protocol", ""),
        with("Sec-WebSocket-Protocol", "Sec-WebSocket-Protocol: a\nSec-WebSocket-Protocol: b"),
        with("GET", "GET http://other.example:81/chat?a=b HTTP/1.1"),
        with("GET", "GET /%20~;=?a|b{}\" HTTP/1.1"),
        with("GET", "GET / HTTP/1.2"),
        with("GET", "\nGET / HTTP/1.1"),
        plus("Content-Length: 0"),
        plus("Cookie: a=\u{e4}; b\nCookie: c"),
        plus("X-Empty:"),
        plus(
            "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits, x-other;a=\"b\"",
        ),
        plus("Sec-WebSocket-Extensions: ,"),
    ] {
        let result = judge(&good);
        assert!(result.is_ok(), "{:?} for {}", result.unwrap_err(), good.escape_ascii());
    }
}

#[test]
fn everything_else_is_rejected_with_its_status() {
    use Rejection::*;
    let many_protocols = |count: usize| {
        let names: Vec<String> = (0..count).map(|i| format!("p{i}")).collect();
        format!("Sec-WebSocket-Protocol: {}", names.join(","))
    };
    assert!(judge(&with("Sec-WebSocket-Protocol", &many_protocols(64))).is_ok());
    let table = [
        // The request line.
        (with("GET", "GET /chat"), RequestLine, 400),
        (with("GET", "GET  /chat HTTP/1.1"), RequestLine, 400),
        (with("GET", "GET /chat HTTP/1.1 "), RequestLine, 400),
        (with("GET", "GET /a b HTTP/1.1"), RequestLine, 400),
        (with("GET", "GET\t/chat HTTP/1.1"), RequestLine, 400),
        (with("GET", "GET /chat HTTP/1.10"), RequestLine, 400),
        (with("GET", "GET /chat http/1.1"), RequestLine, 400),
        (with("GET", "G@T /chat HTTP/1.1"), RequestLine, 400),
        (with("GET", "GET /\u{e4} HTTP/1.1"), Target, 400),
        (with("GET", "GET chat HTTP/1.1"), Target, 400),
        (with("GET", "GET * HTTP/1.1"), Target, 400),
        (with("GET", "GET /a#b HTTP/1.1"), Target, 400),
        (with("GET", "GET ftp://a/ HTTP/1.1"), Target, 400),
        (with("GET", "GET http://u:p@a/ HTTP/1.1"), Target, 400),
        (with("GET", "GET /chat HTTP/2.0"), HttpVersion, 505),
        (head("PRI * HTTP/2.0"), HttpVersion, 505),
        (with("GET", "GET /chat HTTP/1.0"), HttpVersion, 505),
        (with("GET", "POST /chat HTTP/1.1"), MethodNotAllowed, 405),
        (with("GET", "OPTIONS * HTTP/1.1"), MethodNotAllowed, 405),
        (with("GET", "CONNECT a:1 HTTP/1.1"), MethodNotAllowed, 405),
        (with("GET", "get /chat HTTP/1.1"), UnknownMethod, 501),
        (with("GET", "BREW /chat HTTP/1.1"), UnknownMethod, 501),
        // Header lines.
        (plus("no colon"), HeaderName, 400),
        (plus("X : 1"), HeaderName, 400),
        (plus("X\t: 1"), HeaderName, 400),
        (plus(": 1"), HeaderName, 400),
        (plus("X(: 1"), HeaderName, 400),
        (plus("\u{e4}: 1"), HeaderName, 400),
        (plus("X: 1\n folded: 2"), FoldedLine, 400),
        (plus("X: 1\n\tfolded"), FoldedLine, 400),
        (with("Host", " Host: a"), FoldedLine, 400),
        (plus("X: a\0b"), ControlCharacter, 400),
        (plus("X: a\x0bb"), ControlCharacter, 400),
        (plus("X: a\x7fb"), ControlCharacter, 400),
        (plus("X\0: a"), ControlCharacter, 400),
        // Headers that may occur only once.
        (plus("Host: server.example.com"), DuplicateHeader, 400),
        (plus("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), DuplicateHeader, 400),
        (plus("sec-websocket-version: 13"), DuplicateHeader, 400),
        (plus("Origin: http://example.com"), DuplicateHeader, 400),
        (plus("Content-Length: 0\nContent-Length: 0"), DuplicateHeader, 400),
        (plus("Transfer-Encoding: chunked\nTransfer-Encoding: chunked"), DuplicateHeader, 400),
        // Hosts.
        (with("Host", ""), NoHost, 400),
        (with("Host", "Host:"), BadHost, 400),
        (with("Host", "Host: a b"), BadHost, 400),
        (with("Host", "Host: u@a"), BadHost, 400),
        (with("Host", "Host: a:99999"), BadHost, 400),
        (with("Host", "Host: http://a"), BadHost, 400),
        (with("Host", "Host: \u{e4}"), BadHost, 400),
        // Bodies, and request smuggling.
        (plus("Content-Length: 1"), UnexpectedBody, 400),
        (plus("Transfer-Encoding: chunked"), UnexpectedBody, 400),
        (plus("Content-Length: 0\nTransfer-Encoding: chunked"), BodyLength, 400),
        (plus("Transfer-Encoding: chunked\nContent-Length: 5"), BodyLength, 400),
        (plus("Content-Length: +1"), BodyLength, 400),
        (plus("Content-Length: 1, 1"), BodyLength, 400),
        (plus("Content-Length:"), BodyLength, 400),
        (plus("Content-Length: 99999999999999999999"), BodyLength, 400),
        (plus("Transfer-Encoding: gzip, chunked"), TransferCoding, 501),
        (plus("Transfer-Encoding: gzip;q=\"a, b\" , CHUNKED"), TransferCoding, 501),
        (plus("Transfer-Encoding: gzip"), BodyLength, 400),
        (plus("Transfer-Encoding: chunked, gzip"), BodyLength, 400),
        (plus("Transfer-Encoding: chunked, chunked"), BodyLength, 400),
        (plus("Transfer-Encoding: chunked;a=b"), BodyLength, 400),
        (plus("Transfer-Encoding: gzip,"), BodyLength, 400),
        (plus("Transfer-Encoding: xchunked"), BodyLength, 400),
        (plus("Transfer-Encoding:"), BodyLength, 400),
        (with("GET", "GET / HTTP/1.0\nTransfer-Encoding: chunked"), BodyLength, 400),
        // The upgrade.
        (with("Upgrade", ""), NotAnUpgrade, 426),
        (with("Upgrade", "Upgrade: h2c"), NotAnUpgrade, 426),
        (with("Upgrade", "Upgrade: websockets"), NotAnUpgrade, 426),
        (with("Upgrade", "Upgrade: web socket"), NotAnUpgrade, 426),
        (with("Connection", ""), Connection, 400),
        (with("Connection", "Connection: keep-alive"), Connection, 400),
        (with("Connection", "Connection: upgraded, x upgrade"), Connection, 400),
        (with("Sec-WebSocket-Version", ""), WebSocketVersion, 426),
        (with("Sec-WebSocket-Version", "Sec-WebSocket-Version: 8"), WebSocketVersion, 426),
        (with("Sec-WebSocket-Version", "Sec-WebSocket-Version: 013"), WebSocketVersion, 426),
        (with("Sec-WebSocket-Version", "Sec-WebSocket-Version: 13, 8"), WebSocketVersion, 426),
        (with("Sec-WebSocket-Key", ""), Key, 400),
        (with("Sec-WebSocket-Key", "Sec-WebSocket-Key:"), Key, 400),
        (with("Sec-WebSocket-Key", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ"), Key, 400),
        (with("Sec-WebSocket-Key", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZR=="), Key, 400),
        (with("Sec-WebSocket-Key", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZWVl"), Key, 400),
        (with("Sec-WebSocket-Protocol", "Sec-WebSocket-Protocol:"), Protocols, 400),
        (with("Sec-WebSocket-Protocol", "Sec-WebSocket-Protocol: ,"), Protocols, 400),
        (with("Sec-WebSocket-Protocol", "Sec-WebSocket-Protocol: a b"), Protocols, 400),
        (with("Sec-WebSocket-Protocol", "Sec-WebSocket-Protocol: a, b, a"), Protocols, 400),
        (plus("Sec-WebSocket-Protocol: chat"), Protocols, 400),
        (with("Sec-WebSocket-Protocol", &many_protocols(65)), Protocols, 400),
        (plus("Sec-WebSocket-Extensions: a;"), Extensions, 400),
        (
            plus("Sec-WebSocket-Extensions: a\nSec-WebSocket-Extensions: b; c=\"d e\""),
            Extensions,
            400,
        ),
    ];
    for (bytes, expected, status) in table {
        let shown = bytes.escape_ascii();
        assert_eq!(judge(&bytes).err(), Some(expected), "{shown}");
        assert_eq!(expected.status(), status, "{shown}");
    }
}

#[test]
fn line_ends_other_than_crlf_are_rejected() {
    let good = head(GOOD);
    for at in (0..good.len()).filter(|&at| good[at] == b'\r') {
        let without_cr = [&good[..at], &good[at + 1..]].concat();
        let without_lf = [&good[..=at], &good[at + 2..]].concat();
        let doubled = [&good[..=at], &good[at..]].concat();
        for bad in [without_cr, without_lf, doubled] {
            // Without its last LF, a head is incomplete.
            let result = Request::parse(&bad, &LIMITS);
            let incomplete = bad.len() == good.len() - 1 && good.starts_with(&bad);
            assert_eq!(
                result.err(),
                (!incomplete).then_some(Rejection::ControlCharacter),
                "{}",
                bad.escape_ascii()
            );
        }
    }
}

#[test]
fn floods_are_rejected_while_they_come() {
    let headers = |count: usize| format!("GET / HTTP/1.1\nHost: a\n{}", "X: y\n".repeat(count - 1));
    let parse = |bytes: &[u8]| Request::parse(bytes, &LIMITS).map(|found| found.is_some());
    assert_eq!(parse(&head(headers(64).trim_end())), Ok(true));
    assert_eq!(parse(&head(headers(65).trim_end())), Err(Rejection::TooManyHeaders));
    assert_eq!(parse(headers(65).replace('\n', "\r\n").as_bytes()), Err(Rejection::TooManyHeaders));

    let long = |bytes: usize| head(&format!("GET / HTTP/1.1\nHost: a\nX: {}", "y".repeat(bytes)));
    let most = LIMITS.head_bytes_max - long(0).len();
    assert_eq!(parse(&long(most)), Ok(true));
    assert_eq!(parse(&long(most + 1)), Err(Rejection::HeadTooLong));
    assert_eq!(parse(&long(1 << 20)[..LIMITS.head_bytes_max]), Ok(false));
    assert_eq!(parse(&long(1 << 20)[..=LIMITS.head_bytes_max]), Err(Rejection::HeadTooLong));

    let target = |bytes: usize| head(&format!("GET /{} HTTP/1.1\nHost: a", "y".repeat(bytes - 1)));
    assert_eq!(parse(&target(LIMITS.target_bytes_max)), Ok(true));
    assert_eq!(parse(&target(LIMITS.target_bytes_max + 1)), Err(Rejection::TargetTooLong));
    assert_eq!(parse(&[b'y'; 8000]), Err(Rejection::TargetTooLong));
    assert_eq!((Rejection::TargetTooLong.status(), Rejection::HeadTooLong.status()), (414, 431));
    assert_eq!(Rejection::TooManyHeaders.status(), 431);
}

#[test]
fn a_buffer_that_grows_is_bounded() {
    let mut reader = HeadReader::new(LIMITS);
    let flood = b"X: y\r\n".repeat(1000);
    let mut given = 0;
    let result = loop {
        let piece = if given == 0 { &b"GET / HTTP/1.1\r\n"[..] } else { &flood[..150] };
        match reader.request(piece) {
            Ok(found) => assert!(found.is_none()),
            Err(rejection) => break rejection,
        }
        given += piece.len();
        assert_eq!(reader.buffered(), given);
    };
    assert_eq!(result, Rejection::TooManyHeaders);
    assert!(given < 600, "{given}");
}

#[test]
fn ordinary_requests_are_read_as_well() {
    let bytes = head("HEAD /healthz?verbose HTTP/1.1\nHost: a:80\nAccept: */*\nX-Raw: \u{e4}");
    let (request, _) = Request::parse(&bytes, &LIMITS).unwrap().unwrap();
    assert_eq!((request.method(), request.target()), ("HEAD", "/healthz?verbose"));
    assert_eq!((request.path(), request.query()), ("/healthz", Some("verbose")));
    assert_eq!(
        (request.host(), request.header("ACCEPT"), request.header("B")),
        (Some("a:80"), Some("*/*"), None)
    );
    assert_eq!(
        request.headers().map(|header| header.name).collect::<Vec<_>>(),
        ["Host", "Accept", "X-Raw"]
    );
    assert_eq!((request.body(), request.is_http_1_0()), (BodyLength::None, false));
    assert_eq!(request.upgrade().err(), Some(Rejection::MethodNotAllowed));

    let bytes = head("POST / HTTP/1.1\nHost: a\nContent-Length: 12");
    assert_eq!(Request::parse(&bytes, &LIMITS).unwrap().unwrap().0.body(), BodyLength::Length(12));
    let bytes = head("POST / HTTP/1.1\nHost: a\nTransfer-Encoding: Chunked");
    assert_eq!(Request::parse(&bytes, &LIMITS).unwrap().unwrap().0.body(), BodyLength::Chunked);
    let bytes = head("GET / HTTP/1.0");
    let (request, _) = Request::parse(&bytes, &LIMITS).unwrap().unwrap();
    assert_eq!((request.host(), request.is_http_1_0()), (None, true));
    let bytes = head("GET http://b:1/c HTTP/1.1\nHost: a\nX: 1");
    let (request, _) = Request::parse(&bytes, &LIMITS).unwrap().unwrap();
    assert_eq!(
        (request.host(), request.path(), request.header("Host")),
        (Some("b:1"), "/c", Some("a"))
    );
}

#[test]
fn a_rejection_is_a_whole_response() {
    let mut out = b"before".to_vec();
    Rejection::WebSocketVersion.write(&mut out);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "beforeHTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Connection: Upgrade, close\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Content-Length: 33\r\n\r\n\
         WebSocket version 13 is required\n"
    );
    for (bytes, phrase) in [
        (with("GET", "POST / HTTP/1.1"), "405 Method Not Allowed"),
        (with("GET", "BREW / HTTP/1.1"), "501 Not Implemented"),
        (with("GET", "GET / HTTP/1.0"), "505 HTTP Version Not Supported"),
        (with("Host", ""), "400 Bad Request"),
    ] {
        let mut out = Vec::new();
        judge(&bytes).unwrap_err().write(&mut out);
        let mut headers = [httparse::EMPTY_HEADER; 8];
        let mut response = httparse::Response::new(&mut headers);
        let len = response.parse(&out).unwrap().unwrap();
        assert_eq!(format!("{} {}", response.code.unwrap(), response.reason.unwrap()), phrase);
        let value = |name| {
            response.headers.iter().find(|header| header.name == name).map(|header| header.value)
        };
        assert_eq!(value("Connection"), Some(&b"close"[..]));
        assert_eq!(value("Content-Length"), Some((out.len() - len).to_string().as_bytes()));
        assert_eq!(value("Allow"), phrase.starts_with("405").then_some(&b"GET"[..]));
        assert!(out[len..].ends_with(b"\n"));
    }
}

#[test]
fn a_rejection_takes_further_headers() {
    let mut out = Vec::new();
    let date = ("Date", "Sun, 06 Nov 1994 08:49:37 GMT");
    Rejection::MethodNotAllowed.write_with_headers(&[date, ("Server", "a")], &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let start = "HTTP/1.1 405 Method Not Allowed\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                 Server: a\r\nAllow: GET\r\n";
    assert!(text.starts_with(start), "{text}");
    for bad in [
        ("X", "a\r\nb"),
        ("X Y", "a"),
        ("allow", "GET"),
        ("Content-Type", "a/b"),
        ("Content-Length", "1"),
    ] {
        let mut out = Vec::new();
        assert!(
            Rejection::MethodNotAllowed.write_with_headers(&[date, bad], &mut out).is_err(),
            "{bad:?}"
        );
        assert!(out.is_empty());
    }
}

#[test]
fn additional_headers_cannot_break_lines() {
    use windlass_ws::handshake::AcceptError::*;
    let bytes = head(GOOD);
    let upgrade = judge(&bytes).unwrap();
    for (name, value, expected) in [
        ("X", "a\r\nSet-Cookie: b", HeaderValue),
        ("X", "a\nb", HeaderValue),
        ("X", "a\0", HeaderValue),
        ("X\r\nY", "a", HeaderName),
        ("X:", "a", HeaderName),
        ("", "a", HeaderName),
        ("connection", "close", ReservedHeader),
        ("Upgrade", "h2c", ReservedHeader),
        ("sec-websocket-accept", "a", ReservedHeader),
        ("Sec-WebSocket-Extensions", "a", ReservedHeader),
        ("Content-Length", "5", ReservedHeader),
        ("Transfer-Encoding", "chunked", ReservedHeader),
    ] {
        let mut out = vec![1];
        let headers = [("Y", "fine"), (name, value)];
        let result = upgrade.accept(&AcceptOptions::DEFAULT.headers(&headers), &mut out);
        assert_eq!((result, &out[..]), (Err(expected), &[1][..]), "{name}: {value}");
    }
    for protocol in ["other", "Chat", "", "chat, superchat"] {
        let mut out = Vec::new();
        let result = upgrade.accept(&AcceptOptions::DEFAULT.protocol(Some(protocol)), &mut out);
        assert_eq!((result, out.len()), (Err(ProtocolNotOffered), 0), "{protocol}");
    }
}

// ---- any cut ----

/// The result of a reader for bytes in these pieces, and how many bytes it took.
fn read_in_pieces<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (Result<String, Rejection>, usize) {
    let mut reader = HeadReader::new(LIMITS);
    let mut taken = 0;
    for piece in pieces {
        match reader.request(piece) {
            Ok(None) => taken += piece.len(),
            Ok(Some((request, used))) => {
                let headers: Vec<_> = request.headers().collect();
                let shown = format!("{} {} {headers:?}", request.method(), request.target());
                return (request.upgrade().map(|_| shown), taken + used);
            }
            Err(rejection) => return (Err(rejection), 0),
        }
    }
    (Ok("incomplete".to_owned()), taken)
}

#[test]
fn a_request_is_read_alike_wherever_it_is_cut() {
    let frames = b"\x81\x85\r\n\r\n\0\0\0";
    for bytes in [
        head(GOOD),
        with("GET", "\nGET /chat HTTP/1.1"),
        plus("Sec-WebSocket-Protocol: chat"),
        plus("Host: b"),
        plus("X: 1\n folded"),
        plus("X: \x01"),
        head("GET / HTTP/1.1\nHost: a"),
        head("PRI * HTTP/2.0"),
    ] {
        let with_frames = [&bytes[..], frames].concat();
        let whole = read_in_pieces([&with_frames[..]].into_iter());
        if whole.0.is_ok() {
            assert_eq!(whole.1, bytes.len());
        }
        for cut in 0..=with_frames.len() {
            let (start, end) = with_frames.split_at(cut);
            assert_eq!(read_in_pieces([start, end].into_iter()), whole, "cut at {cut}");
            let parsed = Request::parse(start, &LIMITS);
            match parsed {
                Ok(None) => assert!(cut < bytes.len()),
                Ok(Some((_, len))) => assert!(len == bytes.len() && cut >= len),
                Err(rejection) => assert_eq!(whole.0, Err(rejection)),
            }
        }
        assert_eq!(read_in_pieces(with_frames.chunks(1)), whole, "byte by byte");
    }
}

#[test]
fn a_reader_takes_one_request_after_the_other() {
    let mut stream = Vec::new();
    for name in ["a", "b", "c"] {
        stream.extend(head(&format!("GET /{name} HTTP/1.1\nHost: {name}")));
    }
    for size in [1, 2, 3, 7, 30, 1000] {
        let mut reader = HeadReader::new(LIMITS);
        let mut found = Vec::new();
        for mut piece in stream.chunks(size) {
            while let Some((request, used)) = reader.request(piece).unwrap() {
                found.push(format!("{}{}", request.path(), request.host().unwrap()));
                piece = &piece[used..];
            }
        }
        assert_eq!(found, ["/aa", "/bb", "/cc"], "pieces of {size}");
        assert_eq!(reader.buffered(), 0);
    }
}

// ---- arbitrary bytes ----

/// A valid handshake with bytes changed, inserted and removed.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let seeds = prop_oneof![
        Just(head(GOOD)),
        Just(plus(
            "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits=\"10\"\nX-Y: z"
        )),
        Just(head("POST /a?b HTTP/1.0\nContent-Length: 5\nA: b")),
        Just(head("GET http://[::1]:80/a HTTP/1.1\nHost: [::1]:80\nConnection: close")),
    ];
    let byte = prop_oneof![any::<u8>(), proptest::sample::select(&b"\r\n\t :;,=\"\\\0/hH1"[..])];
    let edit = (any::<prop::sample::Index>(), 0..3, byte);
    (seeds, proptest::collection::vec(edit, 0..4)).prop_map(|(mut bytes, edits)| {
        for (at, kind, byte) in edits {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        bytes
    })
}

/// httparse reads every accepted head in the same way.
fn agrees_with_httparse(bytes: &[u8], request: &Request<'_>, len: usize) {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut other = httparse::Request::new(&mut headers);
    assert_eq!(other.parse(bytes), Ok(httparse::Status::Complete(len)), "{}", bytes.escape_ascii());
    assert_eq!((other.method, other.path), (Some(request.method()), Some(request.target())));
    assert_eq!(other.version, Some(u8::from(!request.is_http_1_0())));
    let ours: Vec<_> = request.headers().map(|header| (header.name, header.value)).collect();
    let theirs: Vec<_> = other.headers.iter().map(|header| (header.name, header.value)).collect();
    assert_eq!(ours, theirs);
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(windlass_testkit::random::cases(1000))
    })]

    #[test]
    fn any_bytes_are_read_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Err(rejection) = Request::parse(&bytes, &LIMITS) {
            prop_assert!((400..=505).contains(&rejection.status()));
        }
    }

    #[test]
    fn a_damaged_handshake_is_read_or_rejected(
        bytes in damaged(),
        sizes in proptest::collection::vec(1_usize..90, 1..9),
    ) {
        let found = Request::parse(&bytes, &LIMITS);
        let mut rest = &bytes[..];
        let mut sizes = sizes.iter().cycle();
        let pieces = core::iter::from_fn(|| {
            let (piece, after) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
            rest = after;
            (!piece.is_empty()).then_some(piece)
        });
        let in_pieces = read_in_pieces(pieces);
        match found {
            Ok(Some((request, len))) => {
                // httparse rejects minor versions above 1.
                let first_line = bytes[2..].split(|&byte| byte == b'\r').next().unwrap();
                if first_line.ends_with(b"HTTP/1.1") || first_line.ends_with(b"HTTP/1.0") {
                    agrees_with_httparse(&bytes, &request, len);
                }
                prop_assert_eq!(in_pieces.0.err(), request.upgrade().err());
                if let Ok(upgrade) = request.upgrade() {
                    prop_assert_eq!(in_pieces.1, len);
                    let mut out = Vec::new();
                    let options =
                        AcceptOptions::DEFAULT.protocol(upgrade.protocols().last());
                    upgrade.accept(&options, &mut out).unwrap();
                    prop_assert!(out.ends_with(b"\r\n\r\n"));
                }
            }
            Ok(None) => prop_assert_eq!(in_pieces, (Ok("incomplete".to_owned()), bytes.len())),
            Err(rejection) => {
                prop_assert_eq!(in_pieces.0, Err(rejection));
                let mut out = Vec::new();
                rejection.write(&mut out);
                prop_assert!((400..=505).contains(&rejection.status()) && out.ends_with(b"\n"));
            }
        }
    }
}
