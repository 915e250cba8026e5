//! The opening handshake over a stream.

use std::io::ErrorKind;

use windlass_websocket::{
    AcceptError, Answer, ClientError, ClientRequest, Config, HandshakeError, HeadLimits, Message,
    Rejection, Role, WebSocket,
};

use crate::{
    bed::{Manner, Stream, both, pair, poll_once, run},
    peer::{Frame, Receiving, TEXT, frames, masked, plain, receive_all},
};

/// The key of RFC 6455 section 1.3.
const KEY: [u8; 16] = *b"the sample nonce";

const UPGRADE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

fn request(headers: &str) -> String {
    format!("GET /chat HTTP/1.1\r\nHost: example.com\r\n{UPGRADE}{headers}\r\n")
}

/// What a server makes of a request, and what it answers.
fn accept(
    manner: Manner,
    config: &Config,
    request: &str,
    answer: Answer,
) -> (Result<WebSocket<Stream>, AcceptError>, String) {
    let (ours, theirs) = pair(manner);
    theirs.give(request.as_bytes());
    let result = run(WebSocket::accept_with(ours, config, |_| answer));
    let answer = theirs.take_received();
    (result, String::from_utf8(answer).expect("a head is text"))
}

/// What a client makes of a response, and what it asked.
fn connect(
    manner: Manner,
    config: &Config,
    request: ClientRequest<'_>,
    response: &[u8],
) -> (Result<WebSocket<Stream>, ClientError>, Stream) {
    let (ours, theirs) = pair(manner);
    theirs.give(response);
    theirs.end();
    (run(WebSocket::client(ours, request, config)), theirs)
}

fn head_limits(head_bytes_max: usize, headers_max: usize) -> HeadLimits {
    let mut limits = HeadLimits::DEFAULT;
    (limits.head_bytes_max, limits.headers_max) = (head_bytes_max, headers_max);
    limits
}

fn ask<'a>() -> ClientRequest<'a> {
    ClientRequest::new("example.com", "/chat", KEY)
}

/// Without capacity limits, because the other end does not read meanwhile.
fn manners() -> [Manner; 5] {
    Manner::ALL.map(|manner| Manner { capacity: usize::MAX, ..manner })
}

#[test]
fn a_server_and_a_client_connect_in_every_manner() {
    for manner in Manner::ALL {
        let server_config = Config::new().protocols(["v2", "v1"]).header("Server", "test");
        let (ours, theirs) = pair(manner);
        let client_config = Config::new();
        let key = client_config.random_key();
        let request = ClientRequest::new("example.com", "/", key).protocol("v1").protocol("v2");
        let mut path = String::new();
        let accepted = WebSocket::accept_with(ours, &server_config, |upgrade| {
            path.push_str(upgrade.request().path());
            Answer::accept().header("X-Test", "yes")
        });
        let (server, client) = both(accepted, WebSocket::client(theirs, request, &client_config));
        let (mut server, mut client) =
            (server.expect("it is accepted"), client.expect("it is accepted"));
        assert_eq!(path, "/");
        assert_eq!((server.protocol(), client.protocol()), (Some("v2"), Some("v2")));
        assert!(!server.has_compression() && !client.has_compression());
        let (sent, received) = both(client.send("hi"), server.next());
        sent.expect("it is open");
        assert_eq!(received.expect("it is good"), Some("hi".into()));
    }
}

#[test]
fn requests_that_are_not_accepted_get_an_answer_that_says_why() {
    let config = Config::new()
        .origins(["https://example.com"])
        .hosts(["example.com"])
        .head_limits(head_limits(500, 12));
    let cases = [
        ("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n".to_owned(), 426),
        (request("").replace("GET", "POST"), 405),
        (request("").replace(": 13", ": 12"), 426),
        (request("").replace("Host: example.com\r\n", ""), 400),
        (request("").replace("example.com", "example.org"), 421),
        (request("Origin: https://example.org\r\n"), 403),
        (request("Origin: null\r\n"), 403),
        (request("no colon\r\n"), 400),
        (request(&"X: y\r\n".repeat(12)), 431),
        (request(&format!("X: {}\r\n", "y".repeat(500))), 431),
        (format!("GET /{} HTTP/1.1\r\n", "y".repeat(5000)), 431),
        ("\u{1}\u{2}\r\n\r\n".to_owned(), 400),
    ];
    for (request, status) in cases {
        for manner in manners() {
            let (result, answer) = accept(manner, &config, &request, Answer::accept());
            let error = result.expect_err("it is not accepted");
            let told = match &error {
                AcceptError::Rejected(rejection) => rejection.status(),
                AcceptError::Refused(status) => *status,
                other => panic!("{other:?}"),
            };
            assert_eq!(told, status, "{request:?}: {error}");
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer:?}");
            assert!(answer.contains("\r\n\r\n"), "{answer:?}");
            if let AcceptError::Rejected(rejection) = error {
                let mut expected = Vec::new();
                rejection.write(&mut expected);
                assert_eq!(answer.as_bytes(), expected);
            }
        }
    }
    let origins =
        ["", "Origin: https://example.com\r\n", "Origin: HTTPS://EXAMPLE.COM\r\n"].map(request);
    for request in origins {
        let (result, answer) = accept(Manner::SMOOTH, &config, &request, Answer::accept());
        assert!(result.is_ok() && answer.starts_with("HTTP/1.1 101 "), "{request:?}");
    }
}

