//! A server of tokio-tungstenite for the suites of `windlass-bench` that measure servers.

#![deny(unsafe_code)]

mod connection;

use std::process::ExitCode;

use tokio::task::unconstrained;
use windlass_bench_tokio_server as tokio_server;

use self::connection::Connections;

fn main() -> ExitCode {
    tokio_server::run("tokio-tungstenite", |settings| {
        let connections = Connections::new(settings);
        Ok(move |stream| {
            let connections = connections.clone();
            unconstrained(async move {
                let _ = connections.serve(stream).await;
            })
        })
    })
}
