//! Every public call, made of tokio-tungstenite and of this crate, with the same results.
//!
//! A test's body is compiled twice, with `ws` as the one crate and as the other, and returns lines
//! of what it has seen.

#![allow(clippy::result_large_err, reason = "the sizes of the errors are part of the interface")]

use std::future::Future;

use futures_util::{
    FutureExt as _, SinkExt, StreamExt as _, future::join, stream::FusedStream as _,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    net::TcpListener,
};

fn run<R>(future: impl Future<Output = R>) -> R {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Tests whose bodies run with both crates, each as `ws`.
macro_rules! compare {
    ($(async fn $name:ident($log:ident) $body:block)+) => {
        $(
            mod $name {
                mod theirs {
                    #[allow(unused_imports, reason = "not every body uses everything")]
                    use {super::super::*, ::tokio_tungstenite as ws};
                    pub(super) async fn run($log: &mut Vec<String>) $body
                }
                mod ours {
                    #[allow(unused_imports, reason = "not every body uses everything")]
                    use {super::super::*, ::windlass_tokio_tungstenite as ws};
                    pub(super) async fn run($log: &mut Vec<String>) $body
                }
                #[test]
                fn is_the_same() {
                    let (mut one, mut other) = (Vec::new(), Vec::new());
                    super::run(theirs::run(&mut one));
                    super::run(ours::run(&mut other));
                    assert!(!one.is_empty(), "a test that sees nothing proves nothing");
                    assert_eq!(one, other, "theirs and ours");
                }
            }
        )+
    };
}

macro_rules! note {
    ($log:ident, $call:expr) => {
        $log.push(format!("{}: {:?}", stringify!($call), $call))
    };
}

/// A frame of a client, with a key of zeros.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    [&[first, 0x80 | payload.len() as u8, 0, 0, 0, 0], payload].concat()
}

/// Everything that arrives until the end.
async fn rest(mut stream: DuplexStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    bytes
}

