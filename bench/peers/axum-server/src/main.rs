//! A server of axum with its own extractor, for the suite `websocket` of `windlass-bench`.
//!
//! Untuned, it is the program that the extractor of windlass-websocket has. Otherwise all messages
//! that are readable at once are answered by one flush, if several are in flight.

#![deny(unsafe_code)]

#[path = "../../../subject/src/bin/bench-server-websocket-axum/echo.rs"]
mod echo;

use std::process::ExitCode;

use axum::extract::ws as extractor;
use extractor::{Message, WebSocket};
use futures_util::{FutureExt, SinkExt};
use windlass_bench_driver::server::{Mode, Traffic};
use windlass_bench_tokio_server as tokio_server;

fn main() -> ExitCode {
    tokio_server::run("axum", |settings| {
        settings.require(Mode::Echo)?;
        let router = match settings.traffic {
            Traffic::Pipelined => echo::router(echo_batches),
            _ => echo::router(echo::echo),
        };
        Ok(move |stream| echo::serve(stream, router.clone()))
    })
}

async fn echo_batches(mut socket: WebSocket) {
    loop {
        let next = match socket.recv().now_or_never() {
            Some(next) => next,
            None => match socket.flush().await {
                Ok(()) => socket.recv().await,
                Err(_) => return,
            },
        };
        match next {
            Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => {
                if socket.feed(message).await.is_err() {
                    return;
                }
            }
            Some(Ok(_)) => {}
            _ => return,
        }
    }
}
