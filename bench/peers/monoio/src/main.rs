//! monoio on io_uring for the suites `latency` and `tasks` of `windlass-bench`. Its operations own
//! their buffers, so a connection keeps them and lends them to each operation.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::process::ExitCode;
use std::time::Duration;

use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};
use monoio::time::TimeDriver;
use monoio::{IoUringDriver, RuntimeBuilder};
use windlass_bench_driver::protocol::Case;
use windlass_bench_driver::tasks::{Message, NoRemote, Runtime, Stream, Workload, polls_per_turn};
use windlass_bench_driver::{Error, Program, Suite, Unsupported, locked_version};

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "monoio");
    let suites = vec![Suite::latency::<Workload<Monoio>>(), Suite::tasks::<Workload<Monoio>>()];
    Program { version, suites }.serve()
}

struct Monoio(monoio::Runtime<TimeDriver<IoUringDriver>>);

impl Runtime for Monoio {
    type Listener = TcpListener;
    type Stream = Connection;
    type Remote = NoRemote;

    fn new(_backend: &str, case: &Case) -> Result<Self, Error> {
        if polls_per_turn(case).is_some() {
            return Err(Unsupported("its number of polls between turns is fixed").into());
        }
        Ok(Self(RuntimeBuilder::<IoUringDriver>::new().enable_timer().build()?))
    }

    fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        self.0.block_on(future)
    }

    fn remote(&self) -> Result<NoRemote, Unsupported> {
        Err(Unsupported("it has no handle that spawns from other threads"))
    }

    fn spawn<F: Future<Output = ()> + 'static>(future: F) -> impl Future<Output = ()> + 'static {
        monoio::spawn(future)
    }

    fn detach<F: Future<Output = ()> + 'static>(future: F) {
        drop(monoio::spawn(future));
    }

    fn sleep(span: Duration) -> impl Future<Output = ()> + 'static {
        monoio::time::sleep(span)
    }

    async fn listen() -> io::Result<(TcpListener, SocketAddr)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    async fn accept(listener: &TcpListener) -> io::Result<Connection> {
        Connection::new(listener.accept().await?.0)
    }

    async fn connect(address: SocketAddr) -> io::Result<Connection> {
        Connection::new(TcpStream::connect_addr(address).await?)
    }
}

struct Connection {
    stream: TcpStream,
    /// The buffers are here between two operations.
    sent: Vec<u8>,
    room: Vec<u8>,
}

impl Connection {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let mut message = Message::default();
        let sent = message.numbered(0).to_vec();
        let room = Vec::with_capacity(message.room().len());
        Ok(Self { stream, sent, room })
    }
}

impl Stream for Connection {
    #[inline]
    async fn send(&mut self, number: u64) -> io::Result<()> {
        let mut sent = std::mem::take(&mut self.sent);
        sent[..8].copy_from_slice(&number.to_le_bytes());
        let (result, sent) = self.stream.write_all(sent).await;
        self.sent = sent;
        result.map(drop)
    }

    #[inline]
    async fn receive(&mut self) -> io::Result<Option<u64>> {
        let mut room = std::mem::take(&mut self.room);
        room.clear();
        let (result, room) = self.stream.read(room).await;
        self.room = room;
        Message::number(&self.room[..result?])
    }

    fn read_exactly(&mut self) {
        // A read fills the capacity.
        self.room = Vec::with_capacity(self.sent.len());
    }

    fn descriptor(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}
