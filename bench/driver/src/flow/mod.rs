//! The suite `flow`: a counter with a maximum between a fast writer and a slow reader, and its cost
//! while neither waits.
//!
//! The first three cases are the benchmarks of the kernel patch that proposes a maximum for
//! eventfd(2), with its parameters.

mod burst;
mod coalescing;
mod latency;
mod subject;
mod uncontended;

use crate::measured::{Error, Measured};
use crate::protocol::Case;
use crate::threads;

use burst::Burst;
use coalescing::Coalescing;
use latency::Latency;
use uncontended::Uncontended;

pub use subject::{CounterSetup, CounterSubject};

/// Sets up a case of this suite.
pub(crate) fn prepare<C: CounterSubject>(
    case: &Case,
    _backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    if idle {
        return Err("no case of the suite `flow` can be idle".into());
    }
    if !matches!(case, Case::Uncontended { .. }) {
        threads::check_processors()?;
    }
    Ok(match *case {
        Case::Burst { writer, maximum } => Box::new(Burst::<C>::new(writer, maximum)?),
        Case::Latency { maximum } => Box::new(Latency::<C>::new(maximum)?),
        Case::Coalescing { maximum } => Box::new(Coalescing::<C>::new(maximum)?),
        Case::Uncontended { polled } => Box::new(Uncontended::<C>::new(polled)?),
        _ => return Err("no case of the suite `flow`".into()),
    })
}
