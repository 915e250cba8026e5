//! A server of tokio-websockets for the suites of `windlass-bench` that measure servers.
//!
//! All messages that are readable at once are answered by one flush. They are collected before,
//! because each poll of the stream flushes what waits.

#![deny(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::sync::broadcast::{self, Sender};
use tokio::task::unconstrained;
use tokio_websockets::{Config, Limits, Message, ServerBuilder, WebSocketStream};
use windlass_bench_driver::server::{MESSAGE_MAX, Mode, PUBLISHER, Settings, Traffic};
use windlass_bench_driver::work;
use windlass_bench_tokio_server::{self as tokio_server, LAG_MAX};

/// Maximum number of messages that are answered by one flush.
const BATCH_LEN_MAX: usize = 128;

fn main() -> ExitCode {
    tokio_server::run("tokio-websockets", |Settings { mode, work, traffic, .. }| {
        let all = Sender::new(LAG_MAX);
        Ok(move |stream| {
            let all = all.clone();
            unconstrained(async move {
                // It ends with an error when its client disconnects.
                let _ = connection(stream, mode, work, traffic, all).await;
            })
        })
    })
}

async fn connection(
    stream: TcpStream,
    mode: Mode,
    work: Duration,
    traffic: Traffic,
    all: Sender<Message>,
) -> Result<(), tokio_websockets::Error> {
    let builder = ServerBuilder::new()
        .config(Config::default().frame_size(usize::MAX))
        .limits(Limits::default().max_payload_len(Some(MESSAGE_MAX)));
    let (request, mut socket) = builder.accept(stream).await?;
    match mode {
        Mode::Echo if matches!(traffic, Traffic::Any | Traffic::Pipelined) => {
            echo(&mut socket, work).await
        }
        Mode::Echo => echo_each(&mut socket).await,
        Mode::Broadcast if request.uri().path() == PUBLISHER => publish(&mut socket, &all).await,
        Mode::Broadcast => receive(&mut socket, all.subscribe()).await,
    }
}

/// Sends each answer on its own, which is cheaper if a client has one message in flight.
async fn echo_each(socket: &mut WebSocketStream<TcpStream>) -> Result<(), tokio_websockets::Error> {
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_text() || message.is_binary() {
            socket.send(message).await?;
        }
    }
    Ok(())
}

async fn echo(
    socket: &mut WebSocketStream<TcpStream>,
    time: Duration,
) -> Result<(), tokio_websockets::Error> {
    let mut batch = Vec::new();
    while let Some(message) = socket.next().await {
        batch.push(message?);
        while batch.len() < BATCH_LEN_MAX {
            match socket.next().now_or_never() {
                Some(Some(message)) => batch.push(message?),
                Some(None) => return Ok(()),
                None => break,
            }
        }
        for message in batch.drain(..).filter(|message| message.is_text() || message.is_binary()) {
            work(time);
            socket.feed(message).await?;
        }
        socket.flush().await?;
    }
    Ok(())
}

async fn publish(
    socket: &mut WebSocketStream<TcpStream>,
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
    socket: &mut WebSocketStream<TcpStream>,
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
