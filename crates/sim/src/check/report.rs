//! The result of a check.

use std::fmt;

use crate::choices::Case;
use crate::faults::Fault;
use crate::trace::Trace;

/// The outcome of a [`Check`](crate::Check).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CheckOutcome {
    /// The number of seeds that ran.
    pub seeds: u64,
    /// The number of entries of all traces.
    pub events: u64,
    /// A hash of the hashes of all traces, which does not depend on threads. Only equal numbers
    /// of seeds can be compared.
    pub hash: u64,
    /// The failure of the lowest seed, if there was one.
    pub failure: Option<Failure>,
}

/// A run that has failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// Its seed; none if a [`Case`] was replayed.
    pub seed: Option<u64>,
    /// The text of the panic, and its file and line.
    pub message: String,
    /// The shrunk run, which fails at the same place.
    pub case: Case,
    /// The number of runs that shrinking has taken.
    pub shrink_runs: u64,
    /// How often each fault has happened in the shrunk run, without those that have not.
    pub faults: Vec<(Fault, u64)>,
    /// The last entries of the trace of the shrunk run.
    pub trace: Trace,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seed {
            Some(seed) => writeln!(f, "seed {seed} fails: {}", self.message)?,
            None => writeln!(f, "the case fails: {}", self.message)?,
        }
        if let Some(seed) = self.seed {
            writeln!(f, "replay the whole run with WINDLASS_SIM_SEED={seed}")?;
        }
        writeln!(
            f,
            "shrunk in {} runs to {} choices, {} of them faults:",
            self.shrink_runs,
            self.case.weight(),
            self.case.faults(),
        )?;
        for (fault, count) in &self.faults {
            writeln!(f, "  {count} × {fault}")?;
        }
        writeln!(f, "replay it with WINDLASS_SIM_CASE='{}'", self.case)?;
        write!(f, "{}", self.trace)
    }
}
