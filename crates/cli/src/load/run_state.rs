//! State that the workers share: the clock, the common start and end, and the progress.

use std::{
    sync::{
        Arc, Mutex, Once, PoisonError,
        atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};
use windlass::Stats;

use super::{
    fan_out::FanOut,
    plan::LoadPlan,
    results::{CpuSample, LoadResults},
    schedule::Nanos,
};

/// Nanoseconds since the start of the program, the same for all workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunClock(Instant);

impl RunClock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    #[inline]
    pub(crate) fn now(self) -> Nanos {
        self.0.elapsed().as_nanos() as Nanos
    }

    /// Returns the timer instant of a moment. `None` if it is too far away for the clock.
    pub(crate) fn instant(self, moment: Nanos) -> Option<Instant> {
        self.0.checked_add(Duration::from_nanos(moment))
    }

    /// Returns the CPU time of this process, all threads together.
    pub(crate) fn sample(self) -> CpuSample {
        let used =
            clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("every process has this clock");
        CpuSample { at: self.now(), cpu: Duration::from(used).as_nanos() as Nanos }
    }
}

/// If this many connections failed to open and none succeeded, no more are tried.
const GIVE_UP_AFTER: u64 = 100;

/// State that the workers exchange. No message changes it.
#[derive(Debug)]
pub(crate) struct RunState {
    pub(crate) clock: RunClock,
    pub(crate) fan_out: Option<Arc<FanOut>>,
    workers: usize,
    ready: AtomicUsize,
    done: AtomicUsize,
    /// When the first message is to be sent; 0 until every worker is ready.
    origin: AtomicU64,
    /// The signal that requested the end; 0 if none did.
    signal: AtomicI32,
    /// Connections opened so far.
    pub(crate) opened: AtomicU64,
    /// Connections that failed to open.
    unopened: AtomicU64,
    /// The run is given up: each worker stops at its next tick.
    is_given_up: AtomicBool,
    /// Measured messages answered so far, as of the last tick of each worker.
    pub(crate) answered: AtomicU64,
    /// Set when a worker has no ring although one was preferred.
    ring_missing: Once,
    /// By target.
    results: Mutex<Vec<LoadResults>>,
}

impl RunState {
    pub(crate) fn new(plan: &LoadPlan) -> Self {
        let clock = RunClock::start();
        Self {
            clock,
            fan_out: FanOut::new(plan, clock),
            workers: plan.args.workers.into(),
            ready: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            origin: AtomicU64::new(0),
            signal: AtomicI32::new(0),
            opened: AtomicU64::new(0),
            unopened: AtomicU64::new(0),
            is_given_up: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            ring_missing: Once::new(),
            results: Mutex::new(plan.targets.iter().map(|_| LoadResults::new()).collect()),
        }
    }

    /// Notes how the reactor of a worker was built.
    pub(crate) fn built(&self, stats: &Stats) {
        // Of several workers, the first one is heard.
        if let Some(error) = stats.ring_error {
            self.ring_missing.call_once(|| {
                eprintln!("windlass: a worker has no io_uring, and uses epoll instead: {error}");
            });
        }
    }

    /// Notes that a worker has opened all of its connections. The last worker to do so sets the
    /// common start.
    pub(crate) fn ready(&self, delay: Duration) {
        if self.ready.fetch_add(1, Relaxed) + 1 == self.workers {
            let delay = if self.workers == 1 { 0 } else { delay.as_nanos() as Nanos };
            self.origin.store(self.clock.now().max(1) + delay, Relaxed);
        }
    }

    /// Returns when the first message is to be sent, once that is known.
    pub(crate) fn origin(&self) -> Option<Nanos> {
        Some(self.origin.load(Relaxed)).filter(|&origin| origin > 0)
    }

    /// Notes that a worker is done. Returns whether it was the last one.
    pub(crate) fn worker_done(&self) -> bool {
        self.done.fetch_add(1, Relaxed) + 1 == self.workers
    }

    /// Notes a signal that requests the end. Returns whether there was one before.
    pub(crate) fn interrupt(&self, signal: i32) -> bool {
        self.signal.swap(signal, Relaxed) != 0
    }

    /// Returns the number of the signal that requested the end.
    pub(crate) fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Relaxed)).filter(|&signal| signal != 0)
    }

    /// Notes that a connection failed to open. If none can be opened, the run is given up.
    pub(crate) fn open_failed(&self) {
        let unopened = self.unopened.fetch_add(1, Relaxed) + 1;
        if unopened >= GIVE_UP_AFTER && self.opened.load(Relaxed) == 0 {
            self.give_up();
        }
    }

    /// Gives the run up. Returns whether it was given up before.
    pub(crate) fn give_up(&self) -> bool {
        self.is_given_up.swap(true, Relaxed)
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Relaxed)
    }

    /// Takes over the results of a worker with a target.
    pub(crate) fn add_results(&self, target: usize, results: &LoadResults) {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)[target].add(results);
    }

    /// Returns the results of all workers, by target.
    pub(crate) fn into_results(self) -> Vec<LoadResults> {
        self.results.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
