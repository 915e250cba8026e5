//! Peers that do not read, and connections without requests. The clock passes when nothing else can
//! run, so the times are exact.

use core::{
    future::{Future as _, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll},
};
use std::{
    cell::Cell,
    convert::Infallible,
    rc::Rc,
    time::{Duration, Instant},
};

use http_body_util::BodyExt as _;
use hyper::{
    Request, Response, StatusCode,
    body::{Body, Bytes, Frame, Incoming},
    service::service_fn,
};
use windlass_http::HttpServer;
use windlass_task::{
    cancel::Cancel,
    net::TcpStream,
    rt::{WindlassExecutor, WindlassTimer},
    spawn,
    time::{now, sleep},
    yield_now,
};

use crate::{
    scenarios::Build,
    tools::{AnyBody, Log, Running, answer, collect, read_head, run_paused, start},
    versions::get2,
};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n";
const WRITE: Duration = Duration::from_secs(20);
const IDLE: Duration = Duration::from_secs(100);

/// Bytes without an end, or one large piece. Tells when it is dropped.
struct Large {
    is_endless: bool,
    tells: Cancel,
}

impl Body for Large {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        static BYTES: [u8; 16 << 20] = [b'l'; 16 << 20];
        let count = if self.is_endless { 64 << 10 } else { BYTES.len() };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&BYTES[..count])))))
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        self.tells.cancel();
    }
}

async fn start_large(server: HttpServer, is_endless: bool) -> (Running, Cancel) {
    let dropped = Cancel::new();
    let tells = dropped.clone();
    let service = service_fn(move |_: Request<Incoming>| {
        let body = Large { is_endless, tells: tells.clone() };
        async move { Ok::<_, Infallible>(Response::new(body)) }
    });
    (start(server.write_timeout(WRITE), service).await, dropped)
}

/// A frame of HTTP/2 (RFC 9113 section 4.1).
pub(crate) fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Sends the preface, the settings, and a request for `/`, as bytes. Answers nothing.
async fn raw2(server: &Running, settings: &[u8], has_request: bool) -> TcpStream {
    let mut stream = server.connect().await;
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(4, 0, 0, settings));
    if has_request {
        // GET, http, / of the static table, and the authority (RFC 7541 appendix A).
        sent.extend(frame(1, 5, 1, b"\x82\x86\x84\x41\x04here"));
    }
    stream.write_all(&sent).await.unwrap();
    stream
}

