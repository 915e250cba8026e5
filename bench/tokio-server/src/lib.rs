//! The frame of the servers on tokio: runtime, announcement, and a task for each connection; and
//! that of the clients on tokio.

#![deny(unsafe_code)]

#[cfg(feature = "connect")]
pub mod connect;

use std::net::SocketAddr;
use std::process::ExitCode;

use tokio::net::{TcpListener, TcpStream};
use windlass_bench_driver::protocol::ServerInfo;
use windlass_bench_driver::server::{self, ANY_PORT, Settings, announce_as};
use windlass_bench_driver::{Error, locked_version};

/// Maximum number of messages by which a receiver may lag: more than any case has in flight.
pub const LAG_MAX: usize = 1024;

/// Runs a server of the package `peer` until it is killed. `prepare` returns the function that
/// makes the future of a connection.
pub fn run<C, F>(peer: &str, prepare: impl FnOnce(Settings) -> Result<C, Error>) -> ExitCode
where
    C: Fn(TcpStream) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let version = locked_version(include_str!("../../peers/Cargo.lock"), peer);
    serve(|address| server::this(address, &version), prepare)
}

/// The same, announced by what `announced` returns for its address.
pub fn serve<C, F>(
    announced: impl FnOnce(SocketAddr) -> ServerInfo,
    prepare: impl FnOnce(Settings) -> Result<C, Error>,
) -> ExitCode
where
    C: Fn(TcpStream) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    server::run(|settings| {
        let connection = prepare(settings)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        runtime.block_on(async {
            let listener = TcpListener::bind(ANY_PORT).await?;
            announce_as(&announced(listener.local_addr()?));
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                tokio::spawn(connection(stream));
            }
        })
    })
}
