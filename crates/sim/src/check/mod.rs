//! Runs a property with many seeds, on all processors, and shrinks the first failure.
//!
//! 1. A seed runs on one thread, with a kernel of its own.
//! 2. The failure of the lowest seed is reported, whatever the number of threads.
//! 3. The failing seed runs again with its choices recorded; then [`shrink()`] takes over.

mod report;
mod shrink;
mod silence;

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::num::ParseIntError;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::choices::Case;
use crate::faults::{Fault, Faults};
use crate::kernel::Kernel;
use shrink::shrink;
use silence::Panic;

pub use report::{CheckOutcome, Failure};

/// Replays one seed.
const SEED: &str = "WINDLASS_SIM_SEED";
/// Replays a shrunk run.
const CASE: &str = "WINDLASS_SIM_CASE";
/// The number of seeds, or after an `x` how many times as many as the check says.
const SEEDS: &str = "WINDLASS_SIM_SEEDS";
/// The maximum of runs to shrink a failure.
const SHRINK_RUNS: &str = "WINDLASS_SIM_SHRINK_RUNS";
/// A file to which each check adds a line.
const RESULTS: &str = "WINDLASS_SIM_RESULTS";
/// A directory for the traces of a failure.
const TRACES: &str = "WINDLASS_SIM_TRACES";

/// Checks a property of what runs on a kernel: see [`Check`].
pub fn check<P: Fn(&mut Kernel) + Sync>(property: P) -> Check<fn(&Kernel) -> Kernel, P> {
    Check::new(Kernel::clone, property)
}

/// A property that is checked with many seeds. It fails by a panic.
#[derive(Clone, Debug)]
#[must_use = "`run` checks"]
pub struct Check<F, P> {
    factory: F,
    property: P,
    faults: Faults,
    first_seed: u64,
    seeds: u64,
    threads: usize,
    time_max: Duration,
    shrink_runs_max: u64,
    /// The time after which no run to shrink a failure begins.
    shrink_time_max: Duration,
    trace_max: usize,
    twice: bool,
}

