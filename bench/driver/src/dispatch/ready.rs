//! Turns that find a source which stays ready: the price of the wait, without a write or a read.

use std::io;
use std::time::Instant;

use super::subject::Subject;
use crate::alloc;
use crate::measured::{Error, Measured, Unsupported, counted};
use crate::protocol::{Outcome, Trigger};
use crate::source::{Count, Hits, SourcePool};

/// One source is ready all the time. Its handler does not read, and its interest is
/// level-triggered, so every turn finds it.
pub(crate) struct Ready<S, T> {
    /// Dropped before the pool, which owns the watched descriptors.
    subject: S,
    hits: Vec<Hits>,
    /// Takes a turn. It is a closure without state, so that the call is inlined.
    turn: T,
    /// Only the workload runs, so there is nothing to check.
    idle: bool,
    _pool: SourcePool,
}

impl<S: Subject, T: Fn(&mut S) -> io::Result<()>> Ready<S, T> {
    pub(crate) fn new(
        registered: usize,
        backend: &str,
        idle: bool,
        turn: T,
    ) -> Result<Self, Error> {
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
        turn(&mut subject)?;
        Ok(Self { subject, hits, turn, idle, _pool: pool })
    }
}

impl<S: Subject, T: Fn(&mut S) -> io::Result<()>> Measured for Ready<S, T> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let runs_before = self.hits[0].count();
        let before = alloc::counts();
        let started = Instant::now();
        let mut result = Ok(());
        counted(&mut || result = run(&mut self.subject, &self.turn, rounds));
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
fn run<S>(
    subject: &mut S,
    turn: &impl Fn(&mut S) -> io::Result<()>,
    rounds: u64,
) -> io::Result<()> {
    for _ in 0..rounds {
        // `black_box` keeps the compiler from moving anything out of the loop.
        turn(std::hint::black_box(&mut *subject))?;
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
            Ready::<NoTurns, _>::new(3, "epoll", false, NoTurns::turn).expect("it has eventfds");
        assert!(silent.slice(4).is_err());
        let mut idle = Ready::<NoTurns, _>::new(3, "epoll", true, NoTurns::turn).expect("the same");
        assert_eq!(idle.slice(4).map(|outcome| outcome.units).ok(), Some(4));
    }
}
