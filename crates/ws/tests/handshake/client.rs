//! The client's side of the handshake.

use windlass_ws::handshake::{
    AcceptOptions, ClientRequest, HandshakeError, HeadLimits, HeadReader, Negotiated, Request,
    RequestError, Response,
};

const KEY: [u8; 16] = *b"the sample nonce";

fn request() -> ClientRequest<'static> {
    ClientRequest::new("server.example.com:8080", "/chat?a", KEY)
        .protocol("chat")
        .protocol("superchat")
}

fn written(request: &ClientRequest<'_>) -> Result<String, RequestError> {
    let mut out = Vec::new();
    let result = request.write(&mut out);
    assert!(result.is_ok() || out.is_empty());
    result.map(|()| String::from_utf8(out).unwrap())
}

const GOOD: &str = "HTTP/1.1 101 Switching Protocols\nUpgrade: websocket\nConnection: Upgrade\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

fn head(lines: &str) -> Vec<u8> {
    super::head(lines)
}

fn with(start: &str, line: &str) -> Vec<u8> {
    assert!(GOOD.lines().any(|other| other.starts_with(start)), "{start}");
    let lines = GOOD.lines().map(|other| if other.starts_with(start) { line } else { other });
    head(&lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n"))
}

fn plus(lines: &str) -> Vec<u8> {
    head(&format!("{GOOD}\n{lines}"))
}

fn read<'a>(
    request: &ClientRequest<'_>,
    bytes: &'a [u8],
) -> Result<Negotiated<'a>, HandshakeError> {
    let (upgraded, len) = request.read_response(bytes, &HeadLimits::DEFAULT)?.expect("incomplete");
    assert_eq!(len, bytes.len());
    Ok(upgraded)
}

#[test]
fn a_request_has_all_that_the_rfc_asks_for() {
    let request = request().origin("http://example.com").header("Cookie", "a=b").header("X", "");
    assert_eq!(
        written(&request).unwrap(),
        "GET /chat?a HTTP/1.1\r\nHost: server.example.com:8080\r\nUpgrade: websocket\r\n\
         Connection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
         Origin: http://example.com\r\n\
         Sec-WebSocket-Protocol: chat, superchat\r\nCookie: a=b\r\nX: \r\n\r\n"
    );
}

