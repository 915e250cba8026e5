//! The echo of yawc over HTTP/2, for the suite `websocket` of `windlass-bench`. The connection has
//! the settings of its documentation.

#![deny(unsafe_code)]

mod echo;

use std::process::ExitCode;

use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::unconstrained;
use windlass_bench_driver::server::{Mode, Traffic};
use windlass_bench_tokio_server as tokio_server;
use yawc::{Options, Result, WebSocket};

fn main() -> ExitCode {
    tokio_server::run("yawc", |settings| {
        settings.require(Mode::Echo)?;
        let (options, traffic) = (echo::options(&settings), settings.traffic);
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.enable_connect_protocol();
        Ok(move |stream| {
            let options = options.clone();
            let service = service_fn(move |request| upgrade(request, options.clone(), traffic));
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            unconstrained(async move {
                // It ends with an error when its client disconnects.
                let _ = connection.await;
            })
        })
    })
}

async fn upgrade(
    mut request: Request<Incoming>,
    options: Options,
    traffic: Traffic,
) -> Result<Response<Empty<Bytes>>> {
    let (response, future) = WebSocket::upgrade_with_options(&mut request, options)?;
    tokio::spawn(unconstrained(async move {
        let Ok(mut socket) = future.await else { return };
        // It ends with an error when its client disconnects.
        let _ = echo::run(&mut socket, traffic).await;
    }));
    Ok(response)
}
