//! The age of an event when it is read, if more events are written than can be read.

use std::marker::PhantomData;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::subject::{CounterSetup, CounterSubject, READER_WORK, check_below};
use crate::measured::{Error, Measured};
use crate::poll::{Side, poll};
use crate::protocol::Outcome;
use crate::{clock, threads};

/// Time between two writes: 10 000 per second.
const WRITE_PERIOD_NS: u64 = 100_000;
/// Maximum wait of the reader.
const READER_WAIT: Duration = Duration::from_millis(200);

pub(super) struct Latency<C> {
    setup: CounterSetup,
    counter: PhantomData<C>,
}

impl<C: CounterSubject> Latency<C> {
    pub(super) fn new(maximum: Option<u32>) -> Result<Self, Error> {
        let setup = CounterSetup {
            maximum,
            semaphore: true,
            nonblocking: false,
            polls_reader: true,
            polls_writer: false,
        };
        drop(C::new(&setup)?);
        Ok(Self { setup, counter: PhantomData })
    }
}

/// Writes on time, or immediately after a blocked write. Returns the times at which the writes
/// began.
fn write<C: CounterSubject>(counter: &C, events: u64) -> Result<Vec<u64>, Error> {
    let mut begun = Vec::with_capacity(events as usize);
    let mut next = clock::now_ns();
    for _ in 0..events {
        while clock::now_ns() < next {}
        next += WRITE_PERIOD_NS;
        begun.push(clock::now_ns());
        counter.write()?;
    }
    Ok(begun)
}

impl<C: CounterSubject> Latency<C> {
    /// Reads one at a time and works on each. Returns the times of the reads.
    fn read(&self, counter: &C, events: u64) -> Result<Vec<u64>, Error> {
        let mut read = Vec::with_capacity(events as usize);
        for _ in 0..events {
            while !poll(counter.reader(), Side::Readable, READER_WAIT)? {}
            check_below(counter.count().unwrap_or(0), self.setup.maximum)?;
            let taken = counter.read()?;
            read.push(clock::now_ns());
            if taken != 1 {
                return Err(format!("a read of a semaphore took {taken}").into());
            }
            clock::work(READER_WORK);
        }
        Ok(read)
    }
}

impl<C: CounterSubject> Measured for Latency<C> {
    /// A round is an event.
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let counter = Arc::new(C::new(&self.setup)?);
        let start = Arc::new(Barrier::new(2));
        let writer = threads::opposite({
            let (counter, start) = (Arc::clone(&counter), Arc::clone(&start));
            move || {
                start.wait();
                write(&*counter, rounds)
            }
        });
        start.wait();
        let started = clock::now_ns();
        let read = self.read(&counter, rounds)?;
        let ns = clock::now_ns() - started;
        let begun = threads::join(writer)?;
        if poll(counter.reader(), Side::Readable, Duration::ZERO)? {
            return Err("more was read than written".into());
        }
        // Events in a counter have no identity. The first one written counts as the first one read.
        let mut ages: Vec<u64> =
            read.iter().zip(&begun).map(|(read, begun)| read.saturating_sub(*begun)).collect();
        ages.sort_unstable();
        let us = |per_mille: usize| {
            ages[(ages.len() - 1).min(ages.len() * per_mille / 1000)] as f64 / 1e3
        };
        let gauges = [("p99_us", us(990)), ("p999_us", us(999)), ("max_us", us(1000))];
        let gauges = gauges.map(|(name, value)| (name.to_owned(), value)).into();
        Ok(Outcome { ns, units: rounds, gauges, ..Outcome::default() })
    }
}
