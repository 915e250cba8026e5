//! Opening handshakes.

use std::io::ErrorKind;

use crate::stream::{Script, Step};

/// A request, with one line replaced.
fn request(from: &str, to: &str) -> Vec<u8> {
    let request = "GET /chat?a=b HTTP/1.1\r\nHost: example.com\r\n\
        Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    assert!(request.contains(from));
    request.replacen(from, to, 1).into_bytes()
}

/// A response to the key of that request, with one line replaced.
fn response(from: &str, to: &str) -> Vec<u8> {
    let response = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
        Connection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    assert!(response.contains(from));
    response.replacen(from, to, 1).into_bytes()
}

/// Requests that are good, bad, and no HTTP.
fn requests() -> Vec<Vec<u8>> {
    let mut all = vec![request("", "")];
    for (from, to) in [
        ("GET", "POST"),
        ("HTTP/1.1", "HTTP/1.0"),
        ("HTTP/1.1", "HTTP/2"),
        ("Connection: keep-alive, Upgrade", "Connection: close"),
        ("Connection: keep-alive, Upgrade\r\n", ""),
        ("Upgrade: WebSocket", "Upgrade: h2c"),
        ("Version: 13", "Version: 8"),
        ("Sec-WebSocket-Version: 13\r\n", ""),
        ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""),
        ("ZQ==\r\n\r\n", "ZQ\r\n\r\n"),
        ("ZQ==\r\n\r\n", "ZR==\r\n\r\n"),
        ("Host: example.com", "Host : example.com"),
        ("Host: example.com", "Host example.com"),
        ("\r\n\r\n", "\r\n\r\njunk"),
        ("GET /chat?a=b", "GET a b"),
        ("\r\n\r\n", "\r\n"),
    ] {
        all.push(request(from, to));
    }
    all.push(request("Host", &"A: b\r\n".repeat(130).to_owned()));
    all
}

