//! A server of tokio-websockets for the suites of `windlass-bench` that measure servers.
//!
//! All messages that are readable at once are answered by one flush.

#![deny(unsafe_code)]

use std::process::ExitCode;

use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::sync::broadcast::{self, Sender};
use tokio::task::unconstrained;
use tokio_websockets::{Config, Limits, Message, ServerBuilder, WebSocketStream};
use windlass_bench_driver::server::{MESSAGE_MAX, Mode, PUBLISHER, Settings};
use windlass_bench_tokio_server::{self as tokio_server, LAG_MAX};

fn main() -> ExitCode {
    tokio_server::run("tokio-websockets", |Settings { mode, .. }| {
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
) -> Result<(), tokio_websockets::Error> {
    let builder = ServerBuilder::new()
        .config(Config::default().frame_size(usize::MAX))
        .limits(Limits::default().max_payload_len(Some(MESSAGE_MAX)));
    let (request, socket) = builder.accept(stream).await?;
    match mode {
        Mode::Echo => echo(socket).await,
        Mode::Broadcast if request.uri().path() == PUBLISHER => publish(socket, &all).await,
        Mode::Broadcast => receive(socket, all.subscribe()).await,
    }
}

async fn echo(mut socket: WebSocketStream<TcpStream>) -> Result<(), tokio_websockets::Error> {
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
) -> Result<(), tokio_websockets::Error> {
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
) -> Result<(), tokio_websockets::Error> {
    while let Ok(message) = all.recv().await {
        socket.feed(message).await?;
        while let Ok(message) = all.try_recv() {
            socket.feed(message).await?;
        }
        socket.flush().await?;
    }
    Ok(())
}
