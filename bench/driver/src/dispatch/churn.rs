//! Registering and deleting beside other sources.

use std::time::Instant;

use super::subject::Subject;
use crate::alloc;
use crate::measured::{Error, Measured, counted};
use crate::protocol::{Outcome, Trigger};
use crate::source::{Count, Hits, Source, SourcePool};

/// Number of sources that are registered and deleted in one round.
const CHURN: usize = 64;

pub(super) struct RegisterDelete<S: Subject> {
    subject: S,
    churn: Vec<Source>,
    hits: Vec<Hits>,
    keys: Vec<S::Key>,
    /// One of the other sources, to check that a turn still reports its events.
    witness: (Source, Hits),
    _pool: SourcePool,
}

impl<S: Subject> RegisterDelete<S> {
    pub(super) fn new(registered: usize, backend: &str) -> Result<Self, Error> {
        let pool = SourcePool::new(registered.max(1) + CHURN)?;
        let sources = pool.sources();
        let (churn, stay) = sources.split_at(CHURN);
        let mut subject = S::new(backend)?;
        let hits = Hits::default();
        for &source in stay {
            subject.add(source, Trigger::Edge, Count(hits.clone()))?;
        }
        Ok(Self {
            subject,
            churn: churn.to_vec(),
            hits: (0..CHURN).map(|_| Hits::default()).collect(),
            keys: Vec::with_capacity(CHURN),
            witness: (stay[0], hits),
            _pool: pool,
        })
    }

    fn run(&mut self, rounds: u64) -> Result<(), Error> {
        for _ in 0..rounds {
            for (&source, hits) in self.churn.iter().zip(&self.hits) {
                let key = self.subject.add(source, Trigger::Edge, Count(hits.clone()))?;
                self.keys.push(key);
            }
            for key in self.keys.drain(..) {
                self.subject.delete(key)?;
            }
        }
        Ok(())
    }

    /// Checks that a registered source fires, and that a deleted one does not while another is
    /// called.
    fn check(&mut self) -> Result<(), Error> {
        for (&source, hits) in self.churn.iter().zip(&self.hits) {
            self.keys.push(self.subject.add(source, Trigger::Edge, Count(hits.clone()))?);
            source.fire();
        }
        self.subject.turn()?;
        if self.hits.iter().any(|hits| hits.count() != 1) {
            return Err("a registered source did not fire once".into());
        }
        for key in self.keys.drain(..) {
            self.subject.delete(key)?;
        }
        self.churn.iter().for_each(|source| source.fire());
        let before = self.witness.1.count();
        self.witness.0.fire();
        self.subject.turn()?;
        if self.witness.1.count() != before + 1 || self.hits.iter().any(|hits| hits.count() != 1) {
            return Err("a deleted source fired, or the one that stays did not".into());
        }
        for (source, hits) in self.churn.iter().zip(&mut self.hits) {
            source.drain();
            *hits = Hits::default();
        }
        Ok(())
    }
}

impl<S: Subject> Measured for RegisterDelete<S> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let before = alloc::counts();
        let started = Instant::now();
        let mut result = Ok(());
        counted(&mut || result = self.run(rounds));
        let ns = started.elapsed().as_nanos() as u64;
        let allocations = alloc::counts().allocations - before.allocations;
        result?;
        self.check()?;
        let units = rounds * CHURN as u64;
        Ok(Outcome { ns, units, allocations, ..Outcome::default() })
    }
}
