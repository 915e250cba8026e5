//! A server of warp that echoes.

mod peer;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::sync::mpsc;
use warp::Filter as _;
use warp::ws::{WebSocket, Ws};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (ended, mut ends) = mpsc::unbounded_channel();
    let serve = move |ws: Ws| {
        let ended = ended.clone();
        ws.max_message_size(1000).on_upgrade(move |socket| async move {
            ended.send(echo(socket).await).expect("it is waited for");
        })
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback is there");
    let address = listener.local_addr().expect("it is bound");
    let server = warp::serve(warp::path("echo").and(warp::ws()).map(serve)).incoming(listener);
    tokio::spawn(server.run());

    let client = tokio::task::spawn_blocking(move || {
        let mut client = peer::Peer::connect(address, "/echo");
        client.write(peer::TEXT, b"text");
        client.write(peer::PING, b"ping");
        client.write(peer::CLOSE, &peer::close(1001, "bye"));
        while let Some((opcode, payload)) = client.read() {
            println!("client: {opcode} {:?}", String::from_utf8_lossy(&payload));
        }
        let mut client = peer::Peer::connect(address, "/echo");
        client.write(peer::BINARY, &[0; 1001]);
        while client.read().is_some() {}
        let mut client = peer::Peer::connect(address, "/echo");
        client.write(peer::RESERVED, b"");
        while client.read().is_some() {}
    });
    client.await.expect("the client does not panic");
    for _ in 0..3 {
        println!("server: {}", ends.recv().await.expect("three connections"));
    }
}

/// Returns what came.
async fn echo(mut socket: WebSocket) -> String {
    let mut came = String::new();
    while let Some(message) = socket.next().await {
        came += &format!("{message:?}; ");
        match message {
            Ok(message) if message.is_text() => socket.send(message).await.expect("it is open"),
            Ok(message) if message.is_close() => came += &format!("{:?}; ", message.close_frame()),
            _ => {}
        }
    }
    came
}