impl<S, F, P> Check<F, P>
where
    F: Fn(&Kernel) -> S + Sync,
    P: Fn(&mut S) + Sync,
{
    /// A check whose `factory` makes of a kernel what the property takes.
    ///
    /// By default: 1,000 seeds from 0, [`Faults::rough`], all processors, no limit of time, at most
    /// 2,000 runs or a minute to shrink, and 10,000 entries of the trace.
    pub fn new(factory: F, property: P) -> Self {
        Self {
            factory,
            property,
            faults: Faults::rough(),
            first_seed: 0,
            seeds: 1_000,
            threads: thread::available_parallelism().map_or(1, usize::from),
            time_max: Duration::MAX,
            shrink_runs_max: 2_000,
            shrink_time_max: Duration::from_secs(60),
            trace_max: 10_000,
            twice: false,
        }
    }

    /// The faults.
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// The number of seeds.
    pub fn seeds(mut self, seeds: u64) -> Self {
        self.seeds = seeds;
        self
    }

    /// The first seed.
    pub fn first_seed(mut self, first_seed: u64) -> Self {
        self.first_seed = first_seed;
        self
    }

    /// The number of threads.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// No seed begins after this time.
    pub fn time_max(mut self, time_max: Duration) -> Self {
        self.time_max = time_max;
        self
    }

    /// The maximum of runs to shrink a failure, which also ends after a minute. 0: it is not
    /// shrunk.
    pub fn shrink_runs_max(mut self, shrink_runs_max: u64) -> Self {
        self.shrink_runs_max = shrink_runs_max;
        self
    }

    /// The maximum of entries in the trace of a failure, the last ones.
    pub fn trace_max(mut self, trace_max: usize) -> Self {
        self.trace_max = trace_max;
        self
    }

    /// Runs each seed twice. Different traces are a failure: something is not deterministic.
    pub fn twice(mut self) -> Self {
        self.twice = true;
        self
    }

    /// Checks the property. Variables of the environment change what runs:
    ///
    /// - `WINDLASS_SIM_SEEDS=5000` is the number of seeds, and `WINDLASS_SIM_SEEDS=x10` ten times
    ///   as many;
    /// - `WINDLASS_SIM_SHRINK_RUNS=0` reports a failure without shrinking it;
    /// - `WINDLASS_SIM_SEED` replays one seed, and `WINDLASS_SIM_CASE` a shrunk run;
    /// - to the file `WINDLASS_SIM_RESULTS` a line is added: the name of the thread, which for a
    ///   test is that of the test, and the numbers of the [`CheckOutcome`];
    /// - with `WINDLASS_SIM_TRACES` the trace of a failure is written to this directory, as text
    ///   and as JSON.
    ///
    /// # Panics
    ///
    /// With a report if the property fails, and if a variable cannot be read.
    pub fn run(mut self) {
        self.shrink_runs_max = variable(SHRINK_RUNS).unwrap_or(self.shrink_runs_max);
        if let Some(case) = variable::<Case>(CASE) {
            return report(self.replay(&case));
        }
        if let Some(seed) = variable(SEED) {
            (self.first_seed, self.seeds) = (seed, 1);
        } else if let Some(seeds) = variable(SEEDS) {
            self.seeds = match seeds {
                SeedCount::Of(seeds) => seeds,
                SeedCount::Times(factor) => self.seeds.saturating_mul(factor),
            };
        }
        let outcome = self.outcome();
        note(&outcome);
        report(outcome.failure);
    }

    /// Checks the property, without a look at the environment.
    pub fn outcome(&self) -> CheckOutcome {
        let shared = Shared {
            next: AtomicU64::new(self.first_seed),
            failed: AtomicU64::new(u64::MAX),
            start: Instant::now(),
        };
        let part = || self.worker(&shared);
        let parts: Vec<[u64; 3]> = thread::scope(|scope| {
            let workers: Vec<_> = (0..self.threads).map(|_| scope.spawn(part)).collect();
            let join = |worker: thread::ScopedJoinHandle<'_, _>| worker.join().expect("caught");
            workers.into_iter().map(join).collect()
        });
        let sum =
            |index: usize| parts.iter().fold(0, |sum: u64, part| sum.wrapping_add(part[index]));
        let seed = shared.failed.into_inner();
        let failure = (seed != u64::MAX).then(|| self.explain(seed));
        CheckOutcome { seeds: sum(0), events: sum(1), hash: sum(2), failure }
    }

    /// Replays a recorded run. Returns its failure, if it fails.
    pub fn replay(&self, case: &Case) -> Option<Failure> {
        let kernel = Kernel::replay(case, self.faults.clone());
        kernel.set_trace_max(self.trace_max);
        let panic = self.run_once(&kernel).err()?;
        Some(failure(None, &panic, case.clone(), 0, &kernel))
    }

    /// Takes seeds until none is left. Returns their number, their events and their hash.
    fn worker(&self, shared: &Shared) -> [u64; 3] {
        let end = self.first_seed.saturating_add(self.seeds);
        let mut sums = [0_u64; 3];
        loop {
            let seed = shared.next.fetch_add(1, Ordering::Relaxed);
            let is_late = shared.start.elapsed() > self.time_max;
            if seed >= end || seed > shared.failed.load(Ordering::Relaxed) || is_late {
                return sums;
            }
            let kernel = Kernel::new(seed, self.faults.clone());
            let is_failed = self.run_once(&kernel).is_err() || !self.is_repeated(seed, &kernel);
            if is_failed {
                shared.failed.fetch_min(seed, Ordering::Relaxed);
            }
            let hash = (kernel.hash() ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for (sum, value) in sums.iter_mut().zip([1, kernel.events(), hash]) {
                *sum = sum.wrapping_add(value);
            }
        }
    }

    /// Whether a second run is the same, if it is wanted.
    fn is_repeated(&self, seed: u64, first: &Kernel) -> bool {
        !self.twice || {
            let second = Kernel::new(seed, self.faults.clone());
            self.run_once(&second).is_ok() && second.hash() == first.hash()
        }
    }

    fn run_once(&self, kernel: &Kernel) -> Result<(), Panic> {
        silence::run(|| {
            let mut subject = (self.factory)(kernel);
            (self.property)(&mut subject);
        })
    }

    /// Runs a failing seed again, and shrinks it.
    fn explain(&self, seed: u64) -> Failure {
        let kernel = Kernel::new(seed, self.faults.clone());
        kernel.record_choices();
        kernel.set_trace_max(self.trace_max);
        let panic = match self.run_once(&kernel) {
            Err(panic) => panic,
            Ok(()) => {
                let message = "two runs of the seed differ: something is not deterministic";
                let panic =
                    Panic { message: message.to_owned(), location: "the runner".to_owned() };
                return failure(Some(seed), &panic, kernel.case(), 0, &kernel);
            }
        };
        let bounds = (self.shrink_runs_max, self.shrink_time_max);
        let shrunk = shrink(kernel.case(), bounds, |case| {
            let kernel = Kernel::replay(case, self.faults.clone());
            kernel.record_choices();
            let is_same =
                self.run_once(&kernel).is_err_and(|other| other.location == panic.location);
            is_same.then(|| kernel.case())
        });
        let kernel = Kernel::replay(&shrunk.case, self.faults.clone());
        kernel.set_trace_max(self.trace_max);
        let panic = self.run_once(&kernel).err().unwrap_or(panic);
        failure(Some(seed), &panic, shrunk.case, shrunk.runs, &kernel)
    }
}

/// The value of [`SEEDS`].
#[derive(Debug, PartialEq, Eq)]
enum SeedCount {
    Of(u64),
    Times(u64),
}

impl FromStr for SeedCount {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        match text.strip_prefix('x') {
            Some(factor) => factor.parse().map(Self::Times),
            None => text.parse().map(Self::Of),
        }
    }
}

