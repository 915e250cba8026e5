//! The mock of the suite `http` on several threads: workers with a listener each, as users of
//! windlass-task have them.

use std::io;
use std::net::Ipv4Addr;
use std::rc::Rc;

use windlass::Reactor;
use windlass_bench_driver::http::{HttpCase, OtherClient, mock};
use windlass_bench_driver::protocol::Case;
use windlass_bench_driver::tasks::{Laps, TaskLoop, TaskSubject};
use windlass_bench_driver::{Error, Unsupported, pin_off_opposite};
use windlass_task::{Executor, WorkerContext, Workers, spawn};

use super::http::HttpConnection;
use super::{Windlass, backend};

pub(crate) struct Threads {
    case: HttpCase,
    workers: Workers<io::Result<()>>,
}

impl TaskSubject for Threads {
    /// The suite has no such loop.
    type Loop<const LIVE_TIMERS: usize> = TaskLoop<Windlass, LIVE_TIMERS>;

    fn new(backend: &str, case: &Case) -> Result<Self, Error> {
        let Case::Http(case @ HttpCase::MultiThread { threads, .. }) = case else {
            return Err(Unsupported("no case with several threads").into());
        };
        let backend = backend::parse(backend)?;
        let workers = Workers::builder()
            .count(*threads)
            .listen((Ipv4Addr::LOCALHOST, 0).into())
            .executor(move || {
                pin_off_opposite();
                Executor::builder().reactor(Reactor::builder().backend(backend))
            })
            .start(serve)?;
        Ok(Self { case: case.clone(), workers })
    }

    fn run(&mut self, rounds: u64, laps: &Rc<Laps>) -> Result<(), Error> {
        OtherClient::start(&self.case, self.workers.addresses()[0], rounds)?.finish(laps)
    }
}

/// Serves connections until the end of the case. An error of a connection ends it, which the client
/// reports.
async fn serve(worker: WorkerContext) -> io::Result<()> {
    let listener = worker.take_listener()?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        spawn(async { _ = mock(HttpConnection(stream)).await }).detach();
    }
}
