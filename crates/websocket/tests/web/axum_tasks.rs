//! Messages that are written together, and the tasks that write them.

use std::{
    future::pending,
    io::ErrorKind,
    os::fd::AsFd as _,
    sync::{Arc, OnceLock},
};

use axum::{Router, routing::any};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    spawn,
    sync::{Notify, oneshot},
};
use windlass_websocket::axum::{WebSocket, WebSocketUpgrade};

use crate::bed::run;

const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// A masked text message of one byte.
const MESSAGE: &[u8] = b"\x81\x81\0\0\0\0a";
const ECHO: &[u8] = b"\x81\x01a";

/// Serves sockets with this function, and returns a client's stream after the handshake.
async fn connect<F>(handle: impl Fn(WebSocket) -> F + Clone + Send + Sync + 'static) -> TcpStream
where
    F: Future<Output = ()> + Send + 'static,
{
    let app = Router::new().route(
        "/",
        any(move |ws: WebSocketUpgrade| {
            let handle = handle.clone();
            async { ws.on_upgrade(handle) }
        }),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    spawn(async { axum::serve(listener, app).await });
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(HEAD).await.expect("it is open");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a response"));
    }
    assert!(head.starts_with(b"HTTP/1.1 101"));
    stream
}

async fn receive(stream: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).await.expect("an answer");
    bytes
}

#[test]
fn an_answer_that_was_deferred_is_written_when_the_task_waits() {
    run(async {
        let mut stream = connect(async |mut socket| {
            let message = socket.recv().await.expect("a message").expect("it is good");
            socket.send(message).await.expect("it is open");
            // A further message has arrived, and nobody receives it.
            pending::<()>().await;
        })
        .await;
        stream.write_all(&MESSAGE.repeat(2)).await.expect("it is open");
        assert_eq!(receive(&mut stream, 3).await, ECHO);
    });
}

#[test]
fn an_answer_that_was_deferred_is_written_after_the_callback() {
    run(async {
        let mut stream = connect(async |mut socket| {
            let message = socket.recv().await.expect("a message").expect("it is good");
            socket.send(message).await.expect("it is open");
        })
        .await;
        stream.write_all(&MESSAGE.repeat(2)).await.expect("it is open");
        assert_eq!(receive(&mut stream, 3).await, ECHO);
    });
}

#[test]
fn answers_to_messages_that_arrive_together_are_written_together() {
    run(async {
        let client = Arc::new(OnceLock::<std::net::TcpStream>::new());
        let others = Arc::clone(&client);
        let mut stream = connect(move |mut socket| {
            let client = Arc::clone(&others);
            async move {
                let message = socket.recv().await.expect("a message").expect("it is good");
                socket.send(message).await.expect("it is open");
                let client = client.get().expect("it has sent a message");
                let early = client.peek(&mut [0]).map_err(|error| error.kind());
                assert_eq!(early, Err(ErrorKind::WouldBlock), "nothing is written yet");
                let message = socket.recv().await.expect("a message").expect("it is good");
                socket.send(message).await.expect("it is open");
                pending::<()>().await;
            }
        })
        .await;
        let copy = stream.as_fd().try_clone_to_owned().expect("a descriptor");
        client.set(copy.into()).expect("it is set once");
        stream.write_all(&MESSAGE.repeat(2)).await.expect("it is open");
        assert_eq!(receive(&mut stream, 6).await, ECHO.repeat(2));
    });
}

#[test]
fn a_socket_that_is_dropped_with_a_deferred_answer_ends_the_connection_behind_it() {
    run(async {
        let mut stream = connect(async |mut socket| {
            let message = socket.recv().await.expect("a message").expect("it is good");
            socket.send(message).await.expect("it is open");
            drop(socket);
            pending::<()>().await;
        })
        .await;
        stream.write_all(&MESSAGE.repeat(2)).await.expect("it is open");
        assert_eq!(receive(&mut stream, 3).await, ECHO);
        assert_eq!(stream.read(&mut [0; 8]).await.expect("an end"), 0);
    });
}

#[test]
fn a_socket_in_another_task_goes_on_after_the_callback() {
    run(async {
        let mut stream = connect(async |mut socket| {
            spawn(async move {
                while let Some(Ok(message)) = socket.recv().await {
                    socket.send(message).await.expect("it is open");
                }
            });
        })
        .await;
        for _ in 0..3 {
            stream.write_all(&MESSAGE.repeat(16)).await.expect("it is open");
            assert_eq!(receive(&mut stream, 48).await, ECHO.repeat(16));
        }
    });
}

#[test]
fn a_dropped_socket_ends_the_connection_while_the_callback_runs() {
    run(async {
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let mut stream = connect(move |socket| {
            let stopped = Arc::clone(&stopped);
            async move {
                drop(socket);
                stopped.notified().await;
            }
        })
        .await;
        assert_eq!(stream.read(&mut [0; 8]).await.expect("an end"), 0);
        stop.notify_one();
    });
}

#[test]
fn a_task_that_panics_ends_the_connection() {
    run(async {
        let (done, finished) = oneshot::channel::<()>();
        let done = Arc::new(std::sync::Mutex::new(Some(done)));
        let mut stream = connect(move |socket| {
            let done = done.lock().expect("no panic under it").take();
            async move {
                let (_socket, _done) = (socket, done);
                std::panic::resume_unwind(Box::new("a panic without a message"));
            }
        })
        .await;
        assert!(finished.await.is_err());
        assert_eq!(stream.read(&mut [0; 8]).await.expect("an end"), 0);
    });
}