#[test]
fn the_closure_refuses_with_a_status_and_headers() {
    let config = Config::new().header("Server", "test");
    for manner in manners() {
        let answer = Answer::refuse(401).header("WWW-Authenticate", "Basic");
        let (result, answer) = accept(manner, &config, &request(""), answer);
        assert!(matches!(result, Err(AcceptError::Refused(401))));
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 401 "), "{head:?}");
        for header in ["WWW-Authenticate: Basic", "Server: test", "Content-Length: 0"] {
            assert!(head.lines().any(|line| line == header), "{head:?}");
        }
        assert_eq!(body, "");
    }
}

#[test]
fn an_answer_that_is_invalid_is_not_sent() {
    are_not_sent([
        Answer::accept().protocol("not offered"),
        Answer::accept().header("Upgrade", "h2c"),
        Answer::accept().header("X", "a\r\nSet-Cookie: b"),
        Answer::accept().header("X: y\r\nZ", "a"),
    ]);
    let request = ask().header("X", "a\r\nb");
    let refused = run(WebSocket::client(pair(Manner::SMOOTH).0, request, &Config::new()));
    assert!(matches!(refused, Err(ClientError::Request(_))));
}

#[test]
fn a_refusal_that_is_invalid_is_not_sent() {
    are_not_sent([
        Answer::refuse(403).header("X", "a\r\nSet-Cookie: b"),
        Answer::refuse(403).header("X: y\r\nZ", "a"),
    ]);
}

fn are_not_sent(answers: impl IntoIterator<Item = Answer>) {
    for answer in answers {
        let (result, sent) = accept(Manner::SMOOTH, &Config::new(), &request(""), answer.clone());
        assert!(matches!(result, Err(AcceptError::Answer(_))), "{answer:?}: {result:?}");
        assert_eq!(sent, "", "{answer:?}");
    }
}

#[test]
fn a_request_that_ends_or_fails_at_any_byte_is_an_error() {
    let request = request("Origin: https://example.com\r\n");
    let step = if cfg!(miri) { 30 } else { 1 };
    for len in (0..request.len()).step_by(step) {
        let (ours, theirs) = pair(Manner { chunk: 11, ..Manner::SMOOTH });
        theirs.give(&request.as_bytes()[..len]);
        theirs.end();
        let result = run(WebSocket::accept(ours, &Config::new()));
        assert!(matches!(result, Err(AcceptError::Ended)), "{len}: {result:?}");

        let (mut ours, theirs) = pair(Manner { chunk: 11, ..Manner::SMOOTH });
        theirs.give(request.as_bytes());
        ours.read_fails = Some((len, ErrorKind::ConnectionReset));
        match run(WebSocket::accept(ours, &Config::new())) {
            Err(AcceptError::Io(error)) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            other => panic!("{len}: {other:?}"),
        }
    }
    for len in 0..SWITCHING.len() {
        let (mut ours, theirs) = pair(Manner { chunk: 11, ..Manner::SMOOTH });
        theirs.give(request.as_bytes());
        ours.write_fails = Some((len, ErrorKind::BrokenPipe));
        match run(WebSocket::accept(ours, &Config::new())) {
            Err(AcceptError::Io(error)) => assert_eq!(error.kind(), ErrorKind::BrokenPipe),
            other => panic!("{len}: {other:?}"),
        }
    }
}

#[test]
fn a_response_that_ends_or_fails_at_any_byte_is_an_error() {
    let config = Config::new();
    let step = if cfg!(miri) { 30 } else { 1 };
    for len in (0..SWITCHING.len()).step_by(step) {
        for manner in [Manner { chunk: 11, ..Manner::SMOOTH }, Manner::BYTE_BY_BYTE] {
            let (result, _) = connect(manner, &config, ask(), &SWITCHING.as_bytes()[..len]);
            assert!(matches!(result, Err(ClientError::Ended)), "{len}: {result:?}");
        }
        let (mut ours, theirs) = pair(Manner { chunk: 11, ..Manner::SMOOTH });
        theirs.give(SWITCHING.as_bytes());
        ours.write_fails = Some((len, ErrorKind::BrokenPipe));
        match run(WebSocket::client(ours, ask(), &config)) {
            Err(ClientError::Io(error)) => assert_eq!(error.kind(), ErrorKind::BrokenPipe),
            other => panic!("{len}: {other:?}"),
        }
    }
}

