//! Heads of requests and responses: read at once, in pieces, by httparse, and exchanged between
//! both ends.

use windlass_ws::{
    deflate::{Compressor, DeflateConfig},
    handshake::{
        AcceptOptions, BodyLength, ClientRequest, HandshakeError, HeadLimits, HeadReader,
        Rejection, Request, Response,
    },
};

use super::input::{Cuts, Input};

/// The key of the example in RFC 6455. All generated requests have it.
const KEY: [u8; 16] = *b"the sample nonce";

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 4 {
        0 => {
            let mut cuts = Cuts::new(&mut input);
            request(input.rest(), &mut cuts);
        }
        1 => {
            let mut cuts = Cuts::new(&mut input);
            request(&made_up(&mut input), &mut cuts);
        }
        2 => {
            let mut cuts = Cuts::new(&mut input);
            response(input.rest(), &mut cuts);
        }
        _ => round_trip(&mut input),
    }
}

/// The parts of a request that are compared.
type Told = (usize, String, String, Vec<(String, Vec<u8>)>, BodyLength);

fn tell(request: &Request<'_>, len: usize) -> Told {
    let headers =
        request.headers().map(|header| (header.name.to_owned(), header.value.to_vec())).collect();
    (len, request.method().to_owned(), request.target().to_owned(), headers, request.body())
}

