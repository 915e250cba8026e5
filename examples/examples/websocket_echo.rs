//! An echo server on tokio, by `windlass-websocket`.
//!
//! Run `cargo run --example websocket_echo -- 127.0.0.1:9020`, and connect with any WebSocket
//! client.
//!
//! It shows:
//! - `accept` makes the handshake, with permessage-deflate if the client offers it.
//! - `recv` lends the message from the buffer that it was read into. `reply` sends it back from
//!   there. All messages of one read are answered with one write.
//! - Pings and Close frames are answered by `recv`. Its end is the clean one; all else is an error.

use std::{error::Error, io};

use tokio::net::{TcpListener, TcpStream};
use windlass_websocket::{Config, DeflateConfig, WebSocket};

async fn serve(listener: TcpListener, config: Config) -> io::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let config = config.clone();
        tokio::spawn(async move {
            if let Err(error) = echo(stream, &config).await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

async fn echo(stream: TcpStream, config: &Config) -> Result<(), Box<dyn Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    let mut socket = WebSocket::accept(stream, config).await?;
    while let Some(message) = socket.recv().await? {
        message.reply()?;
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:9020".to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("listening on ws://{}/", listener.local_addr()?);
        serve(listener, Config::new().deflate(DeflateConfig::DEFAULT)).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_websocket::{ClientRequest, CloseCode};

    /// Echoes over a connection whose client has this configuration.
    async fn exchange(client: Config) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let address = listener.local_addr().expect("it has an address");
        let server = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a client comes");
            echo(stream, &Config::new().deflate(DeflateConfig::DEFAULT)).await
        });
        let stream = TcpStream::connect(address).await.expect("it listens");
        let request = ClientRequest::new("localhost", "/", client.random_key());
        let mut socket = WebSocket::client(stream, request, &client).await.expect("it accepts");
        let long = "longer than a read ".repeat(5000);
        for text in ["first", "", "zwölf", &long] {
            socket.send(text).await.expect("the server reads");
            let echo = socket.recv().await.expect("the server is good").expect("an echo");
            assert_eq!(echo.as_str(), Some(text));
        }
        socket.close(CloseCode::NORMAL, "").await.expect("it is answered");
        server.await.expect("no panic").expect("the end is clean");
    }

    #[tokio::test]
    async fn messages_come_back_with_and_without_compression() {
        exchange(Config::new()).await;
        exchange(Config::new().deflate(DeflateConfig::DEFAULT)).await;
    }
}
