//! A server of windlass-websocket on windlass-task, for the suite `websocket` of `windlass-bench`.

#![deny(unsafe_code)]

use std::process::ExitCode;

use windlass::{Backend, Reactor};
use windlass_bench_driver::Error;
use windlass_bench_driver::server::{self, ANY_PORT, Settings, announce};
use windlass_bench_subject::websocket::Server;
use windlass_task::net::TcpListener;
use windlass_task::{Executor, spawn};

fn main() -> ExitCode {
    server::run(serve)
}

fn serve(settings: Settings) -> Result<(), Error> {
    let backend = settings.backend_or(Backend::Auto)?;
    let reactor = Reactor::builder().backend(backend).subscribers_max(20_000);
    let mut executor = Executor::builder().reactor(reactor).build()?;
    let server = Server::new(&settings);
    executor.block_on(async {
        let listener = TcpListener::bind(ANY_PORT).await?;
        announce(listener.local_addr()?, env!("CARGO_PKG_VERSION"));
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let server = server.clone();
            drop(spawn(async move {
                // It ends with an error when its client disconnects.
                let _ = server.serve(stream).await;
            }));
        }
    })
}
