//! A server of axum with the extractor of windlass-websocket, for the suite `websocket` of
//! `windlass-bench`.

#![deny(unsafe_code)]

mod echo;

use std::process::ExitCode;

use windlass_bench_driver::server::{self, Mode};
use windlass_bench_tokio_server as tokio_server;
use windlass_websocket::axum as extractor;

fn main() -> ExitCode {
    let announced = |address| server::this(address, env!("CARGO_PKG_VERSION"));
    tokio_server::serve(announced, |settings| {
        settings.require(Mode::Echo)?;
        let router = echo::router(echo::echo);
        Ok(move |stream| echo::serve(stream, router.clone()))
    })
}
