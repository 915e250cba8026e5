//! What a write and the read that takes it cost while nobody waits.

use std::time::Instant;

use super::subject::{CounterSubject, Setup};
use crate::alloc;
use crate::measured::{Error, Measured};
use crate::protocol::Outcome;

/// The maximum here, for those that have one; it is never reached.
const MAXIMUM: u32 = 1000;

pub(super) struct Uncontended<C>(C);

impl<C: CounterSubject> Uncontended<C> {
    pub(super) fn new(polled: bool) -> Result<Self, Error> {
        let setup = |maximum| Setup {
            maximum,
            semaphore: false,
            // What would wait here is a defect, and should be an error rather than a hang.
            nonblocking: true,
            polls_reader: polled,
            polls_writer: polled,
        };
        // Not every counter has a maximum, and none is reached.
        C::new(&setup(Some(MAXIMUM))).or_else(|_| C::new(&setup(None))).map(Self)
    }
}

impl<C: CounterSubject> Measured for Uncontended<C> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let before = alloc::counts();
        let started = Instant::now();
        let mut items = 0;
        for _ in 0..rounds {
            self.0.write()?;
            items += self.0.read()?;
        }
        let ns = started.elapsed().as_nanos() as u64;
        let allocations = alloc::counts().allocations - before.allocations;
        if items != rounds {
            return Err(format!("{items} were read of {rounds} written").into());
        }
        Ok(Outcome { ns, units: rounds, allocations, ..Outcome::default() })
    }
}
