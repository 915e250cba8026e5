//! The two halves of a socket in two tasks: one counts, the other one takes commands.
//!
//! Run `cargo run --example websocket_halves -- 127.0.0.1:9023`, and connect with a WebSocket
//! client. The server counts as fast as the client reads. A number that the client sends is the
//! next one.
//!
//! It shows:
//! - The writer waits for a client that does not read. The reader goes on meanwhile, and answers
//!   pings and the client's Close.
//! - When one half ends, the other one does too: `recv` returns `None` after the closing handshake,
//!   and `send` fails with `SendError::Closed` after the Close frame.
//! - `reunite` makes one socket of both again.

use std::{
    error::Error,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use tokio::net::{TcpListener, TcpStream};
use windlass_websocket::{Config, Reader, RecvError, SendError, WebSocket, Writer};

/// Sends the numbers, until the connection is closed.
async fn count(writer: &mut Writer<TcpStream>, next: &AtomicU64) -> Result<(), SendError> {
    loop {
        // `feed` waits above the high watermark, so many numbers share one write.
        match writer.feed(next.fetch_add(1, Relaxed).to_string()).await {
            Err(SendError::Closed) => return Ok(()),
            result => result?,
        }
    }
}

/// Takes the client's numbers, until it closes.
async fn listen(reader: &mut Reader<TcpStream>, next: &AtomicU64) -> Result<(), RecvError> {
    while let Some(message) = reader.recv().await? {
        if let Some(number) = message.as_str().and_then(|text| text.parse().ok()) {
            next.store(number, Relaxed);
        }
    }
    Ok(())
}

/// Serves a connection to its end, and returns the whole socket.
async fn serve(stream: TcpStream) -> Result<WebSocket<TcpStream>, Box<dyn Error + Send + Sync>> {
    let socket = WebSocket::accept(stream, &Config::new()).await?;
    let (mut reader, mut writer) = socket.split();
    let next = Arc::new(AtomicU64::new(1));
    let shared = Arc::clone(&next);
    let counting = tokio::spawn(async move {
        let result = count(&mut writer, &shared).await;
        (writer, result)
    });
    listen(&mut reader, &next).await?;
    let (writer, result) = counting.await?;
    result?;
    Ok(reader.reunite(writer)?)
}

fn main() -> io::Result<()> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:9023".to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("listening on ws://{}/", listener.local_addr()?);
        loop {
            let (stream, peer) = listener.accept().await?;
            tokio::spawn(async move {
                match serve(stream).await {
                    Ok(socket) => println!("{peer}: closed, {:?}", socket.peer_close()),
                    Err(error) => eprintln!("{peer}: {error}"),
                }
            });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_websocket::{ClientRequest, CloseCode};

    #[tokio::test]
    async fn the_reader_takes_commands_and_close_while_the_writer_counts() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let address = listener.local_addr().expect("it has an address");
        let server = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a client comes");
            serve(stream).await
        });
        let (stream, config) =
            (TcpStream::connect(address).await.expect("it listens"), Config::new());
        let request = ClientRequest::new("localhost", "/", config.random_key());
        let mut client = WebSocket::client(stream, request, &config).await.expect("it accepts");
        for number in 1..=3 {
            let message = client.recv().await.expect("the server is good").expect("a number");
            assert_eq!(message.as_str(), Some(&*number.to_string()));
        }
        // Nothing is received until it is sent: the writer may be blocked, and the reader is not.
        client.send("5000000000").await.expect("the reader goes on");
        loop {
            let message = client.recv().await.expect("the server is good").expect("a number");
            if message.as_str() == Some("5000000000") {
                break;
            }
        }
        // This discards the numbers that were sent before the answer.
        client.close(CloseCode::NORMAL, "enough").await.expect("it is answered");
        let server = server.await.expect("no panic").expect("the end is clean");
        assert_eq!(server.peer_close().expect("the client has closed").reason, "enough");
    }
}
