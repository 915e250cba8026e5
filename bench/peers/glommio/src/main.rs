//! glommio for the suites `latency` and `tasks` of `windlass-bench`.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::process::ExitCode;
use std::time::Duration;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use glommio::net::{TcpListener, TcpStream};
use glommio::{LocalExecutor, LocalExecutorBuilder};
use windlass_bench_driver::protocol::Case;
use windlass_bench_driver::tasks::{Message, NoRemote, Runtime, Stream, Workload, polls_per_turn};
use windlass_bench_driver::{Error, Program, Suite, Unsupported, locked_version};

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "glommio");
    let suites = vec![Suite::latency::<Workload<Glommio>>(), Suite::tasks::<Workload<Glommio>>()];
    Program { version, suites }.serve()
}

struct Glommio(LocalExecutor);

impl Runtime for Glommio {
    type Listener = TcpListener;
    type Stream = Connection;
    type Remote = NoRemote;

    fn new(_backend: &str, case: &Case) -> Result<Self, Error> {
        if polls_per_turn(case).is_some() {
            return Err(Unsupported("it yields by time and not by the number of polls").into());
        }
        Ok(Self(LocalExecutorBuilder::default().make()?))
    }

    fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        self.0.run(future)
    }

    fn remote(&self) -> Result<NoRemote, Unsupported> {
        Err(Unsupported("it has no handle that spawns from other threads"))
    }

    fn spawn<F: Future<Output = ()> + 'static>(future: F) -> impl Future<Output = ()> + 'static {
        glommio::spawn_local(future)
    }

    fn detach<F: Future<Output = ()> + 'static>(future: F) {
        glommio::spawn_local(future).detach();
    }

    fn sleep(span: Duration) -> impl Future<Output = ()> + 'static {
        glommio::timer::sleep(span)
    }

    async fn listen() -> io::Result<(TcpListener, SocketAddr)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    async fn accept(listener: &TcpListener) -> io::Result<Connection> {
        Connection::new(listener.accept().await?)
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
        self.stream.as_raw_fd()
    }
}
