//! The executor of windlass-task for the suites `latency`, `tasks` and `http` of `windlass-bench`.

#![deny(unsafe_code)]

#[path = "../bench-windlass/backend.rs"]
mod backend;
mod http;

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::process::ExitCode;
use std::time::Duration;

use windlass::Reactor;
use windlass_bench_driver::http::HttpWorkload;
use windlass_bench_driver::protocol::Case;
use windlass_bench_driver::tasks::{
    Message, RemoteSpawn, Runtime, Stream, Workload, polls_per_turn,
};
use windlass_bench_driver::{Error, Program, Suite, Unsupported};
use windlass_task::net::{TcpListener, TcpStream};
use windlass_task::{Executor, Spawner, spawn};

fn main() -> ExitCode {
    let suites = vec![
        Suite::latency::<Workload<Windlass>>(),
        Suite::tasks::<Workload<Windlass>>(),
        Suite::http::<HttpWorkload<Windlass>>(),
        Suite::http_server::<HttpWorkload<Windlass>>(),
    ];
    Program { version: env!("CARGO_PKG_VERSION").to_owned(), suites }.serve()
}

struct Windlass(Executor);

impl Runtime for Windlass {
    type Listener = TcpListener;
    type Stream = Connection;
    type Remote = Remote;

    fn new(backend: &str, case: &Case) -> Result<Self, Error> {
        let reactor = Reactor::builder().backend(backend::parse(backend)?);
        let builder = Executor::builder().reactor(reactor);
        Ok(Self(match polls_per_turn(case) {
            Some(count) => builder.polls_per_turn(count).build()?,
            None => builder.build()?,
        }))
    }

    fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        self.0.block_on(future)
    }

    fn remote(&self) -> Result<Remote, Unsupported> {
        Ok(Remote(self.0.spawner()))
    }

    fn spawn<F: Future<Output = ()> + 'static>(future: F) -> impl Future<Output = ()> + 'static {
        let task = spawn(future);
        async { task.await.expect("no task panics") }
    }

    fn detach<F: Future<Output = ()> + 'static>(future: F) {
        drop(spawn(future));
    }

    fn sleep(span: Duration) -> impl Future<Output = ()> + 'static {
        windlass_task::time::sleep(span)
    }

    async fn listen() -> io::Result<(TcpListener, SocketAddr)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    async fn accept(listener: &TcpListener) -> io::Result<Connection> {
        Connection::new(listener.accept().await?.0)
    }

    async fn connect(address: SocketAddr) -> io::Result<Connection> {
        Connection::new(TcpStream::connect(address).await?)
    }
}

struct Connection {
    stream: TcpStream,
    message: Message,
}

impl Connection {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, message: Message::default() })
    }
}

impl Stream for Connection {
    #[inline]
    async fn send(&mut self, number: u64) -> io::Result<()> {
        self.stream.write_all(self.message.numbered(number)).await
    }

    #[inline]
    async fn receive(&mut self) -> io::Result<Option<u64>> {
        let length = self.stream.read(self.message.room()).await?;
        self.message.received(length)
    }

    fn read_exactly(&mut self) {
        self.message.read_exactly();
    }

    fn descriptor(&self) -> RawFd {
        self.stream.as_fd().as_raw_fd()
    }

    fn would_block_count(&self) -> Option<u32> {
        Some(self.stream.would_block_count())
    }
}

struct Remote(Spawner);

impl RemoteSpawn for Remote {
    #[inline]
    fn spawn(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        Ok(self.0.spawn(async move { job() }).map_err(io::Error::from)?)
    }
}
