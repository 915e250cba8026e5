//! A server of tokio-tungstenite for the suites of `windlass-bench` that measure servers.
//!
//! All messages that are readable at once are answered by one flush, as its example forwards them.

#![deny(unsafe_code)]

use std::process::ExitCode;

use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::sync::broadcast::{self, Sender};
use tokio::task::unconstrained;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async_with_config};
use windlass_bench_driver::server::{Mode, PUBLISHER, Settings};
use windlass_bench_tokio_server::{self as tokio_server, LAG_MAX};

/// The default buffer of 128 KiB is zeroed before each read.
const READ_BUFFER_BYTES: usize = 8 * 1024;

fn main() -> ExitCode {
    tokio_server::run("tokio-tungstenite", |Settings { mode, .. }| {
        let all = Sender::new(LAG_MAX);
        Ok(move |stream| {
            let all = all.clone();
            unconstrained(async move {
                // It ends with an error when its client disconnects.
                let _ = connection(stream, mode, all).await;
            })
        })
    })
}

async fn connection(
    stream: TcpStream,
    mode: Mode,
    all: Sender<Message>,
) -> tungstenite::Result<()> {
    let config = WebSocketConfig::default().read_buffer_size(READ_BUFFER_BYTES);
    let mut is_publisher = false;
    #[allow(clippy::result_large_err, reason = "the callback's type is tungstenite's")]
    let callback = |request: &Request, response: Response| {
        is_publisher = request.uri().path() == PUBLISHER;
        Ok(response)
    };
    let socket = accept_hdr_async_with_config(stream, callback, Some(config)).await?;
    match mode {
        Mode::Echo => echo(socket).await,
        Mode::Broadcast if is_publisher => publish(socket, &all).await,
        Mode::Broadcast => receive(socket, all.subscribe()).await,
    }
}

async fn echo(mut socket: WebSocketStream<TcpStream>) -> tungstenite::Result<()> {
    loop {
        let next = match socket.next().now_or_never() {
            Some(next) => next,
            None => {
                socket.flush().await?;
                socket.next().await
            }
        };
        match next {
            Some(message) => {
                let message = message?;
                if message.is_text() || message.is_binary() {
                    socket.feed(message).await?;
                }
            }
            None => return Ok(()),
        }
    }
}

async fn publish(
    mut socket: WebSocketStream<TcpStream>,
    all: &Sender<Message>,
) -> tungstenite::Result<()> {
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_text() || message.is_binary() {
            // This fails if there are no receivers.
            let _ = all.send(message);
        }
    }
    Ok(())
}

async fn receive(
    mut socket: WebSocketStream<TcpStream>,
    mut all: broadcast::Receiver<Message>,
) -> tungstenite::Result<()> {
    while let Ok(message) = all.recv().await {
        socket.feed(message).await?;
        while let Ok(message) = all.try_recv() {
            socket.feed(message).await?;
        }
        socket.flush().await?;
    }
    Ok(())
}
