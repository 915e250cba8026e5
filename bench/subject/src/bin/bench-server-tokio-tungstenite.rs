//! A server of windlass-tokio-tungstenite, for the suite `websocket` of `windlass-bench`: the
//! program of tokio-tungstenite, with another crate of its name.

#![deny(unsafe_code)]

extern crate windlass_tokio_tungstenite as tokio_tungstenite;

#[path = "../../../peers/tungstenite-server/src/connection.rs"]
mod connection;

use std::process::ExitCode;

use tokio::task::unconstrained;
use windlass_bench_driver::server;
use windlass_bench_tokio_server as tokio_server;

use self::connection::Connections;

fn main() -> ExitCode {
    let announced = |address| server::this(address, env!("CARGO_PKG_VERSION"));
    tokio_server::serve(announced, |settings| {
        let connections = Connections::new(settings);
        Ok(move |stream| {
            let connections = connections.clone();
            unconstrained(async move {
                let _ = connections.serve(stream).await;
            })
        })
    })
}
