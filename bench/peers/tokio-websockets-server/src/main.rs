//! A server of tokio-websockets for the suites of `windlass-bench` that measure servers.
//!
//! All messages that are readable at once are answered by one flush.

#![deny(unsafe_code)]

use std::process::ExitCode;

use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::{self, Sender};
use tokio_websockets::{Config, Limits, Message, ServerBuilder, WebSocketStream};
use windlass_bench_driver::server::{ANY_PORT, MESSAGE_MAX, Mode, PUBLISHER, Settings, announce};
use windlass_bench_driver::{Error, locked_version};

/// Maximum number of messages by which a receiver may lag: more than any case has in flight.
const LAG_MAX: usize = 1024;

fn main() -> ExitCode {
    let served = Settings::take().and_then(|settings| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        runtime.block_on(serve(settings.mode))
    });
    served
        .inspect_err(|error| eprintln!("{error}"))
        .map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

async fn serve(mode: Mode) -> Result<(), Error> {
    let listener = TcpListener::bind(ANY_PORT).await?;
    announce(
        listener.local_addr()?,
        &locked_version(include_str!("../../Cargo.lock"), "tokio-websockets"),
    );
    let all = broadcast::Sender::new(LAG_MAX);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let all = all.clone();
        tokio::spawn(tokio::task::unconstrained(async move {
            // It ends with an error when its client disconnects.
            let _ = connection(stream, mode, all).await;
        }));
    }
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
