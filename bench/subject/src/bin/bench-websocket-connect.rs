//! The client of windlass-websocket by URL on tokio, for the suite `websocket` of `windlass-bench`.

#![deny(unsafe_code)]

use std::process::ExitCode;

use windlass_bench_tokio_server::connect;
use windlass_websocket::client::{self, Client};

fn main() -> ExitCode {
    connect::run(env!("CARGO_PKG_VERSION"), async |target| {
        let socket = match target.tls {
            None => client::connect(&target.url).await?,
            Some(config) => Client::new(&target.url).tls(config).connect().await?,
        };
        let stream = &socket.get_ref().transport;
        Ok(connect::reset(stream.get_ref(), stream.tls_connection())?)
    })
}
