//! The ends of a stream of HTTP/2 are those of a TCP connection (RFC 8441 section 5). The peer
//! speaks HTTP/2 by h2, below hyper.

use std::{future::poll_fn, io::ErrorKind};

use futures_util::FutureExt as _;
use h2::{Reason, RecvStream, SendStream, client, ext::Protocol};
use hyper::{Method, Request, body::Bytes, http::Extensions};
use tokio::{
    io::AsyncWriteExt as _,
    spawn,
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::yield_now,
};
use windlass_websocket::{CloseCode, Config, RecvError, WebSocket, upgrade::UpgradedIo};

use crate::bed::{Stream, run, serve_http2, streams, tls_streams};

/// A server's socket, and its peer's stream.
struct Pair {
    socket: WebSocket<UpgradedIo>,
    send: SendStream<Bytes>,
    receive: RecvStream,
}

async fn pair(ours: impl Stream, theirs: impl Stream) -> Pair {
    let (give, mut sockets) = unbounded_channel();
    spawn(serve_http2(ours, Config::new(), move |_, upgrading| {
        let give = give.clone();
        async move { give.send(upgrading.await.expect("it is upgraded")).expect("it is awaited") }
    }));
    let (mut sender, mut connection) = client::handshake(theirs).await.expect("a handshake");
    poll_fn(|context| {
        let _ = std::pin::Pin::new(&mut connection).poll(context);
        match sender.is_extended_connect_protocol_enabled() {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    spawn(connection);
    let mut extensions = Extensions::new();
    extensions.insert(Protocol::from_static("websocket"));
    let mut request = Request::builder()
        .method(Method::CONNECT)
        .uri("https://localhost/")
        .header("sec-websocket-version", "13")
        .body(())
        .expect("a request");
    *request.extensions_mut() = extensions;
    let (response, send) = sender.send_request(request, false).expect("it is sent");
    let response = response.await.expect("a response");
    assert_eq!(response.status(), 200);
    let receive = response.into_body();
    Pair { socket: next(&mut sockets).await, send, receive }
}

async fn next<T>(receiver: &mut UnboundedReceiver<T>) -> T {
    receiver.recv().await.expect("it is sent")
}

/// A masked empty binary message.
const MESSAGE: Bytes = Bytes::from_static(b"\x82\x80\0\0\0\0");

#[test]
fn a_stream_that_ends_is_abnormal_and_one_that_is_reset_is_an_error() {
    let ends: [(Option<Reason>, Option<ErrorKind>); 5] = [
        (None, None),
        (Some(Reason::CANCEL), Some(ErrorKind::ConnectionReset)),
        (Some(Reason::NO_ERROR), Some(ErrorKind::ConnectionReset)),
        (Some(Reason::INTERNAL_ERROR), Some(ErrorKind::ConnectionReset)),
        (Some(Reason::PROTOCOL_ERROR), Some(ErrorKind::ConnectionReset)),
    ];
    run(async {
        for (reset, expected) in ends {
            let (ours, theirs) = streams().await;
            let Pair { mut socket, mut send, receive } = pair(ours, theirs).await;
            send.send_data(MESSAGE, false).expect("it is open");
            assert!(socket.recv().await.expect("it is good").is_some());
            match reset {
                Some(reason) => send.send_reset(reason),
                None => send.send_data(Bytes::new(), true).expect("it is open"),
            }
            let end = socket.recv().await.expect_err("no clean end");
            let kind = match &end {
                RecvError::Abnormal => None,
                RecvError::Io(error) => Some(error.kind()),
                other => panic!("{other} after {reset:?}"),
            };
            assert_eq!(kind, expected, "after {reset:?}: {end}");
            drop(receive);
        }
    });
}

#[test]
fn the_end_of_a_peer_that_does_not_read_is_told_at_once() {
    run(async {
        let (ours, theirs) = streams().await;
        let Pair { mut socket, mut send, receive } = pair(ours, theirs).await;
        // Until its window is full, and everything on the way to it.
        let mut waits = 0;
        while waits < 1000 {
            match socket.feed(&[7; 4096][..]).now_or_never() {
                Some(result) => result.expect("the connection is open"),
                None => waits += 1,
            }
            yield_now().await;
        }
        send.send_data(Bytes::new(), true).expect("it is open");
        assert!(matches!(socket.recv().await, Err(RecvError::Abnormal)));
        drop(receive);
    });
}

#[test]
fn close_frames_make_a_clean_end_however_the_stream_ends() {
    run(async {
        for is_reset in [false, true] {
            let (ours, theirs) = streams().await;
            let Pair { mut socket, mut send, mut receive } = pair(ours, theirs).await;
            let close = b"\x88\x82\0\0\0\0\x03\xe8";
            send.send_data(Bytes::from_static(close), !is_reset).expect("it is open");
            assert!(socket.recv().await.expect("a clean end").is_none());
            assert_eq!(socket.peer_close().and_then(|it| it.code), Some(CloseCode::NORMAL));
            let data = receive.data().await.expect("an answer").expect("it is good");
            assert_eq!(&data[..], b"\x88\x02\x03\xe8");
            if is_reset {
                send.send_reset(Reason::CANCEL);
            }
            assert!(socket.recv().await.expect("the same").is_none());
        }
    });
}

#[test]
fn a_cut_tls_connection_is_cut_and_an_ended_one_fails() {
    run(async {
        for is_cut in [false, true] {
            let (ours, theirs) = tls_streams().await;
            // h2 writes to one end of a pipe, so that the TLS stream can be ended below it.
            let (near, far) = tokio::io::duplex(1 << 16);
            let (stop, mut stopped) = unbounded_channel::<()>();
            let (mut tls, mut far) = (theirs, far);
            let forwarding = spawn(async move {
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut tls, &mut far) => {}
                    _ = stopped.recv() => {}
                }
                if is_cut {
                    tls.get_mut().0.shutdown().await.expect("it is open");
                } else {
                    tls.shutdown().await.expect("it is open");
                }
                (tls, far)
            });
            let Pair { mut socket, mut send, receive } = pair(ours, near).await;
            send.send_data(MESSAGE, false).expect("it is open");
            assert!(socket.recv().await.expect("it is good").is_some());
            stop.send(()).expect("it is awaited");
            let kept = forwarding.await.expect("it runs");
            match socket.recv().await.expect_err("no clean end") {
                RecvError::Cut => assert!(is_cut),
                RecvError::Io(error) => assert!(!is_cut, "{error:?}"),
                other => panic!("{other:?}"),
            }
            drop((kept, receive));
        }
    });
}
