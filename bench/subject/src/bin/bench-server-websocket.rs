//! A server of windlass-websocket on tokio, for the suite `websocket` of `windlass-bench`.

#![deny(unsafe_code)]

use std::process::ExitCode;

use tokio::task::unconstrained;
use windlass_bench_driver::server;
use windlass_bench_subject::websocket::Server;
use windlass_bench_tokio_server as tokio_server;

fn main() -> ExitCode {
    let announced = |address| server::this(address, env!("CARGO_PKG_VERSION"));
    tokio_server::serve(announced, |settings| {
        let server = Server::new(&settings);
        Ok(move |stream| {
            let server = server.clone();
            unconstrained(async move {
                // It ends with an error when its client disconnects.
                let _ = server.serve(stream).await;
            })
        })
    })
}
