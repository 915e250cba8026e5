//! The number of writes that one read takes, if the writer never pauses and the reader works on
//! each read.

use std::marker::PhantomData;
use std::sync::{Arc, Barrier};

use super::subject::{CounterSetup, CounterSubject, READER_WORK, ReadCounts};
use crate::measured::{Error, Measured};
use crate::protocol::Outcome;
use crate::{clock, threads};

pub(super) struct Coalescing<C> {
    setup: CounterSetup,
    counter: PhantomData<C>,
}

impl<C: CounterSubject> Coalescing<C> {
    pub(super) fn new(maximum: Option<u32>) -> Result<Self, Error> {
        let setup = CounterSetup {
            maximum,
            semaphore: false,
            nonblocking: false,
            polls_reader: false,
            polls_writer: false,
        };
        drop(C::new(&setup)?);
        Ok(Self { setup, counter: PhantomData })
    }
}

impl<C: CounterSubject> Measured for Coalescing<C> {
    /// A round is a write.
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let counter = Arc::new(C::new(&self.setup)?);
        let start = Arc::new(Barrier::new(2));
        let writer = threads::opposite({
            let (counter, start) = (Arc::clone(&counter), Arc::clone(&start));
            move || {
                start.wait();
                (0..rounds).try_for_each(|_| counter.write()).map_err(Error::from)
            }
        });
        let mut taken = ReadCounts::default();
        start.wait();
        let started = clock::now_ns();
        while taken.items < rounds {
            taken.add(counter.read()?);
            clock::work(READER_WORK);
        }
        let ns = clock::now_ns() - started;
        threads::join(writer)?;
        taken.check(rounds, self.setup.maximum)?;
        let gauges = [
            ("reads", taken.reads as f64),
            ("items_per_read", taken.items as f64 / taken.reads as f64),
            ("items_per_read_max", taken.batch_max as f64),
        ];
        let gauges = gauges.map(|(name, value)| (name.to_owned(), value)).into();
        Ok(Outcome { ns, units: rounds, gauges, ..Outcome::default() })
    }
}
