//! A client of Kubernetes: the connection that it opens for `exec` and `port-forward`.

mod peer;

use futures_util::{SinkExt as _, StreamExt as _};
use kube_client::{Client, Config, client::Connection};
use tokio_tungstenite::tungstenite::Message;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (address, peer) = peer::serve(peer::scripts());
    let url = format!("http://{address}/").parse().expect("it is a URL");
    let client = Client::try_from(Config::new(url)).expect("it needs no TLS");

    let connection = connect(&client).await.expect("it is accepted");
    println!("{}", connection.supports_stream_close());
    let mut socket = connection.into_stream();
    for length in [10, 70_000] {
        let message = Message::binary(vec![7; length]);
        socket.send(message.clone()).await.expect("it is open");
        println!("{}", socket.next().await.expect("an echo").expect("no error") == message);
    }
    socket.close(None).await.expect("it is open");
    while let Some(message) = socket.next().await {
        println!("{message:?}");
    }

    let mut socket = connect(&client).await.expect("it is accepted").into_stream();
    while let Some(message) = socket.next().await {
        println!("{message:?}");
    }

    let mut socket = connect(&client).await.expect("it is accepted").into_stream();
    println!("{:?}", socket.next().await);
    drop(socket);

    println!("{}", connect(&client).await.is_err());
    peer::report(peer);
}

async fn connect(client: &Client) -> kube_client::Result<Connection> {
    let request = http::Request::get("/api/v1/namespaces/n/pods/p/exec").body(Vec::new());
    client.connect(request.expect("it is a request")).await
}
