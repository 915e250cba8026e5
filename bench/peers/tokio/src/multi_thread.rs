//! tokio's multi-thread runtime for the suite `http`, with its default number of workers or that of
//! the case. Its tasks are `Send`, so it has the servers and no client: the client is the one on
//! another processor.

#[path = "../../../subject/src/bin/bench-windlass-task/service.rs"]
mod service;
#[allow(dead_code, reason = "the other runtimes are those of the other programs")]
mod tasks;

use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::task::{Context, Waker};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep};
use windlass_bench_driver::http::{
    ClientPlace, HttpCase, HttpServer, OtherClient, RESPONSE, Received,
};
use windlass_bench_driver::protocol::Case;
use windlass_bench_driver::tasks::{AN_HOUR, Laps, TaskLoop, TaskSubject};
use windlass_bench_driver::{
    Error, Program, Suite, Unsupported, locked_version, on_all_processors, pin_off_opposite,
};

use service::{hello, router};

type SendError = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "tokio");
    let suites = vec![
        Suite::http::<MultiThread>(),
        Suite::http_server::<MultiThread>(),
        Suite::http_multi_thread::<MultiThread>(),
    ];
    Program { version, suites }.serve()
}

struct MultiThread {
    case: HttpCase,
    /// Dropped before the runtime.
    live_timers: Vec<Pin<Box<Sleep>>>,
    runtime: Runtime,
}

impl TaskSubject for MultiThread {
    /// The suite has no such loop.
    type Loop<const LIVE_TIMERS: usize> = TaskLoop<tasks::CurrentThread, LIVE_TIMERS>;

    fn new(_backend: &str, case: &Case) -> Result<Self, Error> {
        let Case::Http(case) = case else {
            return Err(Unsupported("no case of the suite `http`").into());
        };
        match case {
            HttpCase::Requests { client: ClientPlace::SameThread, .. } => {
                return Err(Unsupported("its client and its server share no thread").into());
            }
            HttpCase::IdleKeepAlive { .. } => {
                return Err(Unsupported("its connections take what those of `tokio` do").into());
            }
            HttpCase::Requests { .. }
            | HttpCase::PacedRequests { .. }
            | HttpCase::MultiThread { .. } => {}
        }
        let runtime = runtime(case)?;
        let live_timers = runtime.block_on(started(case.live_timers()));
        Ok(Self { case: case.clone(), live_timers, runtime })
    }

    fn run(&mut self, rounds: u64, laps: &Rc<Laps>) -> Result<(), Error> {
        debug_assert_eq!(self.live_timers.len(), self.case.live_timers());
        self.runtime.block_on(serve_all(&self.case, rounds, laps))
    }
}

/// With the default of tokio, a worker for each processor of the machine, or the threads of the
/// case.
fn runtime(case: &HttpCase) -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let HttpCase::MultiThread { threads, .. } = *case {
        builder.worker_threads(threads);
    }
    builder.enable_all().on_thread_start(pin_off_opposite);
    on_all_processors(|| builder.build())
}

/// Starts sleeps of an hour.
async fn started(count: usize) -> Vec<Pin<Box<Sleep>>> {
    let mut sleeps: Vec<_> = (0..count).map(|_| Box::pin(sleep(AN_HOUR))).collect();
    for sleep in &mut sleeps {
        let polled = sleep.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "it is due in an hour");
    }
    sleeps
}

async fn serve_all(case: &HttpCase, rounds: u64, laps: &Laps) -> Result<(), Error> {
    let connections = match *case {
        HttpCase::Requests { connections, .. }
        | HttpCase::PacedRequests { connections, .. }
        | HttpCase::MultiThread { connections, .. }
        | HttpCase::IdleKeepAlive { connections, .. } => connections,
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let client = OtherClient::start(case, listener.local_addr()?, rounds)?;
    let mut serving = JoinSet::new();
    for _ in 0..connections {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        serving.spawn(serve(case.server(), stream));
    }
    let mut served = Ok(());
    while let Some(ended) = serving.join_next().await {
        served = served.and(ended?);
    }
    client.finish(laps)?;
    served.map_err(|error| -> Error { error })
}

/// As the other program serves a connection.
async fn serve(server: HttpServer, stream: TcpStream) -> Result<(), SendError> {
    match server {
        HttpServer::Mock => Ok(mock(stream).await?),
        HttpServer::Hyper => {
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new());
            Ok(server.serve_connection(TokioIo::new(stream), service_fn(hello)).await?)
        }
        HttpServer::Axum => {
            let mut server = auto::Builder::new(TokioExecutor::new());
            server.http1().timer(TokioTimer::new());
            let (stream, router) = (TokioIo::new(stream), TowerToHyperService::new(router()));
            server.serve_connection_with_upgrades(stream, router).await
        }
    }
}

async fn mock(mut stream: TcpStream) -> io::Result<()> {
    let mut received = Received::default();
    loop {
        let count = stream.read(received.room()).await?;
        if count == 0 {
            return Ok(());
        }
        if received.take_request(count)? {
            stream.write_all(RESPONSE).await?;
        }
    }
}
