//! The memory of a registration.

use super::subject::Subject;
use crate::alloc;
use crate::measured::{Error, Measured};
use crate::protocol::{Outcome, Trigger};
use crate::source::{Count, Hits, Source, SourcePool};

pub(super) struct Memory<S> {
    registered: usize,
    backend: String,
    /// Kept until the next slice, so that the process's memory can be read from outside.
    subject: Option<(S, SourcePool)>,
}

impl<S: Subject> Memory<S> {
    pub(super) fn new(registered: usize, backend: &str) -> Self {
        Self { registered, backend: backend.into(), subject: None }
    }
}

impl<S: Subject> Measured for Memory<S> {
    fn slice(&mut self, _rounds: u64) -> Result<Outcome, Error> {
        self.subject = None;
        let pool = SourcePool::new(self.registered)?;
        let sources = pool.sources();
        let hits = Hits::default();
        let mut keys = Vec::with_capacity(sources.len());
        let mut subject = S::new(&self.backend)?;
        let before = alloc::counts();
        for &source in &sources {
            keys.push(subject.add(source, Trigger::Edge, Count(hits.clone()))?);
        }
        let after = alloc::counts();
        let bytes = (after.live_bytes - before.live_bytes) as f64 / self.registered as f64;
        // The value of the user: the descriptor, and the handler with its counter.
        let value = size_of::<(Source, Count)>() as f64;
        sources.iter().take(crate::measured::EVENTS_PER_TURN).for_each(|source| source.fire());
        subject.turn()?;
        let expected = self.registered.min(crate::measured::EVENTS_PER_TURN) as u64;
        if hits.count() != expected {
            return Err(format!("{} handlers ran, not {expected}", hits.count()).into());
        }
        self.subject = Some((subject, pool));
        Ok(Outcome {
            units: self.registered as u64,
            allocations: after.allocations - before.allocations,
            gauges: [
                ("bytes_per_registration".to_owned(), bytes),
                ("beside_value_bytes_per_registration".to_owned(), bytes - value),
            ]
            .into(),
            ..Outcome::default()
        })
    }
}
