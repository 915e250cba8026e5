//! HTTP/1.1 in both roles, and the answers to requests that are no upgrades.

use std::convert::Infallible;

use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, Version,
    body::Incoming,
    client,
    ext::Protocol,
    header::{self, HeaderValue},
    server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::spawn;
use windlass_websocket::{
    Answer, ClientRequest, Config, DeflateConfig, HandshakeError, HeadLimits, Timed, TokioTimer,
    upgrade::{ClientUpgrade, UpgradeError, upgrade, upgrade_with},
};

use crate::bed::{ask, echo, run, streams};

const KEY: [u8; 16] = [0; 16];

#[test]
fn an_upgrade_in_both_roles() {
    run(async {
        let (ours, theirs) = streams().await;
        let config = Config::new().protocols(["chat"]).deflate(DeflateConfig::DEFAULT);
        let server_config = config.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            let (response, upgrading) =
                upgrade::<_, String>(&mut request, &server_config).expect("it is an upgrade");
            assert_eq!(upgrading.protocol(), Some("chat"));
            let timed = upgrading.wrapped(|io| Timed::new(io, TokioTimer::new()));
            spawn(async { echo(timed.await.expect("it is upgraded")).await });
            async { Ok::<_, Infallible>(response) }
        });
        let connection = server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(ours), service)
            .with_upgrades();
        let server = spawn(connection);
        let (mut sender, connection) =
            client::conn::http1::handshake(TokioIo::new(theirs)).await.expect("a connection");
        spawn(connection.with_upgrades());
        let request =
            ClientRequest::new("localhost", "/a?b", KEY).protocol("other").protocol("chat");
        let upgrade = ClientUpgrade::new(request, &config);
        let request = upgrade.http1_request::<String>().expect("a good request");
        let response = sender.send_request(request).await.expect("a response");
        let socket = upgrade.finish(response).await.expect("it is accepted");
        assert_eq!(socket.protocol(), Some("chat"));
        assert!(socket.has_compression());
        ask(socket).await;
        server.await.expect("it runs").expect("the connection is good");
    });
}

fn request() -> Request<()> {
    Request::builder()
        .uri("/chat")
        .header("host", "localhost")
        .header("upgrade", "websocket")
        .header("connection", "keep-alive, Upgrade")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .header("sec-websocket-version", "13")
        .body(())
        .expect("a request")
}

fn http2_request() -> Request<()> {
    Request::builder()
        .method(Method::CONNECT)
        .version(Version::HTTP_2)
        .uri("https://localhost/chat")
        .extension(Protocol::from_static("websocket"))
        .header("sec-websocket-version", "13")
        .body(())
        .expect("a request")
}

/// The answer to a request: the status, the headers and the text.
fn answer(mut request: Request<()>, config: &Config) -> (u16, HeaderMap, String) {
    let response: Response<String> = match upgrade(&mut request, config) {
        Ok((response, _)) => response,
        Err(refused) => refused.into_response(),
    };
    let (parts, text) = response.into_parts();
    (parts.status.as_u16(), parts.headers, text)
}

#[test]
fn a_response_has_the_headers_of_its_version_of_http() {
    let (status, headers, _) = answer(request(), &Config::new());
    assert_eq!(status, 101);
    // The example of RFC 6455 section 1.3.
    assert_eq!(headers[header::SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_eq!(
        (&headers["upgrade"], &headers["connection"]),
        (&HeaderValue::from_static("websocket"), &HeaderValue::from_static("Upgrade"))
    );
    let config = Config::new().protocols(["chat"]).header("Server", "here");
    let mut request = http2_request();
    request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static("a, chat"));
    let (status, headers, _) = answer(request, &config);
    assert_eq!(status, 200);
    assert_eq!(headers[header::SEC_WEBSOCKET_PROTOCOL], "chat");
    assert_eq!(headers[header::SERVER], "here");
    assert_eq!(headers.len(), 2, "{headers:?}");
}

/// The status over HTTP/1.1 and HTTP/2, and what is changed in a good request.
type Case = (u16, u16, fn(&mut Request<()>));

#[test]
fn each_refusal_has_its_status() {
    let config =
        Config::new().origins(["https://good.example"]).hosts(["localhost"]).head_limits({
            let mut limits = HeadLimits::DEFAULT;
            limits.headers_max = 8;
            limits
        });
    let cases: [Case; 10] = [
        (101, 200, |_| {}),
        (426, 400, |it| {
            it.headers_mut().insert("sec-websocket-version", HeaderValue::from_static("8"));
        }),
        (405, 405, |it| *it.method_mut() = Method::POST),
        (403, 403, |it| {
            it.headers_mut().insert("origin", HeaderValue::from_static("https://bad.example"));
        }),
        (400, 400, |it| {
            it.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static("a a"));
        }),
        (400, 400, |it| {
            it.headers_mut().insert("sec-websocket-extensions", HeaderValue::from_static(";"));
        }),
        (400, 400, |it| {
            it.headers_mut().insert("content-length", HeaderValue::from_static("5"));
        }),
        (431, 431, |it| {
            for _ in 0..9 {
                it.headers_mut().append("x-one", HeaderValue::from_static("more"));
            }
        }),
        (421, 421, |it| {
            it.headers_mut().insert("host", HeaderValue::from_static("other"));
            if it.version() == Version::HTTP_2 {
                *it.uri_mut() = "https://other/chat".parse().expect("a URI");
            }
        }),
        (414, 414, |it| {
            let path = format!("https://localhost/{}", "a".repeat(5000));
            *it.uri_mut() = path.parse().expect("a URI");
            if it.version() != Version::HTTP_2 {
                *it.uri_mut() = path["https://localhost".len()..].parse().expect("a URI");
            }
        }),
    ];
    for (index, (http1, http2, change)) in cases.into_iter().enumerate() {
        for (mut request, expected) in [(request(), http1), (http2_request(), http2)] {
            change(&mut request);
            let version = request.version();
            let (status, headers, _) = answer(request, &config);
            assert_eq!(status, expected, "case {index} of {version:?}");
            // They belong to a connection of HTTP/1 (RFC 9113 section 8.2.2).
            let has_upgrade = headers.contains_key("upgrade") || headers.contains_key("connection");
            assert_eq!(has_upgrade, matches!(status, 101 | 426), "case {index}: {headers:?}");
        }
    }
}

