//! tokio's streams, on both of its schedulers, and tungstenite as the peer.

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::{Message as TheirMessage, protocol::Role as TheirRole};
use windlass_websocket::{CloseCode, Config, Message, Timed, TokioTimer, WebSocket};

use crate::{ask, connect, echo, messages, serve};

/// A server's and a client's stream.
pub(crate) async fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let (accepted, connected) = tokio::join!(listener.accept(), TcpStream::connect(address));
    (accepted.expect("it is accepted").0, connected.expect("it is connected"))
}

pub(crate) fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn multi_thread() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime")
}

#[test]
fn an_echo_on_both_schedulers() {
    current_thread().block_on(async {
        let (ours, theirs) = streams().await;
        tokio::join!(serve(ours), ask(theirs));
    });
    multi_thread().block_on(async {
        let (ours, theirs) = streams().await;
        let server = tokio::spawn(serve(Timed::new(ours, TokioTimer::new())));
        tokio::spawn(ask(theirs)).await.expect("the client is good");
        server.await.expect("the server is good");
    });
}

#[test]
fn the_halves_in_two_tasks_on_two_threads() {
    const COUNT: usize = 2000;
    multi_thread().block_on(async {
        let (ours, theirs) = streams().await;
        let server = tokio::spawn(serve(ours));
        let (mut reader, mut writer) = connect(theirs).await.split();
        let writing = tokio::spawn(async move {
            for number in 0..COUNT {
                writer.feed(format!("{number}")).await.expect("it is open");
                if number % 7 == 0 {
                    writer.flush().await.expect("it is open");
                    writer.ping(b"ping").await.expect("it is open");
                }
            }
            writer.flush().await.expect("it is open");
            writer
        });
        let reading = tokio::spawn(async move {
            for number in 0..COUNT {
                let message = reader.recv().await.expect("it is good").expect("an echo");
                assert_eq!(message.as_str(), Some(&*number.to_string()));
            }
            reader
        });
        let (writer, reader) = tokio::join!(writing, reading);
        let (writer, reader) = (writer.expect("it ends"), reader.expect("it ends"));
        let mut socket = reader.reunite(writer).expect("they are of one socket");
        socket.close(CloseCode::NORMAL, "").await.expect("it is answered");
        server.await.expect("the server is good");
    });
}

fn theirs(message: &Message) -> TheirMessage {
    match message.as_str() {
        Some(text) => TheirMessage::text(text),
        None => TheirMessage::binary(message.as_bytes().clone()),
    }
}

#[test]
fn tungstenite_is_the_client() {
    current_thread().block_on(async {
        let (ours, stream) = streams().await;
        let client = async {
            let (mut client, _) =
                tokio_tungstenite::client_async("ws://localhost/", stream).await.expect("accepted");
            for message in messages() {
                client.send(theirs(&message)).await.expect("it is open");
                let received = client.next().await.expect("an echo").expect("it is good");
                assert!(received == theirs(&message));
            }
            client.close(None).await.expect("it is open");
            while client.next().await.is_some_and(|next| next.is_ok()) {}
        };
        tokio::join!(serve(ours), client);
    });
}

#[test]
fn tungstenite_is_the_server() {
    current_thread().block_on(async {
        let (stream, ours) = streams().await;
        let server = async {
            let mut server = tokio_tungstenite::accept_async(stream).await.expect("an upgrade");
            while let Some(Ok(message)) = server.next().await {
                if message.is_text() || message.is_binary() {
                    server.send(message).await.expect("it is open");
                }
            }
        };
        tokio::join!(server, ask(ours));
    });
}

#[test]
fn sockets_begin_after_a_handshake_of_tungstenite() {
    current_thread().block_on(async {
        let (ours, stream) = streams().await;
        let mut socket =
            WebSocket::from_upgraded(ours, &[], windlass_websocket::Role::Server, &Config::new());
        let client = async {
            let mut client = tokio_tungstenite::WebSocketStream::from_raw_socket(
                stream,
                TheirRole::Client,
                None,
            )
            .await;
            client.send(TheirMessage::text("hi")).await.expect("it is open");
            let echo = client.next().await.expect("an echo").expect("it is good");
            assert_eq!(echo, TheirMessage::text("hi"));
            drop(client);
        };
        let (end, ()) = tokio::join!(echo(&mut socket), client);
        end.expect_err("no Close frame came");
    });
}
