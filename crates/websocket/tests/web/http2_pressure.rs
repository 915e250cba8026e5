//! Back-pressure of sockets on one connection: each has its own, and memory is bounded.

use std::{
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use futures_util::FutureExt as _;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex},
    spawn,
    sync::mpsc,
    task::yield_now,
};
use windlass_websocket::{
    Config,
    http2::{STREAM_WINDOW, watch},
    upgrade::UpgradedIo,
};

use crate::bed::{STREAMS_MAX, ask, client_http2, close, echo, open, run, serve_http2, streams};

type Socket = windlass_websocket::WebSocket<UpgradedIo>;

/// The most that lies between two ends that do not read: the outputs, the pieces on their way to
/// hyper, what hyper holds, and the window.
const HELD_MAX: usize = 2 * (64 << 10) + 4 * (32 << 10) + 3 * STREAM_WINDOW as usize;

/// Sends until the socket waits and nothing moves any more. Returns how many bytes it took.
async fn fill(socket: &mut Socket) -> usize {
    let message = [7; 4096];
    let (mut sent, mut waits) = (0, 0);
    while waits < 1000 {
        match socket.feed(&message[..]).now_or_never() {
            Some(result) => {
                result.expect("the connection is open");
                (sent, waits) = (sent + message.len(), 0);
            }
            None => {
                waits += 1;
                yield_now().await;
            }
        }
        assert!(sent <= HELD_MAX, "{sent} bytes were taken");
    }
    sent
}

#[test]
fn sockets_that_are_not_read_stop_no_other_one() {
    run(async {
        let (ours, theirs) = streams().await;
        let (give, mut stalled) = mpsc::unbounded_channel();
        let config = Config::new();
        spawn(serve_http2(ours, config.clone(), move |path, upgrading| {
            let give = give.clone();
            async move {
                let socket = upgrading.await.expect("it is upgraded");
                match &path[..] {
                    "/stall" => give.send(socket).expect("the test waits"),
                    _ => echo(socket).await,
                }
            }
        }));
        let mut sender = client_http2(theirs).await;
        // hyper's default window of a connection is as large as one of a stream.
        let mut held = Vec::new();
        for _ in 0..8 {
            let mut client = open(&mut sender, "http", "/stall", &config).await;
            let mut server: Socket = stalled.recv().await.expect("it is accepted");
            let (from_client, from_server) = (fill(&mut client).await, fill(&mut server).await);
            assert!(from_client >= STREAM_WINDOW as usize, "{from_client} bytes");
            assert!(from_server >= STREAM_WINDOW as usize, "{from_server} bytes");
            held.push((client, server, from_client));
        }
        ask(open(&mut sender, "http", "/echo", &config).await).await;

        // Nothing is lost: what was sent arrives when it is read.
        let (mut client, mut server, sent) = held.pop().expect("one of them");
        let reader = spawn(async move {
            let mut received = 0;
            while received < sent {
                let message = server.recv().await.expect("it is good").expect("it is open");
                assert!(message.as_bytes() == [7; 4096]);
                received += 4096;
            }
            received
        });
        let client = spawn(async move { while let Ok(Some(_)) = client.recv().await {} });
        assert_eq!(reader.await.expect("all messages"), sent);
        client.abort();
    });
}

#[test]
fn a_socket_beyond_the_maximum_waits_for_the_end_of_another() {
    run(async {
        let (ours, theirs) = streams().await;
        let config = Config::new();
        spawn(serve_http2(ours, config.clone(), async |_, upgrading| {
            echo(upgrading.await.expect("it is upgraded")).await;
        }));
        let mut sender = client_http2(theirs).await;
        let mut sockets = Vec::new();
        for _ in 0..STREAMS_MAX {
            sockets.push(open(&mut sender, "http", "/", &config).await);
        }
        let mut next = pin!(open(&mut sender, "http", "/", &config));
        for _ in 0..1000 {
            assert!((&mut next).now_or_never().is_none(), "there are {STREAMS_MAX} already");
            yield_now().await;
        }
        close(sockets.remove(0)).await;
        ask(next.await).await;
    });
}

/// A stream that is not read while it is shut.
struct Gate {
    stream: DuplexStream,
    is_shut: Arc<AtomicBool>,
}

impl AsyncRead for Gate {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_shut.load(Relaxed) {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Gate {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[test]
fn a_client_with_large_windows_that_reads_nothing_fills_no_more_of_the_server() {
    run(async {
        let (ours, theirs) = duplex(4096);
        let (give, mut accepted) = mpsc::unbounded_channel();
        let config = Config::new();
        spawn(serve_http2(ours, config.clone(), move |_, upgrading| {
            let give = give.clone();
            async move {
                give.send(upgrading.await.expect("it is upgraded")).expect("the test waits");
            }
        }));
        let is_shut = Arc::default();
        let stream = Gate { stream: theirs, is_shut: Arc::clone(&is_shut) };
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(16 << 20).initial_connection_window_size(16 << 20);
        let (stream, settings) = watch(TokioIo::new(stream));
        let (mut sender, connection) = builder.handshake(stream).await.expect("a handshake");
        spawn(connection);
        assert!(settings.await.expect("they are received"));
        let _client = open(&mut sender, "http", "/", &config).await;
        let mut server: Socket = accepted.recv().await.expect("it is accepted");
        is_shut.store(true, Relaxed);
        let filled = fill(&mut server).await;
        assert!(filled >= STREAM_WINDOW as usize, "{filled} bytes");
    });
}
