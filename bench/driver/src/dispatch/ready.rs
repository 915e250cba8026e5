//! Turns that find a source which stays ready: the price of the wait, without a write or a read.

use std::io;
use std::marker::PhantomData;
use std::time::Instant;

use super::subject::Subject;
use crate::alloc;
use crate::measured::{Error, Measured, Unsupported, counted};
use crate::protocol::{Outcome, Trigger};
use crate::source::{Count, Hits, SourcePool};

/// A form of turns. It is a type and not a closure, because a closure may not be inlined.
pub(crate) trait TakeTurn<S>: 'static {
    fn take(subject: &mut S) -> io::Result<()>;
}

/// Turns that wait without a limit.
pub(crate) struct Waiting;

impl<S: Subject> TakeTurn<S> for Waiting {
    #[inline(always)]
    fn take(subject: &mut S) -> io::Result<()> {
        subject.turn()
    }
}

/// One source is ready all the time. Its handler does not read, and its interest is
/// level-triggered, so every turn finds it.
pub(crate) struct Ready<S, T> {
    /// Dropped before the pool, which owns the watched descriptors.
    subject: S,
    hits: Vec<Hits>,
    /// Only the workload runs, so there is nothing to check.
    idle: bool,
    turns: PhantomData<T>,
    _pool: SourcePool,
}

impl<S: Subject, T: TakeTurn<S>> Ready<S, T> {
    pub(crate) fn new(registered: usize, backend: &str, idle: bool) -> Result<Self, Error> {
        if !S::IS_LEVEL_TRIGGERED {
            return Err(Unsupported("it is always edge-triggered").into());
        }
        let pool = SourcePool::new(registered.max(1))?;
        let sources = pool.sources();
        let hits: Vec<Hits> = sources.iter().map(|_| Hits::default()).collect();
        let mut subject = S::new(backend)?;
        for (&source, hits) in sources.iter().zip(&hits) {
            subject.add(source, Trigger::Level, Count(hits.clone()))?;
        }
        sources[0].fire();
        // This turn does the delayed work of registering.
        T::take(&mut subject)?;
        Ok(Self { subject, hits, idle, turns: PhantomData, _pool: pool })
    }
}

impl<S: Subject, T: TakeTurn<S>> Measured for Ready<S, T> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let runs_before = self.hits[0].count();
        let before = alloc::counts();
        let started = Instant::now();
        let mut result = Ok(());
        counted(&mut || result = run::<S, T>(&mut self.subject, rounds));
        let ns = started.elapsed().as_nanos() as u64;
        let allocations = alloc::counts().allocations - before.allocations;
        result?;
        let runs = self.hits[0].count() - runs_before;
        // A ring arms a poll again after its event, so some of its turns may find nothing.
        let finds_some = runs > 0 || rounds < 4;
        if !self.idle && (runs > rounds || !finds_some) {
            return Err(format!("a ready source ran {runs} times in {rounds} turns").into());
        }
        if self.hits[1..].iter().any(|hits| hits.count() > 0) {
            return Err("the handler of a source that is not ready ran".into());
        }
        let gauges = [("events_per_turn".to_owned(), runs as f64 / rounds as f64)].into();
        Ok(Outcome { ns, units: rounds, turns: rounds, allocations, gauges })
    }
}

#[inline(never)]
fn run<S, T: TakeTurn<S>>(subject: &mut S, rounds: u64) -> io::Result<()> {
    for _ in 0..rounds {
        T::take(subject)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::subject::NoTurns;
    use super::*;

    #[test]
    fn a_subject_that_finds_nothing_fails_the_check() {
        let mut silent =
            Ready::<NoTurns, Waiting>::new(3, "epoll", false).expect("it has eventfds");
        assert!(silent.slice(4).is_err());
        let mut idle = Ready::<NoTurns, Waiting>::new(3, "epoll", true).expect("the same");
        assert_eq!(idle.slice(4).map(|outcome| outcome.units).ok(), Some(4));
    }
}
