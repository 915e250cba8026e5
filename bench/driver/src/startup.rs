//! The first event of a reactor: it is built, watches a source that is ready, and calls its
//! handler.

use std::time::Instant;

use crate::alloc;
use crate::dispatch::Subject;
use crate::measured::{Error, Measured};
use crate::protocol::{Case, Outcome, Trigger};
use crate::source::{Count, Hits, Source, SourcePool};

/// What is started.
pub trait StartSubject: Sized + 'static {
    /// Builds a reactor on the named backend, watches `source`, which is ready, and returns once
    /// `hits` has counted its event. What was built is dropped later, outside of the measured time.
    ///
    /// # Errors
    ///
    /// If it does not have this backend, or if the kernel returns an error.
    fn first_event(backend: &str, source: Source, hits: &Hits) -> Result<Self, Error>;
}

impl<S: Subject> StartSubject for S {
    fn first_event(backend: &str, source: Source, hits: &Hits) -> Result<Self, Error> {
        let mut subject = S::new(backend)?;
        subject.add(source, Trigger::Level, Count(hits.clone()))?;
        let before = hits.count();
        while hits.count() == before {
            subject.turn()?;
        }
        Ok(subject)
    }
}

/// Sets up the case.
pub(crate) fn prepare<S: StartSubject>(
    case: &Case,
    backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    if idle || *case != Case::FirstEvent {
        return Err("no case of the suite `startup`".into());
    }
    let mut starts =
        Starts::<S> { backend: backend.to_owned(), pool: SourcePool::new(1)?, started: None };
    // This reports a backend that is not supported.
    starts.slice(1)?;
    Ok(Box::new(starts))
}

struct Starts<S> {
    backend: String,
    pool: SourcePool,
    /// The last one, which is dropped before the pool.
    started: Option<S>,
}

impl<S: StartSubject> Measured for Starts<S> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let source = self.pool.sources()[0];
        let hits = Hits::default();
        let mut outcome = Outcome { units: rounds, ..Outcome::default() };
        for round in 1..=rounds {
            source.fire();
            let before = alloc::counts().allocations;
            let started = Instant::now();
            self.started = Some(S::first_event(&self.backend, source, &hits)?);
            outcome.ns += started.elapsed().as_nanos() as u64;
            outcome.allocations += alloc::counts().allocations - before;
            self.started = None;
            source.drain();
            if hits.count() != round {
                return Err(format!("{} events came in {round} starts", hits.count()).into());
            }
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts as many events as its backend says.
    struct Wrong;

    impl StartSubject for Wrong {
        fn first_event(backend: &str, _: Source, hits: &Hits) -> Result<Self, Error> {
            (0..backend.len()).for_each(|_| hits.add());
            Ok(Self)
        }
    }

    #[test]
    fn each_start_has_one_event() {
        let starts = |backend: &str| prepare::<Wrong>(&Case::FirstEvent, backend, false);
        assert_eq!(starts("1").unwrap().slice(3).unwrap().units, 3);
        assert!(starts("").is_err() && starts("12").is_err());
    }
}
