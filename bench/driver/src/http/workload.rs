//! The cases of the suite for an [`HttpRuntime`].

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use super::case::{ClientPlace, HttpCase};
use super::runtime::{HttpRuntime, Serving};
use super::{OtherClient, idle, same_thread};
use crate::measured::{Error, Unsupported};
use crate::protocol::Case;
use crate::tasks::{Laps, TaskLoop, TaskSubject, started};

/// A runtime with a case of the suite.
pub struct HttpWorkload<R: HttpRuntime> {
    case: HttpCase,
    /// Dropped before the runtime.
    live_timers: Vec<Pin<Box<dyn Future<Output = ()>>>>,
    runtime: R,
}

impl<R: HttpRuntime> std::fmt::Debug for HttpWorkload<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpWorkload")
            .field("case", &self.case)
            .field("live_timers", &self.live_timers.len())
            .finish_non_exhaustive()
    }
}

impl<R: HttpRuntime> TaskSubject for HttpWorkload<R> {
    type Loop<const LIVE_TIMERS: usize> = TaskLoop<R, LIVE_TIMERS>;

    fn new(backend: &str, case: &Case) -> Result<Self, Error> {
        let Case::Http(http) = case else {
            return Err(Unsupported("no case of the suite `http`").into());
        };
        let mut runtime = R::new(backend, case)?;
        let live_timers = started::<R>(&mut runtime, http.live_timers());
        Ok(Self { case: http.clone(), live_timers, runtime })
    }

    fn run(&mut self, rounds: u64, laps: &Rc<Laps>) -> Result<(), Error> {
        let (runtime, case) = (&mut self.runtime, &self.case);
        let laps = Rc::clone(laps);
        match *case {
            HttpCase::Requests { server, client: ClientPlace::SameThread, connections, .. } => {
                runtime.block_on(same_thread::run::<R>(server, connections, rounds, laps))
            }
            HttpCase::IdleKeepAlive { server, connections } => {
                runtime.block_on(idle::run::<R>(server, connections, rounds, laps))
            }
            HttpCase::Requests { connections, .. }
            | HttpCase::PacedRequests { connections, .. } => {
                runtime.block_on(other::<R>(case, connections, rounds, &laps))
            }
            HttpCase::MultiThread { .. } => Err(Unsupported("this runtime has one thread").into()),
        }
    }
}

/// Serves the client on another processor.
async fn other<R: HttpRuntime>(
    case: &HttpCase,
    connections: usize,
    rounds: u64,
    laps: &Laps,
) -> Result<(), Error> {
    let (listener, address) = R::listen().await?;
    let client = OtherClient::start(case, address, rounds)?;
    let serving = Serving::new();
    for _ in 0..connections {
        let accepted = R::http(R::accept(&listener).await?);
        R::serve(case.server(), accepted, serving.another())?;
    }
    let served = serving.others_finished().await;
    client.finish(laps)?;
    served
}