/// Valid and invalid request lines that a fuzzer would take long to find.
fn made_up(input: &mut Input<'_>) -> Vec<u8> {
    const LINES: [&str; 32] = [
        "Host: example.org",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",
        "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=10, \
         permessage-deflate",
        "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; \
         client_no_context_takeover",
        "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=\"9\"",
        "Sec-WebSocket-Extensions: x; y=\"a\\\"b, c\", z",
        "Sec-WebSocket-Protocol: chat, superchat",
        "Sec-WebSocket-Protocol: mqtt",
        "Sec-WebSocket-Protocol: ,,",
        "Content-Length: 0",
        "Content-Length: 4",
        "Transfer-Encoding: chunked",
        "Connection: keep-alive, Upgrade",
        "Upgrade: h2c",
        "Host: [::1]:80",
        "Host: a:b@c",
        "Origin: https://example.org",
        " folded",
        "X : y",
        "X",
        ": y",
        "X: \u{e9}",
        "X: a\nb",
        "X: a\rb",
        "X:",
        "Authorization: a",
        "host: EXAMPLE.org:443",
        "sec-websocket-version: 8",
    ];
    const FIRST: [&str; 8] = [
        "GET / HTTP/1.1",
        "GET /chat?room=1 HTTP/1.1",
        "GET http://example.org/x HTTP/1.1",
        "POST / HTTP/1.1",
        "GET / HTTP/1.0",
        "OPTIONS * HTTP/1.1",
        "CONNECT example.org:443 HTTP/1.1",
        "GET  / HTTP/2.0",
    ];
    let mut text = String::new();
    let first = input.byte();
    text.push_str(FIRST[usize::from(first) % FIRST.len()]);
    text.push_str("\r\n");
    // Usually the five lines of an upgrade.
    let some = if first & 0x80 == 0 { 5 } else { 0 };
    for line in &LINES[..some] {
        text.push_str(line);
        text.push_str("\r\n");
    }
    let count = input.byte() % 16;
    for _ in 0..count {
        text.push_str(LINES[usize::from(input.byte()) % LINES.len()]);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    let mut bytes = text.into_bytes();
    // Changes a few bytes.
    for _ in 0..input.byte() % 4 {
        let at = input.number() % bytes.len();
        bytes[at] = input.byte();
    }
    bytes.extend_from_slice(input.rest());
    bytes
}

fn request(bytes: &[u8], cuts: &mut Cuts) {
    let limits = HeadLimits::DEFAULT;
    let whole =
        Request::parse(bytes, &limits).map(|found| found.map(|(request, len)| tell(&request, len)));
    let pieces = in_pieces(bytes, cuts, |reader, piece| {
        reader.request(piece).map(|found| found.map(|(request, used)| tell(&request, used)))
    });
    let pieces = pieces
        .map(|found| found.map(|(before, told)| (before + told.0, told.1, told.2, told.3, told.4)));
    assert_eq!(whole, pieces, "{}", bytes.escape_ascii());
    match Request::parse(bytes, &limits) {
        Ok(None) => assert!(bytes.len() < limits.head_bytes_max, "a head has no end"),
        Ok(Some((request, len))) => good_request(&request, &bytes[..len]),
        Err(rejection) => rejected(rejection),
    }
}

/// Feeds a reader with pieces until it returns a result. Also returns how many bytes it took before
/// the last piece.
fn in_pieces<T, E>(
    bytes: &[u8],
    cuts: &mut Cuts,
    mut feed: impl FnMut(&mut HeadReader, &[u8]) -> Result<Option<T>, E>,
) -> Result<Option<(usize, T)>, E> {
    let mut reader = HeadReader::new(HeadLimits::DEFAULT);
    let mut start = 0;
    while start < bytes.len() {
        let end = start + cuts.next(bytes.len() - start);
        if let Some(found) = feed(&mut reader, &bytes[start..end])? {
            return Ok(Some((start, found)));
        }
        assert_eq!(reader.buffered(), end, "all bytes are taken, and kept once");
        start = end;
    }
    Ok(None)
}

/// Versions 1.2 to 1.9 are read as 1.1 (RFC 9110 section 2.5). httparse rejects them, so it gets
/// 1.1 instead.
fn as_1_1(head: &[u8]) -> Vec<u8> {
    let mut head = head.to_vec();
    let start =
        head.windows(8).position(|window| window.starts_with(b" HTTP/1.")).expect("it is HTTP/1");
    let minor = &mut head[start + 8];
    *minor = (*minor).min(b'1');
    head
}

/// httparse reads an accepted head in the same way, and no value contains a line end.
fn good_request(request: &Request<'_>, head: &[u8]) {
    let head = &as_1_1(head)[..];
    let mut slots = [httparse::EMPTY_HEADER; 64];
    let mut other = httparse::Request::new(&mut slots);
    assert_eq!(
        other.parse(head),
        Ok(httparse::Status::Complete(head.len())),
        "{}",
        head.escape_ascii()
    );
    assert_eq!((other.method, other.path), (Some(request.method()), Some(request.target())));
    assert_eq!(other.version, Some(u8::from(!request.is_http_1_0())), "{}", head.escape_ascii());
    let theirs = other.headers.iter().map(|header| (header.name, header.value));
    assert!(
        request.headers().map(|header| (header.name, header.value)).eq(theirs),
        "{}",
        head.escape_ascii()
    );
    let is_plain = |value: &[u8]| !value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
    assert!(request.headers().all(|header| is_plain(header.value)));

    let upgrade = match request.upgrade() {
        Ok(upgrade) => upgrade,
        Err(rejection) => return rejected(rejection),
    };
    assert_eq!(request.body(), BodyLength::None);
    let config = DeflateConfig::DEFAULT;
    let protocol = upgrade.protocols().last();
    let mut answer = Vec::new();
    let options = AcceptOptions::DEFAULT.deflate(Some(&config)).protocol(protocol);
    upgrade.accept(&options, &mut answer).expect("the protocol is one of the client's");
    let (response, len) =
        Response::parse(&answer, &HeadLimits::DEFAULT).expect("it is right").expect("it is whole");
    assert_eq!((response.status(), len), (101, answer.len()));
    assert_eq!(response.header("sec-websocket-protocol"), protocol);
}

/// The answer to a rejected request is a complete response. Its body has the announced length, and
/// the connection ends after it.
fn rejected(rejection: Rejection) {
    let mut answer = Vec::new();
    rejection.write(&mut answer);
    let (response, len) =
        Response::parse(&answer, &HeadLimits::DEFAULT).expect("it is right").expect("it is whole");
    assert_eq!(response.status(), rejection.status());
    assert!((400..600).contains(&response.status()));
    let length = response.header("content-length").map(str::parse);
    assert_eq!(length, Some(Ok(answer.len() - len)), "{rejection:?}");
    assert!(
        response.header("connection").is_some_and(|value| value.contains("close")),
        "{rejection:?}"
    );
}

/// Any response, checked as the answer to a client's request.
fn response(bytes: &[u8], cuts: &mut Cuts) {
    let limits = HeadLimits::DEFAULT;
    let config = DeflateConfig::DEFAULT;
    let request = ClientRequest::new("example.org", "/", KEY).protocol("chat").deflate(&config);
    let told = |found: Option<(Response<'_>, usize)>| {
        found.map(|(response, len)| (response.status(), len))
    };
    let whole = Response::parse(bytes, &limits).map(told);
    let pieces = in_pieces(bytes, cuts, |reader, piece| reader.response(piece).map(told));
    let pieces = pieces.map(|found| found.map(|(before, (status, used))| (status, before + used)));
    assert_eq!(whole, pieces, "{}", bytes.escape_ascii());
    match (whole, request.read_response(bytes, &limits)) {
        (Ok(None), Ok(None)) => {}
        (Err(error), Err(other)) => assert_eq!(error, other),
        (Ok(Some((status, len))), Ok(Some((upgraded, other)))) => {
            assert_eq!((status, len), (101, other));
            assert!(matches!(upgraded.protocol, None | Some("chat")), "{:?}", upgraded.protocol);
        }
        (Ok(Some((status, _))), Err(error)) => {
            assert_eq!(status == 101, !matches!(error, HandshakeError::Status(_)), "{error:?}");
        }
        (whole, checked) => panic!("{whole:?} and {checked:?} of {}", bytes.escape_ascii()),
    }
}

fn wishes(input: &mut Input<'_>) -> DeflateConfig {
    let (flags, bits) = (input.byte(), input.byte());
    let mut config = DeflateConfig::DEFAULT;
    config.server_no_context_takeover = flags & 1 != 0;
    config.client_no_context_takeover = flags & 2 != 0;
    config.compressor = if flags & 4 != 0 { Compressor::Dedicated } else { Compressor::Shared };
    // Numbers out of range are clamped.
    config.server_max_window_bits = bits & 15;
    config.client_max_window_bits = bits >> 4;
    config
}

/// This crate's client and server agree on the same parameters, whatever their settings are.
fn round_trip(input: &mut Input<'_>) {
    let what = input.byte();
    let (of_client, of_server) = (wishes(input), wishes(input));
    let protocols = ["chat", "superchat", "mqtt"];
    let mut request = ClientRequest::new("example.org:9001", "/chat?x=1", KEY);
    if what & 1 != 0 {
        request = request.deflate(&of_client);
    }
    for protocol in &protocols[..usize::from(what >> 1 & 3)] {
        request = request.protocol(protocol);
    }
    if what & 8 != 0 {
        request = request.origin("https://example.org");
    }
    let name = format!("x-{}", what >> 4);
    let value = input.text();
    // A value with a line end is rejected, and nothing is written.
    let request = request.header(&name, &value);
    let mut bytes = Vec::new();
    if request.write(&mut bytes).is_err() {
        assert!(bytes.is_empty());
        return;
    }

    let limits = HeadLimits::DEFAULT;
    let parsed = match Request::parse(&bytes, &limits) {
        Ok(parsed) => parsed.expect("it is whole"),
        Err(rejection) => {
            return assert_eq!(rejection, Rejection::HeadTooLong, "{}", bytes.escape_ascii());
        }
    };
    assert_eq!(parsed.1, bytes.len());
    assert_eq!(parsed.0.header(&name), Some(value.trim_matches([' ', '\t'])));
    let upgrade = parsed.0.upgrade().expect("it is one");
    assert_eq!(upgrade.origin().is_some(), what & 8 != 0);
    let chosen = upgrade.protocols().nth(usize::from(what >> 6));
    let deflate = (what & 16 != 0).then_some(&of_server);
    let mut answer = Vec::new();
    let options =
        AcceptOptions::DEFAULT.deflate(deflate).protocol(chosen).headers(&[("X-Server", "yes")]);
    let accepted = upgrade.accept(&options, &mut answer).expect("nothing of it is wrong");

    let read = request.read_response(&answer, &limits).expect("it is the answer to the request");
    let (upgraded, len) = read.expect("it is whole");
    assert_eq!(len, answer.len());
    assert_eq!(upgraded.protocol, chosen);
    assert_eq!(
        upgraded.deflate,
        accepted.deflate,
        "{} and {}",
        bytes.escape_ascii(),
        answer.escape_ascii()
    );
}
