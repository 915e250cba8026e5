//! The cases of both suites for a [`Runtime`].

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::laps::Laps;
use super::runtime::Runtime;
use super::signal::{TaskLoop, started};
use super::{TaskSubject, churn, ping_pong, remote, sleeps};
use crate::measured::{Error, Unsupported};
use crate::protocol::Case;

type LiveTimer = Pin<Box<dyn Future<Output = ()>>>;

/// A runtime with its workload.
pub struct Workload<R: Runtime> {
    case: Case,
    /// Dropped before the runtime.
    live_timers: Vec<LiveTimer>,
    runtime: R,
}

impl<R: Runtime> std::fmt::Debug for Workload<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workload")
            .field("case", &self.case)
            .field("live_timers", &self.live_timers.len())
            .finish_non_exhaustive()
    }
}

impl<R: Runtime> TaskSubject for Workload<R> {
    type Loop<const LIVE_TIMERS: usize> = TaskLoop<R, LIVE_TIMERS>;

    fn new(backend: &str, case: &Case) -> Result<Self, Error> {
        let mut runtime = R::new(backend, case)?;
        let live_timers = started::<R>(&mut runtime, live_timers(case));
        Ok(Self { case: case.clone(), live_timers, runtime })
    }

    fn run(&mut self, rounds: u64, laps: &Rc<Laps>) -> Result<(), Error> {
        let laps = Rc::clone(laps);
        let runtime = &mut self.runtime;
        match self.case {
            Case::PingPong { echoed_by, pairs, exact_reads, .. } => {
                runtime.block_on(ping_pong::run::<R>(echoed_by, pairs, exact_reads, rounds, laps))
            }
            Case::AcceptChurn { parallel, .. } => {
                runtime.block_on(churn::run::<R>(parallel, rounds, laps))
            }
            Case::SelfWake { .. } | Case::TurnPerPoll { .. } => {
                runtime.block_on(async { R::spawn(self_waking(rounds, laps)).await });
                Ok(())
            }
            Case::Spawn { batch, .. } => {
                runtime.block_on(async { R::spawn(spawning::<R>(batch, rounds, laps)).await });
                Ok(())
            }
            Case::SpawnRemote { bound } => remote::run(runtime, bound, rounds, &laps),
            Case::SleepCancel { polled, .. } => {
                runtime.block_on(sleeps::cancel::<R>(polled, rounds, laps))
            }
            Case::ShortSleep { ns, .. } => {
                let span = Duration::from_nanos(ns);
                runtime.block_on(async { R::spawn(sleeps::short::<R>(span, rounds, laps)).await });
                Ok(())
            }
            Case::ManySleeps { count } => runtime.block_on(sleeps::many::<R>(count, rounds, laps)),
            Case::TaskSleep { us, .. } => {
                let span = Duration::from_micros(us);
                runtime.block_on(sleeps::alone::<R>(span, rounds, laps))
            }
            _ => Err(Unsupported("no case of the suites `latency` and `tasks`").into()),
        }
    }
}

/// The number of timers that wait during a case.
fn live_timers(case: &Case) -> usize {
    match *case {
        Case::PingPong { live_timers, .. }
        | Case::AcceptChurn { live_timers, .. }
        | Case::SelfWake { live_timers, .. }
        | Case::TurnPerPoll { live_timers }
        | Case::Spawn { live_timers, .. }
        | Case::ShortSleep { live_timers, .. } => live_timers,
        Case::SleepCancel { alive, .. } => alive,
        _ => 0,
    }
}

/// Wakes itself `rounds` times.
struct SelfWaking {
    left: u64,
}

impl Future for SelfWaking {
    type Output = ();

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.left == 0 {
            return Poll::Ready(());
        }
        self.left -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

async fn self_waking(rounds: u64, laps: Rc<Laps>) {
    laps.start();
    SelfWaking { left: rounds }.await;
    laps.stop(rounds);
}

async fn spawning<R: Runtime>(batch: usize, rounds: u64, laps: Rc<Laps>) {
    let batch = batch.max(1);
    let done = Rc::new(Cell::new(0));
    let mut handles = Vec::with_capacity(batch);
    laps.start();
    let mut spawned = 0;
    while spawned < rounds {
        for _ in 0..batch {
            let done = Rc::clone(&done);
            handles.push(R::spawn(async move { done.set(done.get() + 1) }));
        }
        spawned += batch as u64;
        for handle in handles.drain(..) {
            handle.await;
        }
    }
    laps.stop(done.get());
}
