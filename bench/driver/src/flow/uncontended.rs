//! The cost of a write and of the read that takes it, while neither waits.

use std::time::Instant;

use super::subject::{CounterSetup, CounterSubject};
use crate::alloc;
use crate::measured::{Error, Measured, counted};
use crate::protocol::Outcome;

/// The maximum, for counters that have one. It is never reached.
const MAXIMUM: u32 = 1000;

pub(super) struct Uncontended<C>(C);

impl<C: CounterSubject> Uncontended<C> {
    pub(super) fn new(polled: bool) -> Result<Self, Error> {
        let setup = |maximum| CounterSetup {
            maximum,
            semaphore: false,
            // A wait here would be a defect. A non-blocking counter returns an error instead of
            // hanging.
            nonblocking: true,
            polls_reader: polled,
            polls_writer: polled,
        };
        // Not every counter has a maximum, and none is reached here.
        C::new(&setup(Some(MAXIMUM))).or_else(|_| C::new(&setup(None))).map(Self)
    }
}

impl<C: CounterSubject> Measured for Uncontended<C> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let before = alloc::counts();
        let started = Instant::now();
        let mut result = Ok(0);
        counted(&mut || result = pass(&mut self.0, rounds));
        let ns = started.elapsed().as_nanos() as u64;
        let allocations = alloc::counts().allocations - before.allocations;
        let items = result?;
        if items != rounds {
            return Err(format!("{items} were read of {rounds} written").into());
        }
        Ok(Outcome { ns, units: rounds, allocations, ..Outcome::default() })
    }
}

/// Writes and reads in turn. Returns the sum of what was read.
fn pass<C: CounterSubject>(counter: &mut C, rounds: u64) -> Result<u64, Error> {
    let mut items = 0;
    for _ in 0..rounds {
        counter.write()?;
        items += counter.read()?;
    }
    Ok(items)
}