compare! {
    fn servers(log) {
        use ws::handshake::HandshakeError;
        for request in requests() {
            for size in [50, request.len()] {
                let steps = request.chunks(size).map(|bytes| Step::Bytes(bytes.to_vec()));
                match ws::accept(Script::new(steps)) {
                    Ok(socket) => {
                        let written = &socket.get_ref().written;
                        log.note("answer", String::from_utf8_lossy(written).into_owned());
                    }
                    Err(HandshakeError::Failure(error)) => log.note("error", error),
                    Err(error) => log.note("interrupted", error.to_string().is_empty()),
                }
            }
        }
        let config = ws::protocol::WebSocketConfig::default().max_frame_size(Some(7));
        let socket = ws::accept_with_config(Script::bytes(request("", "")), Some(config)).unwrap();
        log.note("config", socket.get_config().max_frame_size);
    }

    fn callbacks(log) {
        use ws::handshake::server::{Callback, ErrorResponse, NoCallback, Request, Response};
        let accept = |request: &Request, mut response: Response| {
            assert_eq!(request.uri(), "/chat?a=b");
            response.headers_mut().append("X-One", "1".parse().unwrap());
            Ok::<_, ErrorResponse>(response)
        };
        let socket = ws::accept_hdr(Script::bytes(request("", "")), accept).unwrap();
        log.note("accept", String::from_utf8_lossy(&socket.get_ref().written).into_owned());
        for status in [200, 404, 302] {
            let refuse = |_: &Request, _: Response| {
                let response = ws::http::Response::builder().status(status).header("X-One", "1");
                Err::<Response, _>(response.body(Some("no".to_owned())).unwrap())
            };
            let script = Script::bytes(request("", ""));
            match ws::accept_hdr_with_config(script, refuse, None) {
                Err(ws::HandshakeError::Failure(error)) => log.note("refuse", error),
                other => panic!("{other:?}"),
            }
        }
        let response = NoCallback.on_request(&Request::new(()), Response::new(()));
        log.note("none", (response, NoCallback));
        let started = ws::ServerHandshake::start(Script::bytes(request("", "")), NoCallback, None);
        log.note("start", started.handshake().is_ok());
    }

    fn responses(log) {
        use ws::handshake::{machine::TryParse as _, server};
        for bytes in requests() {
            let Ok(Some((len, request))) = server::Request::try_parse(&bytes) else {
                log.note("parse", server::Request::try_parse(&bytes));
                continue;
            };
            log.note("request", (len, &request));
            let response = server::create_response(&request);
            if let Ok(response) = &response {
                let mut bytes = Vec::new();
                log.note("write", (server::write_response(&mut bytes, response), bytes));
            }
            log.note("response", response);
            log.note("body", server::create_response_with_body(&request, || 7));
        }
        let bytes = request("", "");
        let (_, mut request) = server::Request::try_parse(&bytes).unwrap().unwrap();
        *request.method_mut() = ws::http::Method::POST;
        log.note("method", server::create_response(&request));
        *request.method_mut() = ws::http::Method::GET;
        *request.version_mut() = ws::http::Version::HTTP_10;
        log.note("version", server::create_response(&request));
        let mut response = ws::http::Response::new(());
        response.headers_mut().insert("a", ws::http::HeaderValue::from_bytes(b"\xff").unwrap());
        log.note("write", server::write_response(Vec::new(), &response));
        *response.version_mut() = ws::http::Version::HTTP_2;
        log.note("write", server::write_response(Vec::new(), &response));
    }

    fn clients(log) {
        use ws::{client::{IntoClientRequest as _, client_with_config}, handshake::HandshakeError};
        let mut all = vec![response("", "")];
        for (from, to) in [
            ("101 Switching Protocols", "404 Not Found"),
            ("HTTP/1.1", "HTTP/1.0"),
            ("Upgrade: websocket", "Upgrade: h2c"),
            ("Upgrade: websocket\r\n", ""),
            ("Connection: Upgrade", "Connection: close"),
            ("Connection: Upgrade\r\n", ""),
            ("s3pP", "S3pP"),
            ("\r\n\r\n", "\r\nSec-WebSocket-Protocol: chat\r\n\r\n"),
            ("\r\n\r\n", "\r\nSec-WebSocket-Protocol: other\r\n\r\n"),
            ("101 Switching Protocols", "1 X"),
            ("HTTP", "HTP"),
            ("\r\n\r\n", "\r\n"),
            ("\r\n\r\n", "\r\n\r\n\u{1}\u{0}"),
        ] {
            all.push(response(from, to));
        }
        all.push([response("101 Switching Protocols", "401 No"), b"body".to_vec()].concat());
        for bytes in all {
            for protocols in [None, Some("chat"), Some("a, chat")] {
                let mut request = "ws://example.com/chat".into_client_request().unwrap();
                let headers = request.headers_mut();
                headers.insert("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==".parse().unwrap());
                if let Some(protocols) = protocols {
                    headers.insert("Sec-WebSocket-Protocol", protocols.parse().unwrap());
                }
                match ws::client(request, Script::bytes(bytes.clone())) {
                    Ok((socket, response)) => {
                        log.note("sent", String::from_utf8_lossy(&socket.get_ref().written));
                        log.note("response", response);
                    }
                    Err(HandshakeError::Failure(error)) => log.note("error", error),
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        for url in ["http://a", "ws://", "/", "ws://a b"] {
            match client_with_config(url, Script::default(), None) {
                Err(HandshakeError::Failure(error)) => log.note("url", error),
                other => panic!("{other:?}"),
            }
        }
        let config = ws::protocol::WebSocketConfig::default().max_frame_size(Some(7));
        let mut request = "ws://a".into_client_request().unwrap();
        let key = "dGhlIHNhbXBsZSBub25jZQ==".parse().unwrap();
        request.headers_mut().insert("Sec-WebSocket-Key", key);
        let script = Script::bytes([response("", ""), b"\x81\x02hi".to_vec()].concat());
        let (mut socket, _) = client_with_config(request, script, Some(config)).unwrap();
        log.note("tail", (socket.read(), socket.get_config().max_frame_size));
    }

    fn requests_of_clients(log) {
        use ws::client::IntoClientRequest as _;
        use ws::handshake::client::{ClientHandshake, generate_key, generate_request};
        let (one, other) = (generate_key(), generate_key());
        log.note("keys", (one != other, one.len(), one.ends_with("==")));
        log.note("accept", ws::handshake::derive_accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="));
        log.note("accept", ws::handshake::derive_accept_key(b"any other"));
        let base = || {
            let mut request = "ws://example.com:1234/a?b".into_client_request().unwrap();
            request.headers_mut().insert("Sec-WebSocket-Key", "key".parse().unwrap());
            request
        };
        let text = |result: ws::Result<(Vec<u8>, String)>| {
            result.map(|(bytes, key)| (bytes.escape_ascii().to_string(), key))
        };
        let mut more = base();
        more.headers_mut().insert("Origin", "http://a".parse().unwrap());
        more.headers_mut().insert("Sec-WebSocket-Protocol", "chat".parse().unwrap());
        let latin = ws::http::HeaderValue::from_bytes(b"caf\xe9").unwrap();
        more.headers_mut().insert("X-Latin", latin.clone());
        log.note("bytes", text(generate_request(base())));
        log.note("bytes", text(generate_request(more)));
        let version = "Sec-WebSocket-Version";
        for name in ["Host", "Connection", "Upgrade", version, "Sec-WebSocket-Key"] {
            let mut request = base();
            request.headers_mut().remove(name);
            log.note("missing", text(generate_request(request)));
            let mut request = base();
            request.headers_mut().insert(name, latin.clone());
            log.note("latin", text(generate_request(request)).is_err());
        }
        let mut method = base();
        *method.method_mut() = ws::http::Method::POST;
        let mut version = base();
        *version.version_mut() = ws::http::Version::HTTP_10;
        let mut scheme = base();
        *scheme.uri_mut() = "http://a/".parse().unwrap();
        let mut path = base();
        *path.uri_mut() = "a:80".parse().unwrap();
        for request in [method, version, scheme, path.clone()] {
            log.note("start", ClientHandshake::start(Script::default(), request, None).map(|_| ()));
        }
        log.note("path", text(generate_request(path)));
        let mut two = base();
        *two.version_mut() = ws::http::Version::HTTP_2;
        log.note("version", text(generate_request(two)));
    }

    fn heads(log) {
        use ws::handshake::{client::Response, headers::MAX_HEADERS, machine::TryParse as _};
        log.note("most", MAX_HEADERS);
        for head in [
            &b"HTTP/1.1 200 OK\r\nA: b\r\nA: c\r\n\r\nrest"[..],
            b"HTTP/1.1 200 OK\r\nA: b\r\n",
            b"HTTP/1.0 200 OK\r\n\r\n",
            b"HTTP/1.1 20 OK\r\n\r\n",
            b"nonsense\r\n\r\n",
        ] {
            log.note("response", Response::try_parse(head));
        }
        for headers in [&b"A: b\r\nC: d\r\nA: e\r\n\r\nrest"[..], b"A: b\r\n", b": b\r\n\r\n"] {
            log.note("headers", ws::http::HeaderMap::try_parse(headers));
        }
    }

    fn interrupted(log) {
        use ws::handshake::HandshakeError;
        let bytes = request("", "");
        let mut script = Script::new([
            Step::Fails(ErrorKind::WouldBlock),
            Step::Bytes(bytes[..40].to_vec()),
            Step::Fails(ErrorKind::WouldBlock),
            Step::Bytes(bytes[40..].to_vec()),
        ]);
        script.writes = [0, 9, 0].into();
        let mut rounds = 0;
        let mut result = ws::accept(script);
        let socket = loop {
            match result {
                Ok(socket) => break socket,
                Err(HandshakeError::Interrupted(mid)) => result = mid.handshake(),
                Err(error) => panic!("{error}"),
            }
            rounds += 1;
        };
        log.note("rounds", rounds);
        log.note("answer", socket.get_ref().written.len());
        let failing = Script::new([Step::Fails(ErrorKind::BrokenPipe)]);
        log.note("fails", ws::accept(failing).map(|_| ()).map_err(|error| match error {
            HandshakeError::Failure(error) => error,
            error => panic!("{error}"),
        }));
    }

    fn machines(log) {
        use ws::handshake::machine::{HandshakeMachine, RoundResult, StageResult, TryParse};
        #[derive(Debug)]
        struct Line(String);
        impl TryParse for Line {
            fn try_parse(data: &[u8]) -> ws::Result<Option<(usize, Self)>> {
                let text = String::from_utf8_lossy(data);
                Ok(text.find('\n').map(|at| (at + 1, Self(text[..at].to_owned()))))
            }
        }
        let script = Script::new(["on", "e\ntwo"].map(|text| Step::Bytes(text.into())));
        let mut machine = HandshakeMachine::start_read(script);
        loop {
            match machine.single_round::<Line>().unwrap() {
                RoundResult::Incomplete(next) => machine = next,
                RoundResult::StageFinished(StageResult::DoneReading { result, tail, .. }) => {
                    log.note("read", (result.0, tail));
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        let mut machine = HandshakeMachine::start_write(Script::default(), "out");
        log.note("stream", (machine.get_ref().flushes, machine.get_mut().flushes));
        loop {
            match machine.single_round::<Line>().unwrap() {
                RoundResult::Incomplete(next) => machine = next,
                RoundResult::StageFinished(StageResult::DoneWriting(stream)) => {
                    log.note("written", (stream.written, stream.flushes));
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        let big = Script::bytes(vec![b'x'; 70_000]);
        let mut machine = HandshakeMachine::start_read(big);
        let error = loop {
            match machine.single_round::<Line>() {
                Ok(RoundResult::Incomplete(next)) => machine = next,
                Ok(other) => panic!("{other:?}"),
                Err(error) => break error,
            }
        };
        log.note("too long", error);
    }
}
