//! The executor of windlass-task for the suites `latency`, `tasks` and `http` of `windlass-bench`.

#![deny(unsafe_code)]

#[path = "../bench-windlass/backend.rs"]
mod backend;
#[cfg(feature = "servers")]
mod handed;
#[cfg(feature = "servers")]
mod http;
#[cfg(feature = "servers")]
mod multi_thread;
#[cfg(feature = "servers")]
mod service;

use std::future::Future;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use windlass::Reactor;
#[cfg(feature = "servers")]
use windlass_bench_driver::http::HttpWorkload;
use windlass_bench_driver::protocol::Case;
use windlass_bench_driver::tasks::{RemoteSpawn, Runtime, Workload, polls_per_turn};
use windlass_bench_driver::{Error, Program, Suite, Unsupported};
use windlass_task::net::{TcpListener, TcpStream};
use windlass_task::{Executor, Spawner, spawn};

fn main() -> ExitCode {
    let suites = vec![
        Suite::latency::<Workload<Windlass>>(),
        Suite::tasks::<Workload<Windlass>>(),
        #[cfg(feature = "servers")]
        Suite::http::<HttpWorkload<Windlass>>(),
        #[cfg(feature = "servers")]
        Suite::http_server::<HttpWorkload<Windlass>>(),
        #[cfg(feature = "servers")]
        Suite::http_multi_thread::<multi_thread::Threads>(),
    ];
    Program { version: env!("CARGO_PKG_VERSION").to_owned(), suites }.serve()
}

struct Windlass(Executor);

impl Runtime for Windlass {
    windlass_bench_driver::runtime_sockets!(TcpListener, TcpStream, Connection);

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
}

windlass_bench_driver::borrowing_connection!(TcpStream, |stream| Some(stream.would_block_count()));

struct Remote(Spawner);

impl RemoteSpawn for Remote {
    #[inline]
    fn spawn(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        Ok(self.0.spawn(async move { job() }).map_err(io::Error::from)?)
    }
}
