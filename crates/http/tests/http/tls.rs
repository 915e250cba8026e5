//! Listeners with TLS, and clients of tokio-rustls.

use std::{sync::Arc, time::Duration};

use hyper::{StatusCode, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};
use windlass_http::{HttpListener, HttpServer, HttpVersion, TlsListener};
use windlass_task::{
    cancel::Cancel,
    net::{TcpListener, TcpStream},
    rt::WindlassExecutor,
    spawn,
    time::{now, sleep},
};
use windlass_testkit::certificates::{client_config, server_config};

use crate::{
    scenarios::Build,
    tools::{Log, Running, answer, collect, get, post, run, run_paused},
};

fn acceptor() -> TlsAcceptor {
    let mut config = server_config("localhost");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

async fn start(server: HttpServer) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = Cancel::new();
    let until = stop.clone();
    let until = async move { until.cancelled().await };
    let listener = TlsListener::new(listener, acceptor());
    let server = spawn(server.serve_until(listener, service_fn(answer), until));
    Running { address, stop, server }
}

async fn connect(server: &Running, protocol: &[u8]) -> TokioIo<TlsStream<TcpStream>> {
    let mut config = client_config("ca");
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, server.connect().await).await;
    TokioIo::new(stream.unwrap())
}

fn alpn_chooses_the_version(build: Build) {
    run(build, async {
        let log = Log::default();
        let server = start(log.server()).await;
        let (mut old, connection) =
            hyper::client::conn::http1::handshake(connect(&server, b"http/1.1").await)
                .await
                .unwrap();
        spawn(async move { _ = connection.await }).detach();
        let (mut new, connection) =
            hyper::client::conn::http2::handshake(WindlassExecutor, connect(&server, b"h2").await)
                .await
                .unwrap();
        spawn(async move { _ = connection.await }).detach();
        for length in [1, 16 << 10, 1 << 20] {
            let body = vec![b'q'; length];
            let response = old.send_request(post("/echo", body.clone())).await.unwrap();
            assert_eq!(collect(response).await, (StatusCode::OK, body.clone().into()));
            let mut request = post("https://localhost/echo", body.clone());
            request.headers_mut().remove("host");
            let response = new.send_request(request).await.unwrap();
            assert_eq!(response.version(), hyper::Version::HTTP_2);
            assert_eq!(collect(response).await, (StatusCode::OK, body.into()));
        }
        drop((old, new));
        server.stop().await;
        // A client of HTTP/2 that is dropped may miss the last frame of the server.
        assert!(log.lines().iter().all(|line| !line.contains("handshake")), "{:?}", log.lines());
    });
}

fn a_handshake_that_does_not_end_is_timed_out(build: Build) {
    run_paused(build, async {
        let log = Log::default();
        let limit = Duration::from_secs(4);
        let server = start(log.server().handshake_timeout(limit)).await;
        // A record of TLS that has begun.
        for part in [&[][..], &[22, 3, 1, 1]] {
            let mut stream = server.connect().await;
            stream.write_all(part).await.unwrap();
            let begin = now();
            assert_eq!(stream.read(&mut [0; 64]).await.unwrap_or(0), 0);
            assert_eq!(now() - begin, limit);
        }
        server.stop().await;
        let expected = "handshake failed: no handshake came within the time of `handshake_timeout`";
        assert_eq!(log.lines().len(), 2);
        assert!(log.lines().iter().all(|line| line.ends_with(expected)), "{:?}", log.lines());
    });
}

/// The service would get HTTP/2 although the server has switched it off.
fn a_version_that_is_switched_off_is_not_negotiated(build: Build) {
    run(build, async {
        let log = Log::default();
        let server = start(log.server().http1_only()).await;
        let mut stream = connect(&server, b"h2").await;
        let mut buffer = [0; 64];
        let mut buffer = hyper::rt::ReadBuf::new(&mut buffer);
        let read = std::future::poll_fn(|context| {
            use hyper::rt::Read as _;
            std::pin::Pin::new(&mut stream).poll_read(context, buffer.unfilled())
        });
        let _ = read.await;
        assert_eq!(buffer.filled(), b"");
        server.stop().await;
        let expected = "change the protocols of its ALPN";
        assert!(log.lines()[0].contains("handshake failed"), "{:?}", log.lines());
        assert!(log.lines()[0].ends_with(expected), "{:?}", log.lines());
    });
}

/// Small writes leave at once, and a request knows that it was encrypted.
fn accepted_connections_are_set_up(build: Build) {
    run(build, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let running = Running { address, stop: Cancel::new(), server: spawn(async { Ok(()) }) };
        let mut listener = TlsListener::new(listener, acceptor());
        let client = spawn(async move { connect(&running, b"h2").await });
        let accepted = HttpListener::accept(&mut listener).await.unwrap();
        let handshaken = accepted.handshake.await.unwrap();
        assert!(handshaken.is_encrypted && accepted.peer.is_some());
        assert_eq!(handshaken.version, Some(HttpVersion::Http2));
        assert!(handshaken.stream.inner().get_ref().0.nodelay().unwrap());
        drop(client.await);
        let mut plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(plain.local_addr().unwrap()).await.unwrap();
        let accepted = HttpListener::accept(&mut plain).await.unwrap();
        let handshaken = accepted.handshake.await.unwrap();
        assert!(!handshaken.is_encrypted && handshaken.version.is_none());
        assert!(handshaken.stream.nodelay().unwrap());
    });
}

fn a_client_without_tls_fails_alone(build: Build) {
    run(build, async {
        let log = Log::default();
        let server = start(log.server()).await;
        let mut plain = server.connect().await;
        plain.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await.unwrap();
        while plain.read(&mut [0; 64]).await.is_ok_and(|count| count > 0) {}
        let stream = connect(&server, b"http/1.1").await;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        spawn(async move { _ = connection.await }).detach();
        let (status, _) = collect(sender.send_request(get("/")).await.unwrap()).await;
        assert_eq!(status, StatusCode::OK);
        drop(sender);
        server.stop().await;
        assert!(log.lines()[0].contains("handshake failed"), "{:?}", log.lines());
    });
}

/// Two requests in one record, of which the first read takes a part. A shutdown ends the session,
/// and not only the connection.
fn idle_sessions_are_served_again(build: Build) {
    run_paused(build, async {
        let server = start(HttpServer::new()).await;
        let mut stream = connect(&server, b"http/1.1").await.into_inner();
        let long = "x".repeat(600);
        let request = format!("GET / HTTP/1.1\r\nHost: here\r\nLong: {long}\r\n\r\n");
        for count in [1, 2, 5] {
            stream.write_all(request.repeat(count).as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            let mut answers = Vec::new();
            while answers.windows(9).filter(|end| end == b"\r\n\r\nhello").count() < count {
                assert!(stream.read_buf(&mut answers).await.unwrap() > 0);
            }
            sleep(Duration::from_secs(2)).await;
        }
        server.stop().await;
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
    });
}

scenarios! {
    alpn_chooses_the_version,
    a_handshake_that_does_not_end_is_timed_out,
    a_version_that_is_switched_off_is_not_negotiated,
    accepted_connections_are_set_up,
    a_client_without_tls_fails_alone,
    idle_sessions_are_served_again,
}
