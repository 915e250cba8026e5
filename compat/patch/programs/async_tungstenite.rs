//! async-tungstenite on tokio: a client, and a server in memory.

mod peer;

use async_tungstenite::tokio::{accept_async, client_async, connect_async};
use async_tungstenite::tungstenite::Message;
use futures_util::{SinkExt as _, StreamExt as _};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (address, peer) = peer::serve(peer::scripts());
    let url = format!("ws://{address}/path?query");

    let (mut socket, response) = connect_async(&url).await.expect("it is accepted");
    println!("{}", response.status());
    for message in [Message::text("text"), Message::binary(vec![7; 70_000])] {
        socket.send(message.clone()).await.expect("it is open");
        println!("{}", socket.next().await.expect("an echo").expect("no error") == message);
    }
    socket.close(None).await.expect("it is open");
    while let Some(message) = socket.next().await {
        println!("{message:?}");
    }

    let (mut socket, _) = connect_async(&url).await.expect("it is accepted");
    while let Some(message) = socket.next().await {
        println!("{message:?}");
    }
    println!("{:?}", socket.send(Message::text("late")).await);

    let (mut socket, _) = connect_async(&url).await.expect("it is accepted");
    println!("{:?}", socket.next().await);
    drop(socket);

    println!("{:?}", connect_async(&url).await.map(|_| ()));
    peer::report(peer);

    let (one, other) = tokio::io::duplex(1 << 10);
    let (client, server) = tokio::join!(client_async("ws://localhost/", one), accept_async(other));
    let (mut client, server) = (client.expect("accepted").0, server.expect("accepted"));
    let close = async {
        client.send(Message::Ping("ping".into())).await.expect("it is open");
        client.close(None).await.expect("it is open");
        while let Some(message) = client.next().await {
            println!("client: {message:?}");
        }
    };
    let answer = async move {
        // The client waits until the server has closed the stream.
        let mut server = server;
        let mut seen = Vec::new();
        while let Some(message) = server.next().await {
            seen.push(message);
        }
        seen
    };
    println!("server: {:?}", tokio::join!(close, answer).1);
}