compare! {
    async fn received_messages(log) {
        use ws::{WebSocketStream, tungstenite::protocol::Role};
        let (here, mut there) = duplex(1 << 16);
        let part = frame(0x81, b"part");
        let mut socket = WebSocketStream::from_partially_read(here, part, Role::Server, None).await;
        note!(log, socket.next().await);
        let frames = [frame(0x82, b"x"), frame(0x89, b"ping"), frame(0x8a, b"pong")].concat();
        there.write_all(&frames).await.unwrap();
        note!(log, (socket.next().await, socket.next().await, socket.next().await));
        there.write_all(&frame(0x88, b"\x03\xe8bye")).await.unwrap();
        note!(log, (socket.is_terminated(), socket.next().await));
        note!(log, (socket.next().await, socket.next().await, socket.is_terminated()));
        note!(log, socket.send("late".into()).await);
        drop(socket);
        note!(log, rest(there).await);
    }

    async fn errors(log) {
        use ws::{WebSocketStream, tungstenite::protocol::{Role, WebSocketConfig}};
        for bytes in [frame(0x83, b""), frame(0x80, b""), frame(0x82, b"")[..3].to_vec(), vec![]] {
            let (here, mut there) = duplex(1 << 16);
            there.write_all(&bytes).await.unwrap();
            there.shutdown().await.unwrap();
            let mut socket = WebSocketStream::from_raw_socket(here, Role::Server, None).await;
            note!(log, (socket.next().await, socket.next().await, socket.is_terminated()));
        }
        let config = WebSocketConfig::default().max_message_size(Some(3));
        let (here, mut there) = duplex(1 << 16);
        there.write_all(&frame(0x82, b"four")).await.unwrap();
        let socket = WebSocketStream::from_raw_socket(here, Role::Server, Some(config)).await;
        let mut socket = socket;
        note!(log, (socket.next().await, socket.get_config().max_message_size));
    }

    async fn sent_messages(log) {
        use ws::{WebSocketStream, tungstenite::{Message, protocol::Role}};
        let (here, there) = duplex(1 << 20);
        let mut socket = WebSocketStream::from_raw_socket(here, Role::Server, None).await;
        note!(log, socket.feed(Message::text("fed")).await);
        note!(log, socket.send(Message::binary(vec![7; 300])).await);
        note!(log, socket.send(Message::Ping(vec![1].into())).await);
        note!(log, socket.flush().await);
        note!(log, socket.close(None).await);
        note!(log, socket.send(Message::text("late")).await);
        let _: (usize, usize) = (size_of_val(socket.get_ref()), size_of_val(socket.get_mut()));
        drop(socket.into_inner());
        note!(log, rest(there).await);
    }

    async fn a_sink_is_closed(log) {
        use ws::{WebSocketStream, tungstenite::protocol::Role};
        let (here, mut there) = duplex(64);
        let mut socket = WebSocketStream::from_raw_socket(here, Role::Server, None).await;
        note!(log, SinkExt::close(&mut socket).await);
        there.write_all(&frame(0x88, b"")).await.unwrap();
        note!(log, (socket.next().await, socket.next().await));
        note!(log, SinkExt::close(&mut socket).await);
        drop(socket);
        note!(log, rest(there).await);
    }

    async fn a_slow_peer(log) {
        use ws::{WebSocketStream, tungstenite::{Message, protocol::{Role, WebSocketConfig}}};
        let config = WebSocketConfig::default().write_buffer_size(0);
        let (here, there) = duplex(16);
        let mut socket = WebSocketStream::from_raw_socket(here, Role::Server, Some(config)).await;
        let send = async {
            for number in 0..100 {
                socket.feed(Message::text(format!("message {number}"))).await.unwrap();
            }
            socket.flush().await.unwrap();
            drop(socket);
        };
        let ((), bytes) = join(send, rest(there)).await;
        note!(log, bytes);
    }

    async fn two_halves(log) {
        use ws::{WebSocketStream, tungstenite::{Message, protocol::Role}};
        let (here, there) = duplex(32);
        let socket = WebSocketStream::from_raw_socket(here, Role::Server, None).await;
        let (mut sink, mut stream) = socket.split();
        let peer = WebSocketStream::from_raw_socket(there, Role::Client, None).await;
        // Each is a task of its own, so a wake-up that goes to the wrong half is never made up for.
        let sender = tokio::spawn(async move {
            for number in 0..50 {
                sink.send(Message::text(number.to_string().repeat(10))).await.unwrap();
            }
            sink
        });
        let receiver = tokio::spawn(async move {
            let mut seen = 0;
            while let Some(Ok(message)) = stream.next().await {
                seen += usize::from(message.is_ping());
                if seen == 50 {
                    break;
                }
            }
            seen
        });
        let (mut to_us, mut from_us) = peer.split();
        let pings = tokio::spawn(async move {
            for number in 0..50_u8 {
                to_us.send(Message::Ping(vec![number; 20].into())).await.unwrap();
            }
            to_us
        });
        let mut texts = 0;
        while texts < 50 {
            match from_us.next().await {
                Some(Ok(message)) => texts += usize::from(message.is_text()),
                other => panic!("{other:?}"),
            }
        }
        note!(log, (texts, receiver.await.unwrap()));
        drop((sender.await.unwrap(), pings.await.unwrap()));
    }

    async fn handshakes(log) {
        use ws::tungstenite::{Error, handshake::server::{ErrorResponse, Request, Response}};
        use ws::tungstenite::protocol::WebSocketConfig;
        let config = Some(WebSocketConfig::default().max_frame_size(Some(7)));
        // The heads do not fit into the stream at once.
        let (here, there) = duplex(16);
        let client = ws::client_async_with_config("ws://localhost/a", here, config);
        let (server, client) = join(ws::accept_async_with_config(there, config), client).await;
        let (client, response) = client.unwrap();
        note!(log, (response.status(), client.get_config().max_frame_size));
        note!(log, server.unwrap().get_config().max_frame_size);

        let (here, there) = duplex(1 << 16);
        let refuse = |request: &Request, _: Response| {
            let response = ws::tungstenite::http::Response::builder().status(403);
            Err::<Response, ErrorResponse>(response.body(Some(request.uri().to_string())).unwrap())
        };
        let client = ws::client_async("ws://localhost/a", here);
        let (server, client) = join(ws::accept_hdr_async(there, refuse), client).await;
        note!(log, (server.map(|_| ()), client.map(|_| ())));

        let (here, there) = duplex(1 << 16);
        let accept = |_: &Request, mut response: Response| {
            response.headers_mut().insert("X-One", "1".parse().unwrap());
            Ok::<_, ErrorResponse>(response)
        };
        let client = ws::client_async("ws://localhost/a", here);
        let server = ws::accept_hdr_async_with_config(there, accept, None);
        let (server, client) = join(server, client).await;
        note!(log, (server.is_ok(), client.unwrap().1.headers().get("X-One")));

        let (here, mut there) = duplex(1 << 16);
        there.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        note!(log, ws::accept_async(here).await.map(|_| ()));
        note!(log, ws::client_async("http://a", duplex(9).0).await.map(|_| ()));
        let (here, there) = duplex(1 << 10);
        drop(there);
        let ended = ws::client_async("ws://a/", here).await;
        note!(log, matches!(ended, Err(Error::Io(_))));
    }

    async fn connections(log) {
        use ws::{MaybeTlsStream, tungstenite::Message};
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/", listener.local_addr().unwrap());
        for nodelay in [false, true] {
            let accept = async {
                let (stream, _) = listener.accept().await.unwrap();
                ws::accept_async(stream).await.unwrap()
            };
            let connect = ws::connect_async_with_config(&*url, None, nodelay);
            let (mut server, client) = join(accept, connect).await;
            let (mut client, response) = client.unwrap();
            note!(log, response.status());
            let MaybeTlsStream::Plain(stream) = client.get_ref() else { panic!("it is plain") };
            note!(log, (stream.nodelay().unwrap(), client.get_ref().get_ref().nodelay().unwrap()));
            client.send(Message::text("there")).await.unwrap();
            note!(log, server.next().await);
            server.send(Message::text("back")).await.unwrap();
            note!(log, client.next().await);
            let sent = client.close(None);
            note!(log, join(sent, server.next()).await);
            note!(log, (server.next().await, client.next().await));
            drop(server);
            note!(log, client.next().await);
        }
        drop(listener);
        note!(log, ws::connect_async(&*url).await.map(|_| ()).is_err());
        for url in ["http://localhost/", "wss://localhost:1/", "/", "a b", "http://localhost:1/"] {
            let result = ws::connect_async(url).await.map(|_| ());
            // Whether the port is open or not is no matter of the interface.
            note!(log, (url, matches!(result, Err(ws::tungstenite::Error::Url(_)))));
        }
    }
}