#[test]
fn responses_that_do_not_accept_are_errors() {
    let config = Config::new();
    for (response, expected) in [
        ("HTTP/1.1 403 Forbidden\r\n\r\n".to_owned(), "Status(403)"),
        ("HTTP/1.1 200 OK\r\n\r\n".to_owned(), "Status(200)"),
        (SWITCHING.replace("s3pP", "S3pP"), "Accept"),
        (SWITCHING.replace("Upgrade: websocket", "Upgrade: h2c"), "Upgrade"),
        (SWITCHING.replace("\r\n\r\n", "\r\nSec-WebSocket-Protocol: x\r\n\r\n"), "Protocol"),
        (
            SWITCHING
                .replace("\r\n\r\n", "\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"),
            "Extension",
        ),
        ("SSH-2.0-OpenSSH\r\n\r\n".to_owned(), ""),
    ] {
        for manner in manners() {
            let (result, _) = connect(manner, &config, ask(), response.as_bytes());
            let Err(ClientError::Response(error)) = &result else { panic!("{result:?}") };
            let error: &HandshakeError = error;
            assert!(format!("{error:?}").contains(expected), "{error:?} for {response:?}");
        }
    }
    let limits = head_limits(500, 64);
    let long = SWITCHING.replace("\r\n\r\n", &format!("\r\nX: {}\r\n\r\n", "y".repeat(500)));
    let (result, _) =
        connect(Manner::SMOOTH, &Config::new().head_limits(limits), ask(), long.as_bytes());
    assert!(matches!(result, Err(ClientError::Response(_))), "{result:?}");
}

#[test]
fn interim_responses_are_passed_over() {
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n";
    for manner in manners() {
        let response = format!("HTTP/1.1 100 Continue\r\n\r\n{interim}{interim}{SWITCHING}");
        let bytes = [response.as_bytes(), &plain(TEXT, b"first")].concat();
        let (result, _theirs) = connect(manner, &Config::new(), ask(), &bytes);
        let mut socket = result.expect("it is accepted");
        assert_eq!(run(socket.next()).expect("it is good"), Some("first".into()));
    }
}

#[test]
fn what_was_read_behind_the_head_is_received() {
    let messages: Vec<Message> =
        ["a".into(), "b".repeat(300).into(), vec![7; 70_000].into(), "".into()].into();
    let encoded = |frame: fn(u8, &[u8]) -> Vec<u8>| {
        messages
            .iter()
            .flat_map(|it| frame(Frame::of(it).first, it.as_bytes()))
            .collect::<Vec<u8>>()
    };
    for manner in [Manner::SMOOTH, Manner { chunk: 1000, ..Manner::BYTE_BY_BYTE }] {
        let (ours, theirs) = pair(manner);
        theirs.give(&[request("").as_bytes(), &encoded(masked)].concat());
        let mut server = run(WebSocket::accept(ours, &Config::new())).expect("it is accepted");
        assert_eq!(
            (0..4)
                .map(|_| run(server.next()).expect("it is good").expect("a message"))
                .collect::<Vec<_>>(),
            messages
        );

        let response = [SWITCHING.as_bytes(), &encoded(plain)].concat();
        let (client, _theirs) = connect(manner, &Config::new(), ask(), &response);
        let mut client = client.expect("it is accepted");
        assert_eq!(
            (0..4)
                .map(|_| run(client.next()).expect("it is good").expect("a message"))
                .collect::<Vec<_>>(),
            messages
        );
    }
    // All lengths around that of the buffer for reading.
    for len in [0, 1, 5, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 200_000] {
        let bytes = masked(0x82, &[7; 1000]).repeat(200);
        let (ours, theirs) = pair(Manner::SMOOTH);
        let len = len.min(bytes.len());
        theirs.give(&bytes[len..]);
        let mut socket =
            WebSocket::from_upgraded(ours, &bytes[..len], Role::Server, &Config::new());
        let messages = receive_all(&mut socket);
        assert!(messages.len() == 200 && messages.iter().all(|it| it.as_bytes().len() == 1000));
        assert!(poll_once(socket.recv()).is_pending());
    }
}

#[test]
fn the_client_masks_and_the_server_does_not() {
    let (server, client) = crate::bed::sockets(Manner::SMOOTH, &Config::new());
    for (mut socket, is_masked) in [(server, false), (client, true)] {
        run(socket.feed("text")).expect("it is open");
        assert_eq!(socket.buffered(), if is_masked { 10 } else { 6 });
    }
    assert_eq!(frames(&masked(TEXT, b"text")).0, [Frame::new(TEXT, "text")]);
    assert_eq!(Rejection::NotAnUpgrade.status(), 426);
}