#[test]
fn refusals_say_what_would_be_right() {
    let config = Config::new();
    let mut old = request();
    old.headers_mut().insert("sec-websocket-version", HeaderValue::from_static("8"));
    let (_, headers, text) = answer(old, &config);
    assert_eq!(headers[header::SEC_WEBSOCKET_VERSION], "13");
    assert_eq!(text, "WebSocket version 13 is required\n");

    for name in ["upgrade", "connection", "sec-websocket-key"] {
        let mut request = request();
        request.headers_mut().remove(name);
        let expected = if name == "upgrade" { 426 } else { 400 };
        assert_eq!(answer(request, &config).0, expected, "without {name}");
    }
    let mut old_http = request();
    *old_http.version_mut() = Version::HTTP_10;
    assert_eq!(answer(old_http, &config).0, 505);

    // RFC 9220 section 3: an unknown protocol.
    let mut other = http2_request();
    other.extensions_mut().insert(Protocol::from_static("connect-udp"));
    assert_eq!(answer(other, &config).0, 501);
    let mut post = http2_request();
    *post.method_mut() = Method::POST;
    assert_eq!(answer(post, &config).1[header::ALLOW], "CONNECT");
    for method in [Method::GET, Method::CONNECT] {
        let mut plain = http2_request();
        plain.extensions_mut().remove::<Protocol>();
        let expected = if method == Method::GET { 400 } else { 405 };
        if method == Method::CONNECT {
            *plain.uri_mut() = "localhost:443".parse().expect("a URI");
        }
        *plain.method_mut() = method;
        assert_eq!(answer(plain, &config).0, expected);
    }
}

#[test]
fn the_closure_decides() {
    let config = Config::new();
    for mut request in [request(), http2_request()] {
        let refused = upgrade_with::<_, String>(&mut request, &config, |upgrade| {
            assert_eq!(
                (upgrade.request().path(), upgrade.request().host()),
                ("/chat", Some("localhost"))
            );
            Answer::refuse(401).header("WWW-Authenticate", "Basic")
        });
        let refused = refused.expect_err("it is refused");
        assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(refused.into_response().headers()["www-authenticate"], "Basic");
        let invalid = upgrade_with::<_, String>(&mut request, &config, |_| {
            Answer::accept().protocol("not offered")
        });
        assert_eq!(invalid.expect_err("it is invalid").status(), 500);
    }
}

#[test]
fn a_client_checks_the_response() {
    let config = Config::new();
    let request = ClientRequest::new("localhost", "/", KEY).protocol("chat");
    let upgrade = ClientUpgrade::new(request, &config);
    let accept = windlass_ws::handshake::accept_value(b"AAAAAAAAAAAAAAAAAAAAAA==");
    let accept = accept.expect("a key");
    let check = |status: u16, version, headers: &[(&'static str, &str)]| {
        let mut response = Response::builder().status(status).version(version);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        match upgrade.check(&mut response.body(()).expect("a response")) {
            Ok(upgrading) => Ok(upgrading.protocol().map(str::to_owned)),
            Err(UpgradeError::Response(error)) => Err(error),
            Err(other) => panic!("{other}"),
        }
    };
    let (http1, http2) = (Version::HTTP_11, Version::HTTP_2);
    let good = ("sec-websocket-accept", &accept[..]);
    let (up, connection) = (("upgrade", "websocket"), ("connection", "upgrade"));
    let chat = ("sec-websocket-protocol", "chat");
    let deflate = ("sec-websocket-extensions", "permessage-deflate");
    assert_eq!(check(101, http1, &[up, connection, good, chat]), Ok(Some("chat".to_owned())));
    assert_eq!(check(200, http2, &[chat]), Ok(Some("chat".to_owned())));
    assert_eq!(check(204, http2, &[]), Ok(None));
    let bad = ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_eq!(check(101, http1, &[up, connection, bad]), Err(HandshakeError::Accept));
    assert_eq!(check(101, http1, &[connection, good]), Err(HandshakeError::Upgrade));
    assert_eq!(check(200, http1, &[up, connection, good]), Err(HandshakeError::Status(200)));
    assert_eq!(check(404, http2, &[]), Err(HandshakeError::Status(404)));
    let other = ("sec-websocket-protocol", "other");
    assert_eq!(check(200, http2, &[other]), Err(HandshakeError::Protocol));
    assert_eq!(check(200, http2, &[deflate]), Err(HandshakeError::Extension));
}
