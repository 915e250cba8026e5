//! A server of windlass-websocket over HTTP/2, for the suite `websocket` of `windlass-bench`.

#![deny(unsafe_code)]

use std::convert::Infallible;
use std::error::Error;
use std::process::ExitCode;

use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::unconstrained;
use windlass_bench_driver::server::{self, MESSAGE_MAX, Mode};
use windlass_bench_tokio_server as tokio_server;
use windlass_websocket::Config;
use windlass_websocket::http2::server_settings;
use windlass_websocket::upgrade::{Upgrading, upgrade};

/// The WebSockets of a connection, at most.
const STREAMS_MAX: u32 = 200;

fn main() -> ExitCode {
    let announced = |address| server::this(address, env!("CARGO_PKG_VERSION"));
    tokio_server::serve(announced, |settings| {
        settings.require(Mode::Echo)?;
        let config = Config::new().frame_max(MESSAGE_MAX).message_max(MESSAGE_MAX);
        let mut builder = Builder::new(TokioExecutor::new());
        server_settings(&mut builder, STREAMS_MAX);
        Ok(move |stream| {
            let config = config.clone();
            let service = service_fn(move |request| answer(request, config.clone()));
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            unconstrained(async move {
                // It ends with an error when its client disconnects.
                let _ = connection.await;
            })
        })
    })
}

async fn answer(
    mut request: Request<Incoming>,
    config: Config,
) -> Result<Response<String>, Infallible> {
    Ok(match upgrade(&mut request, &config) {
        Ok((response, upgrading)) => {
            tokio::spawn(unconstrained(async move {
                // It ends with an error when its client disconnects.
                let _ = echo(upgrading).await;
            }));
            response
        }
        Err(refused) => refused.into_response(),
    })
}

async fn echo(upgrading: Upgrading) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut socket = upgrading.await?;
    while let Some(message) = socket.recv().await? {
        message.reply()?;
    }
    Ok(())
}
