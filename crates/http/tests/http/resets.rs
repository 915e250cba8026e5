//! Connections that are reset, at every byte.

use std::time::Duration;

use hyper::{StatusCode, service::service_fn};

use crate::{
    scenarios::Build,
    stalls::frame,
    tools::{Log, answer, client, collect, get, run, start},
};

/// A session of HTTP/2 with a request that has a body.
fn session2() -> Vec<u8> {
    let head = b"\x83\x86\x44\x05/echo\x41\x04here";
    let frames = [frame(4, 0, 0, &[]), frame(1, 4, 1, head), frame(0, 1, 1, b"body")];
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frames.concat()].concat()
}

/// The client sends a part of a session, and resets the connection.
fn a_reset_at_any_byte_ends_one_connection(build: Build) {
    run(build, async {
        let log = Log::default();
        let server = start(log.server(), service_fn(answer)).await;
        let session = b"GET / HTTP/1.1\r\nHost: h\r\n\r\nPOST /echo HTTP/1.1\r\nHost: h\r\n\
            Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        for session in [&session[..], &session2()] {
            for cut in 0..=session.len() {
                let mut stream = server.connect().await;
                stream.write_all(&session[..cut]).await.unwrap();
                windlass_task::yield_now().await;
                stream.set_linger(Some(Duration::ZERO)).unwrap();
                drop(stream);
            }
        }
        // The others do not notice.
        let mut sender = client(server.connect().await).await;
        let (status, _) = collect(sender.send_request(get("/")).await.unwrap()).await;
        assert_eq!(status, StatusCode::OK);
        drop(sender);
        server.stop().await;
        let lines = log.lines();
        assert!(lines.iter().all(|line| !line.contains("panicked")), "{lines:?}");
    });
}

/// The client sends a part of a session, and ends its direction. Complete requests are answered.
/// hyper does that if it is told to.
fn an_end_at_any_byte_ends_one_connection(build: Build) {
    run(build, async {
        let log = Log::default();
        let mut settings = log.server();
        settings.http1_mut().half_close(true);
        let server = start(settings, service_fn(answer)).await;
        let first = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        let second = b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody";
        let session = [&first[..], second].concat();
        for session in [&session[..], &session2()] {
            for cut in 0..=session.len() {
                let mut stream = server.connect().await;
                stream.write_all(&session[..cut]).await.unwrap();
                stream.shutdown_now(std::net::Shutdown::Write).unwrap();
                let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    all.extend_from_slice(&buffer[..count]);
                }
                let all = String::from_utf8_lossy(&all);
                let is_http2 = session.starts_with(b"PRI");
                let is_answered = all.contains("200 OK") && all.contains("hello");
                assert_eq!(is_answered, !is_http2 && cut >= first.len(), "{cut}: {all}");
            }
        }
        server.stop().await;
        let lines = log.lines();
        assert!(lines.iter().all(|line| !line.contains("panicked")), "{lines:?}");
    });
}

/// The client resets the connection in the middle of a response that it does not read.
fn a_reset_during_a_response_drops_its_body(build: Build) {
    use core::{
        pin::Pin,
        task::{Context, Poll},
    };
    use hyper::{
        Response,
        body::{Body, Bytes, Frame},
    };
    use std::convert::Infallible;
    use windlass_task::cancel::Cancel;

    struct Endless(Cancel);
    impl Body for Endless {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'e'; 16 << 10])))))
        }
    }
    impl Drop for Endless {
        fn drop(&mut self) {
            self.0.cancel();
        }
    }
    run(build, async {
        let dropped = Cancel::new();
        let tells = dropped.clone();
        let service = service_fn(move |_| {
            let body = Endless(tells.clone());
            async move { Ok::<_, Infallible>(Response::new(body)) }
        });
        let server = start(windlass_http::HttpServer::new(), service).await;
        let mut stream = server.connect().await;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
        stream.read_exact(&mut [0; 100_000]).await.unwrap();
        assert!(!dropped.is_cancelled());
        stream.set_linger(Some(Duration::ZERO)).unwrap();
        drop(stream);
        dropped.cancelled().await;
        server.stop().await;
    });
}

scenarios! {
    a_reset_at_any_byte_ends_one_connection,
    an_end_at_any_byte_ends_one_connection,
    a_reset_during_a_response_drops_its_body,
}