#[test]
fn responses_before_the_final_one_are_passed_over() {
    let interim =
        b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n";
    let bytes = [&interim[..], &head(GOOD)].concat();
    read(&request(), &bytes).expect("the third accepts");
    for cut in 0..bytes.len() {
        let read = request().read_response(&bytes[..cut], &HeadLimits::DEFAULT);
        assert!(matches!(read, Ok(None)), "cut at {cut}: {read:?}");
    }
    let rejection = [&interim[..], b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"].concat();
    assert_eq!(
        request().read_response(&rejection, &HeadLimits::DEFAULT).unwrap_err(),
        HandshakeError::Status(403)
    );
}

#[test]
fn a_request_that_would_be_none_is_not_written() {
    use RequestError::*;
    let new = |host, target| ClientRequest::new(host, target, KEY);
    let names: Vec<String> = (0..65).map(|i| format!("p{i}")).collect();
    let many = |count: usize| {
        names[..count].iter().fold(new("a", "/"), |request, name| request.protocol(name))
    };
    assert!(written(&many(64)).is_ok());
    for (request, expected) in [
        (new("", "/"), Host),
        (new("a b", "/"), Host),
        (new("a\r\nX: y", "/"), Host),
        (new("http://a", "/"), Host),
        (new("a", ""), Target),
        (new("a", "chat"), Target),
        (new("a", "http://a/"), Target),
        (new("a", "/a b"), Target),
        (new("a", "/ HTTP/1.1\r\nX: y"), Target),
        (new("a", "/#b"), Target),
        (new("a", "/\u{e4}"), Target),
        (new("a", "/").origin("x\r\nX: y"), Origin),
        (new("a", "/").protocol(""), Protocol),
        (new("a", "/").protocol("a b"), Protocol),
        (new("a", "/").protocol("a").protocol("b").protocol("a"), Protocol),
        (many(65), Protocol),
        (new("a", "/").header("X: y", "z"), HeaderName),
        (new("a", "/").header("X", "y\nZ: z"), HeaderValue),
        (new("a", "/").header("host", "b"), ReservedHeader),
        (new("a", "/").header("Origin", "b"), ReservedHeader),
        (new("a", "/").header("Sec-WebSocket-Key", "b"), ReservedHeader),
        (new("a", "/").header("Content-Length", "1"), ReservedHeader),
    ] {
        assert_eq!(written(&request), Err(expected), "{request:?}");
    }
}

#[test]
fn the_answer_of_the_rfc_is_taken() {
    let chosen = plus("Sec-WebSocket-Protocol: superchat\nServer: x");
    let upgraded = read(&request(), &chosen).unwrap();
    assert_eq!(upgraded.protocol, Some("superchat"));
    assert_eq!((upgraded.response.status(), upgraded.response.header("server")), (101, Some("x")));
    for good in [
        head(GOOD),
        with("HTTP", "HTTP/1.1 101 "),
        with("HTTP", "HTTP/1.1 101"),
        with("HTTP", "HTTP/1.1 101 \u{e4} : whatever"),
        with("Upgrade", "upgrade: WebSocket"),
        with("Connection", "Connection: keep-alive, upgrade"),
        plus("Content-Length: 0"),
        plus("Set-Cookie: a\nSet-Cookie: b"),
    ] {
        let result = read(&request(), &good);
        assert!(
            result.is_ok_and(|upgraded| upgraded.protocol.is_none()),
            "{}",
            good.escape_ascii()
        );
    }
}

#[test]
fn every_other_answer_fails() {
    use HandshakeError::*;
    for (bytes, expected) in [
        (with("HTTP", "HTTP/1.1 200 OK"), Status(200)),
        (with("HTTP", "HTTP/1.1 302 Found\nLocation: /"), Status(302)),
        (with("HTTP", "HTTP/1.0 401 Unauthorized"), Status(401)),
        (with("HTTP", "HTTP/1.0 101 Switching"), HttpVersion),
        (with("HTTP", "HTTP/2.0 101 Switching"), HttpVersion),
        (with("HTTP", "HTTP/1.1  101 x"), Malformed),
        (with("HTTP", "HTTP/1.1 1010 x"), Malformed),
        (with("HTTP", "HTTP/1.1 +10 x"), Malformed),
        (with("HTTP", "HTTP/1.1 099 x"), Malformed),
        (with("HTTP", "ICY 200 OK"), Malformed),
        (with("HTTP", "\nHTTP/1.1 101 x"), Malformed),
        (with("Upgrade", ""), Upgrade),
        (with("Upgrade", "Upgrade: h2c"), Upgrade),
        (with("Upgrade", "Upgrade: websocket, h2c"), Upgrade),
        (plus("Upgrade: websocket"), DuplicateHeader),
        (with("Connection", ""), Connection),
        (with("Connection", "Connection: close"), Connection),
        (with("Sec-WebSocket-Accept", ""), Accept),
        (with("Sec-WebSocket-Accept", "Sec-WebSocket-Accept:"), Accept),
        (
            with("Sec-WebSocket-Accept", "Sec-WebSocket-Accept: S3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
            Accept,
        ),
        (
            with("Sec-WebSocket-Accept", "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo= x"),
            Accept,
        ),
        (plus("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), DuplicateHeader),
        (plus("Content-Length: 1"), UnexpectedBody),
        (plus("Content-Length: x"), UnexpectedBody),
        (plus("Transfer-Encoding: chunked"), UnexpectedBody),
        (plus("Sec-WebSocket-Protocol: other"), Protocol),
        (plus("Sec-WebSocket-Protocol: Chat"), Protocol),
        (plus("Sec-WebSocket-Protocol: chat, superchat"), Protocol),
        (plus("Sec-WebSocket-Protocol:"), Protocol),
        (plus("Sec-WebSocket-Protocol: chat\nSec-WebSocket-Protocol: chat"), DuplicateHeader),
        (plus("Sec-WebSocket-Extensions: permessage-deflate"), Extension),
        (plus("Sec-WebSocket-Extensions: x-other"), Extension),
        (plus("Sec-WebSocket-Extensions:"), Extension),
        (plus("Sec-WebSocket-Extensions: a\nSec-WebSocket-Extensions: b"), DuplicateHeader),
        (plus("X : y"), Malformed),
        (plus("X: y\n z"), Malformed),
        (plus("X: \0"), Malformed),
        (plus(&"X: y\n".repeat(64)), TooManyHeaders),
        (plus(&format!("X: {}", "y".repeat(8192))), HeadTooLong),
        (head("HTTP/1.1 200 OK\nContent-Length: 5"), Status(200)),
    ] {
        let shown = bytes.escape_ascii();
        assert_eq!(read(&request(), &bytes).map(drop), Err(expected), "{shown}");
    }
}

#[test]
fn an_answer_is_read_alike_wherever_it_is_cut() {
    let request = request();
    let first_frame = [0x81, 2, b'\r', b'\n'];
    for head in [
        plus("Sec-WebSocket-Protocol: chat"),
        plus("Sec-WebSocket-Protocol: x"),
        with("Upgrade", "Upgrade : a"),
    ] {
        let bytes = [&head[..], &first_frame].concat();
        let judge = |found: Option<(Response<'_>, usize)>| {
            found.map(|(response, used)| {
                (request.check(response).map(|upgraded| upgraded.protocol.map(str::to_owned)), used)
            })
        };
        let whole = Response::parse(&bytes, &HeadLimits::DEFAULT).map(judge);
        for cut in 0..bytes.len() {
            let mut reader = HeadReader::new(HeadLimits::DEFAULT);
            let mut result = reader.response(&bytes[..cut]).map(judge);
            let mut before = 0;
            if result == Ok(None) {
                before = cut;
                result = reader.response(&bytes[cut..]).map(judge);
            }
            let total = result.map(|found| found.map(|(upgraded, used)| (upgraded, used + before)));
            assert_eq!(total, whole, "cut at {cut}");
        }
    }
}

#[test]
fn client_and_server_understand_each_other() {
    for protocol in [None, Some("chat"), Some("superchat")] {
        let request = request().origin("null").header("X-A", "b");
        let sent = written(&request).unwrap();
        let (received, len) =
            Request::parse(sent.as_bytes(), &HeadLimits::DEFAULT).unwrap().unwrap();
        assert_eq!(len, sent.len());
        let upgrade = received.upgrade().unwrap();
        assert_eq!(
            (upgrade.origin(), received.host()),
            (Some("null"), Some("server.example.com:8080"))
        );
        let mut answer = Vec::new();
        upgrade.accept(&AcceptOptions::DEFAULT.protocol(protocol), &mut answer).unwrap();
        assert_eq!(read(&request, &answer).unwrap().protocol, protocol);
        let other = ClientRequest::new("a", "/", [1; 16]).protocol("chat").protocol("superchat");
        assert_eq!(
            read(&other, &answer).map(drop),
            Err(HandshakeError::Accept),
            "the answer to another request"
        );
    }
}