struct Shared {
    next: AtomicU64,
    failed: AtomicU64,
    start: Instant,
}

fn failure(
    seed: Option<u64>,
    panic: &Panic,
    case: Case,
    shrink_runs: u64,
    kernel: &Kernel,
) -> Failure {
    let counted = |fault: &Fault| (*fault, kernel.fault_count(*fault));
    Failure {
        seed,
        message: format!("{} ({})", panic.message, panic.location),
        case,
        shrink_runs,
        faults: Fault::ALL.iter().map(counted).filter(|(_, count)| *count > 0).collect(),
        trace: kernel.trace(),
    }
}

fn variable<T: FromStr<Err: std::fmt::Display>>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    match text.parse() {
        Ok(value) => Some(value),
        Err(error) => panic!("{name}={text}: {error}"),
    }
}

/// Adds the line to [`RESULTS`], if it is set.
fn note(outcome: &CheckOutcome) {
    let Some(path) = env::var_os(RESULTS) else { return };
    let CheckOutcome { seeds, events, hash, .. } = outcome;
    let name = thread::current().name().unwrap_or("-").to_owned();
    // One write, because other tests may write too.
    let line = format!("{name} seeds={seeds} events={events} hash={hash:016x}\n");
    let file = OpenOptions::new().append(true).create(true).open(&path);
    if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
        panic!("{RESULTS}: {}: {error}", Path::new(&path).display());
    }
}

/// Panics with the failure, if there is one.
fn report(failure: Option<Failure>) {
    let Some(failure) = failure else { return };
    if let Some(directory) = env::var_os(TRACES) {
        let directory = Path::new(&directory);
        let write = |name: &str, text: String| std::fs::write(directory.join(name), text);
        let text = write("trace.txt", failure.to_string());
        if let Err(error) = text.and_then(|()| write("trace.json", failure.trace.to_json())) {
            eprintln!("{}: {error}", directory.display());
        }
    }
    panic!("{failure}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_number_or_a_factor() {
        assert_eq!("500".parse(), Ok(SeedCount::Of(500)));
        assert_eq!("x20".parse(), Ok(SeedCount::Times(20)));
        assert!("20x".parse::<SeedCount>().is_err() && "x".parse::<SeedCount>().is_err());
    }

    #[test]
    fn a_failure_is_shrunk_for_at_most_a_minute() {
        let mut check = check(|kernel| assert!(kernel.choose(100) > 100, "always")).seeds(1);
        assert_eq!(check.shrink_time_max, Duration::from_secs(60));
        let runs = |outcome: CheckOutcome| outcome.failure.expect("it fails").shrink_runs;
        assert!(runs(check.outcome()) > 0, "it is not shrunk");
        check.shrink_time_max = Duration::ZERO;
        assert_eq!(runs(check.outcome()), 0);
    }
}