/// Reads until the end, whichever it is.
async fn drain(stream: &mut TcpStream) -> usize {
    let (mut all, mut buffer) = (0, [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        all += count;
    }
    all
}

fn assert_between(begin: Instant, least: Duration, most: Duration) {
    let took = now() - begin;
    assert!((least..=most).contains(&took), "{took:?}");
}

fn a_peer_that_does_not_read_is_disconnected(build: Build) {
    run_paused(build, async {
        for is_endless in [true, false] {
            for is_http2 in [false, true] {
                let log = Log::default();
                let (server, dropped) = start_large(log.server(), is_endless).await;
                let begin = now();
                // The windows of HTTP/2 are as large as they may be.
                let settings = [0, 4, 0x7f, 0xff, 0xff, 0xff];
                let stream = match is_http2 {
                    true => {
                        let mut stream = raw2(&server, &settings, true).await;
                        let update = 0x7fff_0000_u32.to_be_bytes();
                        stream.write_all(&frame(8, 0, 0, &update)).await.unwrap();
                        stream
                    }
                    false => {
                        let mut stream = server.connect().await;
                        stream.write_all(GET).await.unwrap();
                        stream
                    }
                };
                dropped.cancelled().await;
                server.stop().await;
                if is_endless || !is_http2 {
                    assert_between(begin, WRITE, 2 * WRITE);
                }
                let lines = log.lines();
                assert_eq!(lines.len(), 1, "{lines:?}");
                let reason =
                    "the peer has not read its responses within the time of `write_timeout`";
                assert!(lines[0].ends_with(reason), "{lines:?}");
                // Nothing goes on sending to it, and no time passes until it is over.
                let end = now();
                let mut stream = stream;
                let mut buffer = vec![0; 1 << 16];
                let error = loop {
                    match stream.read(&mut buffer).await {
                        Ok(0) => panic!("it looks complete"),
                        Ok(_) => {}
                        Err(error) => break error,
                    }
                };
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                assert_eq!(now(), end);
            }
        }
    });
}

/// Returns what has come. A read that waited would let the clock pass before the kernel sends.
async fn read_what_is_there(stream: &mut TcpStream, buffer: &mut [u8]) -> usize {
    yield_now().await;
    let mut read = pin!(stream.read(buffer));
    poll_fn(|context| match read.as_mut().poll(context) {
        Poll::Ready(count) => Poll::Ready(count.unwrap()),
        Poll::Pending => Poll::Ready(0),
    })
    .await
}

/// A wait that is over does not count against the connection later, with and without the buffers of
/// hyper in between.
fn a_peer_that_has_read_everything_may_be_idle(build: Build) {
    run_paused(build, async {
        const LENGTH: usize = 16 << 20;
        let service = service_fn(async |_: Request<Incoming>| {
            Ok::<_, Infallible>(Response::new("l".repeat(LENGTH)))
        });
        for buffers_timeout in [Duration::from_secs(1), Duration::MAX] {
            let limits = HttpServer::new().write_timeout(WRITE).header_timeout(3 * WRITE);
            let server = start(limits.idle_buffers_timeout(buffers_timeout), service).await;
            let mut stream = server.connect().await;
            for _ in 0..2 {
                stream.write_all(GET).await.unwrap();
                sleep(Duration::from_secs(1)).await;
                let head = read_head(&mut stream).await;
                assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
                let (mut left, mut buffer) = (LENGTH, vec![0; 1 << 20]);
                while left > 0 {
                    left -= read_what_is_there(&mut stream, &mut buffer).await;
                }
                sleep(2 * WRITE).await;
            }
            server.stop().await;
        }
    });
}

/// Each of its windows is small, and opens again in time.
fn a_peer_of_http2_that_opens_its_window_slowly_is_kept(build: Build) {
    run_paused(build, async {
        let (server, dropped) = start_large(HttpServer::new(), false).await;
        let mut stream = raw2(&server, &[0, 4, 0, 0, 0, 0], true).await;
        // It answers no ping, for which it has 80 s.
        for _ in 0..4 {
            sleep(WRITE * 4 / 5).await;
            assert!(!dropped.is_cancelled());
            stream.write_all(&frame(8, 0, 1, &[0, 0, 0, 10])).await.unwrap();
        }
        drain(&mut stream).await;
        server.stop().await;
    });
}

/// The time of data begins when there is data.
fn late_data_of_http2_has_the_whole_time(build: Build) {
    run_paused(build, async {
        let slow = service_fn(async |request| {
            sleep(2 * WRITE - Duration::from_secs(1)).await;
            answer(request).await
        });
        let server = start(HttpServer::new().write_timeout(WRITE), slow).await;
        let mut stream = raw2(&server, &[0, 4, 0, 0, 0, 0], true).await;
        let begin = now();
        drain(&mut stream).await;
        assert_between(begin, 3 * WRITE - Duration::from_secs(1), 4 * WRITE);
        server.stop().await;
    });
}

/// It takes less than the whole, but something in each time. It reads until the server has sent
/// more, so that the clock waits for the kernel.
fn a_peer_that_reads_slowly_is_kept(build: Build) {
    run_paused(build, async {
        let sent = Rc::new(Cell::new(0));
        let dropped = Cancel::new();
        let (counts, tells) = (Rc::clone(&sent), dropped.clone());
        let service = service_fn(move |_: Request<Incoming>| {
            let body = Large { is_endless: true, tells: tells.clone() };
            let counts = Rc::clone(&counts);
            let body = body.map_frame(move |frame| {
                counts.set(counts.get() + 1);
                frame
            });
            async move { Ok::<_, Infallible>(Response::new(body)) }
        });
        let server = start(HttpServer::new().write_timeout(WRITE), service).await;
        let mut stream = server.connect().await;
        stream.write_all(GET).await.unwrap();
        let mut buffer = vec![0; 64 << 10];
        for _ in 0..6 {
            sleep(WRITE * 4 / 5).await;
            let before = sent.get();
            while sent.get() == before {
                assert!(!dropped.is_cancelled());
                read_what_is_there(&mut stream, &mut buffer).await;
            }
        }
        assert!(!dropped.is_cancelled());
        let begin = now();
        dropped.cancelled().await;
        assert_between(begin, WRITE, 2 * WRITE);
        drop(stream);
        server.stop().await;
    });
}

/// The peer reads the socket, but opens no window.
fn a_peer_of_http2_that_opens_no_window_is_disconnected(build: Build) {
    run_paused(build, async {
        for (settings, taken) in [(&[0, 4, 0, 0, 0, 0][..], 0), (&[], 65_535)] {
            for is_endless in [true, false] {
                let log = Log::default();
                let (server, dropped) = start_large(log.server(), is_endless).await;
                let mut stream = raw2(&server, settings, true).await;
                let begin = now();
                let count = drain(&mut stream).await;
                assert_between(begin, WRITE, 2 * WRITE);
                assert!((taken..taken + 1000).contains(&count), "{count}");
                assert!(dropped.is_cancelled());
                server.stop().await;
                assert_eq!(log.lines().len(), 1, "{:?}", log.lines());
                assert!(log.lines()[0].contains("`write_timeout`"), "{:?}", log.lines());
            }
        }
    });
}

/// Data that is late is not data that waits.
fn a_service_of_http2_may_take_its_time(build: Build) {
    run_paused(build, async {
        let slow = service_fn(async |request| {
            sleep(5 * WRITE - Duration::from_millis(1)).await;
            answer(request).await
        });
        let log = Log::default();
        let limits = log.server().write_timeout(WRITE).http2_idle_timeout(WRITE);
        let server = start(limits, slow).await;
        let mut sender = crate::versions::client2(&server).await;
        for _ in 0..3 {
            let (status, _) = collect(sender.send_request(get2("/")).await.unwrap()).await;
            assert_eq!(status, StatusCode::OK);
            sleep(Duration::from_millis(2)).await;
        }
        drop(sender);
        server.stop().await;
        assert_eq!(log.other_lines(), [""; 0]);
    });
}

/// A client of HTTP/2, and the time when its connection ends without an error.
async fn until_end(server: &Running) -> (hyper::client::conn::http2::SendRequest<AnyBody>, Cancel) {
    let ended = Cancel::new();
    let tells = ended.clone();
    let mut builder = hyper::client::conn::http2::Builder::new(WindlassExecutor);
    let stream = server.connect().await;
    let (sender, connection) = builder.timer(WindlassTimer::new()).handshake(stream).await.unwrap();
    spawn(async move {
        connection.await.unwrap();
        tells.cancel();
    })
    .detach();
    (sender, ended)
}

fn a_connection_of_http2_without_requests_ends_gracefully(build: Build) {
    run_paused(build, async {
        let log = Log::default();
        let limits = log.server().write_timeout(WRITE).http2_idle_timeout(IDLE);
        let server = start(limits, service_fn(answer)).await;
        // Without any request.
        let begin = now();
        let (_sender, ended) = until_end(&server).await;
        ended.cancelled().await;
        assert_between(begin, IDLE, IDLE);
        // After requests, which begin the time again.
        let (mut sender, ended) = until_end(&server).await;
        for _ in 0..3 {
            let (status, _) = collect(sender.send_request(get2("/")).await.unwrap()).await;
            assert_eq!(status, StatusCode::OK);
            sleep(IDLE - Duration::from_secs(1)).await;
            assert!(!ended.is_cancelled());
        }
        let (status, _) = collect(sender.send_request(get2("/")).await.unwrap()).await;
        assert_eq!(status, StatusCode::OK);
        let begin = now();
        ended.cancelled().await;
        assert_between(begin, IDLE, IDLE + WRITE);
        drop(sender);
        server.stop().await;
        assert_eq!(log.lines(), [""; 0]);
    });
}

/// The graceful end of HTTP/2 waits for an answer of the peer.
fn an_idle_peer_of_http2_that_answers_nothing_is_disconnected(build: Build) {
    run_paused(build, async {
        let idle = Duration::from_secs(35);
        let limits = HttpServer::new().write_timeout(WRITE).http2_idle_timeout(idle);
        let server = start(limits, service_fn(answer)).await;
        let mut stream = raw2(&server, &[], false).await;
        let begin = now();
        drain(&mut stream).await;
        assert_between(begin, idle + WRITE, idle + WRITE);
        server.stop().await;
    });
}

/// Its request takes for ever, so neither limit above is reached.
fn a_peer_of_http2_that_answers_no_ping_is_disconnected(build: Build) {
    run_paused(build, async {
        let never = service_fn(async |request| {
            std::future::pending::<()>().await;
            answer(request).await
        });
        let server = start(HttpServer::new(), never).await;
        let mut stream = raw2(&server, &[], true).await;
        let begin = now();
        drain(&mut stream).await;
        assert_between(begin, Duration::from_secs(80), Duration::from_secs(80));
        server.stop().await;
    });
}

/// A head of HTTP/2 that does not end is no request.
fn a_head_of_http2_that_does_not_end_is_idle(build: Build) {
    run_paused(build, async {
        let idle = Duration::from_secs(35);
        let limits = HttpServer::new().write_timeout(WRITE).http2_idle_timeout(idle);
        let server = start(limits, service_fn(answer)).await;
        let mut stream = raw2(&server, &[], false).await;
        // HEADERS without END_HEADERS, and a part of the next frame.
        let head = frame(1, 1, 1, b"\x82\x86\x84");
        stream.write_all(&[&head[..], &[0, 0, 9, 9]].concat()).await.unwrap();
        let begin = now();
        drain(&mut stream).await;
        assert_between(begin, idle, idle + WRITE);
        server.stop().await;
    });
}

/// A tunnel is no response whose end the server sees.
fn a_tunnel_of_http2_is_not_idle(build: Build) {
    run_paused(build, async {
        let log = Log::default();
        let tunnel = service_fn(async |mut request: Request<Incoming>| {
            let upgrade = hyper::upgrade::on(&mut request);
            spawn(async move {
                use hyper::rt::Write as _;
                let mut tunnel = upgrade.await.unwrap();
                sleep(3 * IDLE).await;
                let mut tunnel = Pin::new(&mut tunnel);
                let count =
                    std::future::poll_fn(|context| tunnel.as_mut().poll_write(context, b"late"));
                assert_eq!(count.await.unwrap(), 4);
                std::future::poll_fn(|context| tunnel.as_mut().poll_shutdown(context))
                    .await
                    .unwrap();
            })
            .detach();
            Ok::<_, Infallible>(Response::new(String::new()))
        });
        let limits = log.server().write_timeout(WRITE).http2_idle_timeout(IDLE);
        let server = start(limits, tunnel).await;
        let (mut sender, ended) = until_end(&server).await;
        let request = Request::connect("here:80").body(crate::tools::text("")).unwrap();
        let response = sender.send_request(request).await.unwrap();
        let mut tunnel = hyper::upgrade::on(response).await.unwrap();
        let mut buffer = [0; 4];
        let mut buffer = hyper::rt::ReadBuf::new(&mut buffer);
        std::future::poll_fn(|context| {
            use hyper::rt::Read as _;
            Pin::new(&mut tunnel).poll_read(context, buffer.unfilled())
        })
        .await
        .unwrap();
        assert_eq!(buffer.filled(), b"late");
        assert!(!ended.is_cancelled());
        drop((tunnel, sender));
        server.stop().await;
    });
}

/// Its first byte tells nothing if the version is known.
fn a_preface_that_does_not_end_is_a_slow_head(build: Build) {
    run_paused(build, async {
        let limit = Duration::from_secs(7);
        let log = Log::default();
        let server = log.server().http2_only().header_timeout(limit);
        let server = start(server, service_fn(answer)).await;
        let mut stream = server.connect().await;
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r").await.unwrap();
        let begin = now();
        assert_eq!(drain(&mut stream).await, 0);
        assert_between(begin, limit, limit);
        assert!(log.lines()[0].contains("no request came within"), "{:?}", log.lines());
        server.stop().await;
    });
}

/// It is the peer that is slow, not the one that has nothing to read.
fn a_response_that_takes_long_is_no_stall(build: Build) {
    run_paused(build, async {
        let log = Log::default();
        let slow = service_fn(async |request| {
            sleep(4 * WRITE).await;
            answer(request).await
        });
        let server = start(log.server().write_timeout(WRITE), slow).await;
        let mut stream = server.connect().await;
        stream.write_all(GET).await.unwrap();
        assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200 "));
        stream.read_exact(&mut [0; 5]).await.unwrap();
        drop(stream);
        server.stop().await;
        assert_eq!(log.lines(), [""; 0]);
    });
}

scenarios! {
    a_peer_that_does_not_read_is_disconnected,
    a_peer_that_reads_slowly_is_kept,
    a_peer_that_has_read_everything_may_be_idle,
    a_peer_of_http2_that_opens_its_window_slowly_is_kept,
    late_data_of_http2_has_the_whole_time,
    a_peer_of_http2_that_opens_no_window_is_disconnected,
    a_service_of_http2_may_take_its_time,
    a_connection_of_http2_without_requests_ends_gracefully,
    an_idle_peer_of_http2_that_answers_nothing_is_disconnected,
    a_peer_of_http2_that_answers_no_ping_is_disconnected,
    a_head_of_http2_that_does_not_end_is_idle,
    a_tunnel_of_http2_is_not_idle,
    a_preface_that_does_not_end_is_a_slow_head,
    a_response_that_takes_long_is_no_stall,
}
