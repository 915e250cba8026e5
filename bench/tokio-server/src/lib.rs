//! The frame of the servers on tokio: runtime, announcement, and a task for each connection; and
//! that of the clients on tokio.

#![deny(unsafe_code)]

#[cfg(feature = "connect")]
pub mod connect;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use windlass_bench_driver::protocol::ServerInfo;
use windlass_bench_driver::server::{self, ANY_PORT, Settings, announce_as};
use windlass_bench_driver::{Error, locked_version};

/// Maximum number of messages by which a receiver may lag: more than any case has in flight.
pub const LAG_MAX: usize = 1024;

/// The backlog of `TcpListener::bind`.
const BACKLOG_LEN_MAX: u32 = 1024;

/// Runs a server of the package `peer` until it is killed. `prepare` returns the function that
/// makes the future of a connection.
pub fn run<C, F>(peer: &str, prepare: impl FnOnce(Settings) -> Result<C, Error>) -> ExitCode
where
    C: Fn(TcpStream) -> F + Sync,
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
    C: Fn(TcpStream) -> F + Sync,
    F: Future<Output = ()> + Send + 'static,
{
    server::run(|settings| {
        let workers = settings.workers;
        let connection = prepare(settings)?;
        if let Some(workers) = workers {
            return serve_on(workers, announced, &connection);
        }
        runtime()?.block_on(async {
            let listener = TcpListener::bind(ANY_PORT).await?;
            announce_as(&announced(listener.local_addr()?));
            accept(listener, &connection).await
        })
    })
}

fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_io().build()
}

async fn accept<C, F>(listener: TcpListener, connection: &C) -> Result<(), Error>
where
    C: Fn(TcpStream) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(connection(stream));
    }
}

/// Serves with several threads, each with a runtime and a listener of its own on the same port. An
/// error of any of them ends the process.
fn serve_on<C, F>(
    workers: usize,
    announced: impl FnOnce(SocketAddr) -> ServerInfo,
    connection: &C,
) -> Result<(), Error>
where
    C: Fn(TcpStream) -> F + Sync,
    F: Future<Output = ()> + Send + 'static,
{
    let serve = |address, listening: Sender<SocketAddr>| -> Result<(), Error> {
        runtime()?.block_on(async {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseport(true)?;
            socket.bind(address)?;
            let listener = socket.listen(BACKLOG_LEN_MAX)?;
            listening.send(listener.local_addr()?)?;
            accept(listener, connection).await
        })
    };
    std::thread::scope(|scope| {
        let start = |address| {
            let (sender, listening) = channel();
            scope.spawn(move || {
                if let Err(error) = serve(address, sender) {
                    eprintln!("{error}");
                    std::process::exit(1);
                }
            });
            listening.recv()
        };
        let address = start(ANY_PORT)?;
        for _ in 1..workers {
            start(address)?;
        }
        announce_as(&announced(address));
        Ok(())
    })
}
