//! WebSockets in axum: the import alone differs from a program with `axum::extract::ws`.
//!
//! Run `cargo run --example websocket_axum -- 127.0.0.1:9024`. `/ws` is an echo.

use std::io;

use axum::{Router, response::Response, routing::any};
use tokio::net::TcpListener;
// With axum's own: `use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};`.
use windlass_websocket::axum::{Message, WebSocket, WebSocketUpgrade};

async fn handler(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(echo)
}

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        // Pings and Close frames are answered by the socket.
        if let Message::Text(_) | Message::Binary(_) = message
            && socket.send(message).await.is_err()
        {
            return;
        }
    }
}

fn router() -> Router {
    // `any`, because HTTP/2 asks by CONNECT.
    Router::new().route("/ws", any(handler))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:9024".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on ws://{}/ws", listener.local_addr()?);
    axum::serve(listener, router()).await
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use windlass_websocket::{CloseCode, client};

    #[tokio::test]
    async fn it_echoes_to_a_client() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/ws", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, super::router()).await });
        let mut socket: client::ClientSocket<client::Tokio> = client::connect(&url).await.unwrap();
        for text in ["one", "two"] {
            socket.send(text).await.unwrap();
            assert_eq!(socket.recv().await.unwrap().unwrap().as_str(), Some(text));
        }
        socket.close(CloseCode::NORMAL, "").await.unwrap();
    }
}
