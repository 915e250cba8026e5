//! compio on io_uring for the suites `latency` and `tasks` of `windlass-bench`. Its operations own
//! their buffers, so a connection keeps them and lends them to each operation.

use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::process::ExitCode;
use std::time::Duration;

use compio::BufResult;
use compio::driver::{DriverType, ProactorBuilder};
use compio::io::{AsyncRead, AsyncWriteExt};
use compio::net::{TcpListener, TcpStream};
use compio::runtime::RuntimeBuilder;
use windlass_bench_driver::protocol::Case;
use windlass_bench_driver::tasks::{Message, NoRemote, Runtime, Stream, Workload, polls_per_turn};
use windlass_bench_driver::{Error, Program, Suite, Unsupported, locked_version};

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "compio");
    let suites = vec![Suite::latency::<Workload<Compio>>(), Suite::tasks::<Workload<Compio>>()];
    Program { version, suites }.serve()
}

struct Compio(compio::runtime::Runtime);

impl Runtime for Compio {
    windlass_bench_driver::runtime_sockets!(TcpListener, TcpStream, Connection);

    type Remote = NoRemote;

    fn new(_backend: &str, case: &Case) -> Result<Self, Error> {
        let mut builder = RuntimeBuilder::new();
        let mut proactor = ProactorBuilder::new();
        proactor.driver_type(DriverType::IoUring);
        builder.with_proactor(proactor);
        if let Some(count) = polls_per_turn(case) {
            builder.event_interval(count as usize);
        }
        Ok(Self(builder.build()?))
    }

    fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        self.0.block_on(future)
    }

    fn remote(&self) -> Result<NoRemote, Unsupported> {
        Err(Unsupported("it has no handle that spawns from other threads"))
    }

    fn spawn<F: Future<Output = ()> + 'static>(future: F) -> impl Future<Output = ()> + 'static {
        let task = compio::runtime::spawn(future);
        async { assert!(task.await.is_ok(), "no task panics") }
    }

    fn detach<F: Future<Output = ()> + 'static>(future: F) {
        compio::runtime::spawn(future).detach();
    }

    fn sleep(span: Duration) -> impl Future<Output = ()> + 'static {
        compio::runtime::time::sleep(span)
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
        let BufResult(result, sent) = self.stream.write_all(sent).await;
        self.sent = sent;
        result
    }

    #[inline]
    async fn receive(&mut self) -> io::Result<Option<u64>> {
        let mut room = std::mem::take(&mut self.room);
        room.clear();
        let BufResult(result, room) = self.stream.read(room).await;
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
