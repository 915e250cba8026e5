//! Sockets over real streams, on the runtimes that the crate has features for.
//!
//! The listeners use a port of the kernel's choice, and each test waits for its peers alone.

mod async_io;
mod hyper;
mod tls;
mod tokio;
#[cfg(target_os = "linux")]
mod windlass_task;

use windlass_websocket::{
    ClientRequest, CloseCode, Config, Message, RecvError, Transport, WebSocket,
};

/// Messages of both kinds, with lengths around those of the frame's forms and of the buffers.
fn messages() -> Vec<Message> {
    let lens = [0, 1, 125, 126, 4096, 65_536, 300_000];
    let texts = lens.map(|len| Message::from("x".repeat(len)));
    let bytes = lens.map(|len| Message::from(vec![7; len]));
    texts.into_iter().chain(bytes).collect()
}

/// Accepts a connection, and sends back what it receives until the clean end.
async fn serve<S: Transport>(stream: S) {
    let config = Config::new();
    let mut socket = WebSocket::accept(stream, &config).await.expect("it is an upgrade");
    echo(&mut socket).await.expect("a clean end");
}

async fn echo<S: Transport>(socket: &mut WebSocket<S>) -> Result<(), RecvError> {
    while let Some(message) = socket.recv().await? {
        message.reply().expect("the connection is open");
    }
    Ok(())
}

async fn connect<S: Transport>(stream: S) -> WebSocket<S> {
    let config = Config::new();
    let request = ClientRequest::new("localhost", "/", config.random_key());
    WebSocket::client(stream, request, &config).await.expect("it is accepted")
}

/// Sends all messages, one at a time and then together, and closes.
async fn ask<S: Transport>(stream: S) {
    let mut socket = connect(stream).await;
    for message in messages() {
        socket.send(&message).await.expect("the connection is open");
        let received = socket.recv().await.expect("the server is good").expect("an echo");
        assert!(received.to_message() == Some(message));
    }
    for message in &messages()[..5] {
        socket.feed(message).await.expect("the connection is open");
    }
    socket.flush().await.expect("the connection is open");
    for message in &messages()[..5] {
        let received = socket.recv().await.expect("the server is good").expect("an echo");
        assert_eq!(received.as_bytes(), message.as_bytes());
    }
    socket.close(CloseCode::NORMAL, "done").await.expect("it is answered");
    let code = socket.peer_close().expect("it has answered").code;
    assert_eq!(code, Some(CloseCode::NORMAL));
}
