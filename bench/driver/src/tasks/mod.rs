//! The suites `latency` and `tasks`: sockets, timers and tasks of asynchronous runtimes.
//!
//! [`Runtime`] is a runtime for Rust's futures. The workloads are futures, generic over it
//! ([`Workload`]). What has no futures (a hand-written loop, a library in C++) implements
//! [`TaskSubject`] itself, with the same work.

mod churn;
mod laps;
mod message;
mod ping_pong;
mod remote;
mod runtime;
mod signal;
mod sleeps;
mod sockets;
mod workload;

use std::rc::Rc;

use crate::measured::{Error, Measured, Unsupported, counted};
use crate::protocol::{Case, Outcome};
use crate::sleep::set_slack;
use crate::threads;
use crate::wakeup::{LoopSubject, RoundTrip};

pub(crate) use ping_pong::Shared as PairsShared;
pub(crate) use signal::started;

pub(crate) use laps::Lap;
pub use laps::Laps;
pub use message::{MESSAGE_BYTES, Message, forget_on_close};
pub use runtime::{NoRemote, RemoteSpawn, Runtime, Stream, polls_per_turn};
pub use signal::{Signal, TaskLoop};
pub use workload::Workload;

/// The time until a live timer is due.
pub const AN_HOUR: std::time::Duration = std::time::Duration::from_secs(3600);

/// Messages of each pair before the clock starts. TCP acknowledges the first ones at once.
pub const WARM_MESSAGES: u64 = 32;

/// An implementation of the cases of both suites.
pub trait TaskSubject: Sized + 'static {
    /// A loop that another thread wakes, with this number of live timers.
    type Loop<const LIVE_TIMERS: usize>: LoopSubject;

    /// Sets up a case on the named backend.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] if it does not have the case or the backend; otherwise the kernel's error.
    fn new(backend: &str, case: &Case) -> Result<Self, Error>;

    /// Runs rounds of the case. It calls [`Laps::start`] and [`Laps::stop`] around what is timed.
    ///
    /// # Errors
    ///
    /// If a call failed, or the work was not done.
    fn run(&mut self, rounds: u64, laps: &Rc<Laps>) -> Result<(), Error>;
}

/// Sets up a case of either suite.
pub(crate) fn prepare<S: TaskSubject>(
    case: &Case,
    backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    match *case {
        Case::TaskRoundTrip { live_timers } if !idle => {
            threads::check_processors()?;
            round_trip::<S>(backend, live_timers)
        }
        _ if idle => Ok(Box::new(Idle)),
        _ => Ok(Box::new(Slices { subject: S::new(backend, case)?, case: case.clone() })),
    }
}

fn round_trip<S: TaskSubject>(
    backend: &str,
    live_timers: usize,
) -> Result<Box<dyn Measured>, Error> {
    Ok(match live_timers {
        0 => Box::new(RoundTrip::<S::Loop<0>>::checked(backend)?),
        1 => Box::new(RoundTrip::<S::Loop<1>>::checked(backend)?),
        _ => return Err(Unsupported("a round trip has no or one live timer").into()),
    })
}

/// The workload's own cost: the clock of each round.
struct Idle;

impl Measured for Idle {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let laps = Rc::new(Laps::new(rounds));
        counted(&mut || {
            laps.start();
            let mut lap = laps.lap();
            for _ in 0..rounds {
                laps.record(&mut lap);
            }
            laps.stop(rounds);
        });
        laps.outcome(rounds)
    }
}

struct Slices<S> {
    subject: S,
    case: Case,
}

impl<S: TaskSubject> Measured for Slices<S> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let slack_ns = match self.case {
            Case::TaskSleep { slack_ns, .. } => slack_ns,
            // Zero stands for the slack that the thread began with.
            _ => 0,
        };
        set_slack(slack_ns)?;
        let laps = Rc::new(Laps::new(rounds));
        let mut result = Ok(());
        counted(&mut || result = self.subject.run(rounds, &laps));
        set_slack(0)?;
        result?;
        laps.outcome(rounds)
    }
}