#[test]
fn each_crate_is_the_peer_of_the_other() {
    use windlass_tokio_tungstenite::tungstenite::Message;
    run(async {
        for _ in 0..2 {
            let (here, there) = duplex(1000);
            let (server, client) = join(
                tokio_tungstenite::accept_async(there),
                windlass_tokio_tungstenite::client_async("ws://localhost/", here),
            )
            .await;
            let (mut server, (mut client, _)) = (server.unwrap(), client.unwrap());
            let message = Message::binary(vec![7; 70_000]);
            let echo = async {
                let message = server.next().await.unwrap().unwrap();
                server.send(message).await.unwrap();
            };
            let call = async {
                client.send(message.clone()).await.unwrap();
                client.next().await.unwrap().unwrap()
            };
            assert_eq!(join(echo, call).await.1, message);
        }
    });
}

#[test]
fn deflate_is_negotiated_if_both_sides_have_it() {
    use windlass_tokio_tungstenite::tungstenite::{DeflateConfig, protocol::WebSocketConfig};
    run(async {
        let config = Some(WebSocketConfig::default().deflate(Some(DeflateConfig::DEFAULT)));
        let (here, there) = duplex(1 << 16);
        let client =
            windlass_tokio_tungstenite::client_async_with_config("ws://localhost/", here, config);
        let server = windlass_tokio_tungstenite::accept_async_with_config(there, config);
        let (mut server, client) = join(server, client).await;
        let (mut client, response) = client.unwrap();
        assert!(response.headers().contains_key("Sec-WebSocket-Extensions"));
        client.send("a message, ".repeat(100).into()).await.unwrap();
        let received = server.as_mut().unwrap().next().await.unwrap().unwrap();
        assert_eq!(received.into_text().unwrap(), "a message, ".repeat(100));
    });
}

#[test]
fn messages_are_lent() {
    use windlass_tokio_tungstenite::{
        WebSocketStream,
        tungstenite::protocol::{LentMessage, Role},
    };
    run(async {
        let (here, mut there) = duplex(1 << 16);
        let mut socket = WebSocketStream::from_raw_socket(here, Role::Server, None).await;
        // A future that is dropped loses nothing.
        assert!(socket.recv().now_or_never().is_none());
        there.write_all(&frame(0x81, b"text")[..3]).await.unwrap();
        assert!(socket.recv().now_or_never().is_none());
        let frames = [frame(0x82, b"binary"), frame(0x88, b"")].concat();
        there.write_all(&frame(0x81, b"text")[3..]).await.unwrap();
        there.write_all(&frames).await.unwrap();
        assert!(matches!(socket.recv().await, Some(Ok(LentMessage::Text("text")))));
        assert!(matches!(socket.recv().await, Some(Ok(LentMessage::Binary(b"binary")))));
        let close = socket.recv().await;
        assert!(matches!(close, Some(Ok(LentMessage::Control(message))) if message.is_close()));
        assert!(socket.recv().await.is_none());
        assert!(socket.is_terminated());
        drop(socket);
        assert_eq!(rest(there).await, [0x88, 0]);
    });
}

#[test]
fn futures_can_go_to_another_thread() {
    use windlass_tokio_tungstenite as ws;
    fn is_send(_: impl Send) {}
    let stream = || duplex(1).0;
    is_send(ws::accept_async(stream()));
    is_send(ws::client_async("ws://a/", stream()));
    is_send(ws::connect_async("ws://a/"));
    is_send(async {
        let mut socket = ws::accept_async(stream()).await?;
        socket.recv().await.transpose().map(|_| ())
    });
    is_send(ws::WebSocketStream::from_raw_socket(
        stream(),
        ws::tungstenite::protocol::Role::Server,
        None,
    ));
}
