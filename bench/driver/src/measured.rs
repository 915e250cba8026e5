//! The base of every suite: errors, prepared cases, and the part of a slice that is counted.
#![allow(unsafe_code, reason = "an exported name that callgrind can find, and raise")]

use std::sync::OnceLock;

use crate::protocol::Outcome;

/// Any failure of a measured program. `windlass-bench` reports its text.
pub type Error = Box<dyn std::error::Error>;

/// Maximum number of events that one turn takes from the kernel, in every implementation that has
/// this setting.
pub const EVENTS_PER_TURN: usize = 1024;

/// A prepared case.
pub trait Measured {
    /// Runs `rounds` rounds and checks that exactly the expected handlers ran.
    ///
    /// # Errors
    ///
    /// If a call failed, or other handlers ran.
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error>;
}

/// The error of an implementation that does not support a case.
#[derive(Debug)]
pub struct Unsupported(pub &'static str);

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Unsupported {}

/// The error of a case with more sources than the limit of open files allows. It is no failure.
#[derive(Debug)]
pub(crate) struct TooFewFiles {
    pub(crate) sources: usize,
    pub(crate) limit: u64,
}

impl std::fmt::Display for TooFewFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { sources, limit } = self;
        write!(f, "needs {sources} descriptors, and the limit of open files is {limit}; ")?;
        f.write_str("raise it by `ulimit -n`")
    }
}

impl std::error::Error for TooFewFiles {}

/// Set in the environment of a program whose instructions are counted step by step. Two signals,
/// `SIGUSR1`, then enclose the measured part, and tell the tracer where to begin and to end.
pub const STEPPED: &str = "WINDLASS_BENCH_STEPPED";

/// Runs the measured part of a slice.
pub(crate) fn counted(part: &mut dyn FnMut()) {
    mark();
    enclosed(part);
    mark();
}

/// callgrind sets its counters to zero when this function is entered, and dumps them when it is
/// left. So it has a plain exported name and is never inlined.
#[unsafe(export_name = "windlass_bench_counted")]
#[inline(never)]
fn enclosed(part: &mut dyn FnMut()) {
    part();
}

fn mark() {
    static IS_STEPPED: OnceLock<bool> = OnceLock::new();
    if *IS_STEPPED.get_or_init(|| std::env::var_os(STEPPED).is_some()) {
        // SAFETY: raise(3) takes a number; the tracer keeps the signal from being delivered.
        unsafe { libc::raise(libc::SIGUSR1) };
    }
}
