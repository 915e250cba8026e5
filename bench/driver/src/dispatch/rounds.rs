//! The cases that fire sources and take a turn.

use std::time::Instant;

use super::subject::Subject;
use crate::alloc;
use crate::measured::{Error, Measured, counted};
use crate::protocol::{Case, Outcome, Trigger};
use crate::random::Random;
use crate::source::{Count, Device, DrainCount, Hits, KindCount, Source, SourcePool};

/// The handlers of the sources.
#[derive(Clone, Copy, PartialEq)]
enum Handlers {
    Plain,
    EightTypes,
    Devices,
}

/// A case that fires sources and takes a turn.
pub(super) struct RoundsPlan {
    sources: usize,
    ready: usize,
    trigger: Trigger,
    handlers: Handlers,
}

impl RoundsPlan {
    pub(super) fn of(case: &Case) -> Option<Self> {
        let (sources, ready, trigger, handlers) = match *case {
            Case::OneReady { registered, trigger } => (registered, 1, trigger, Handlers::Plain),
            Case::AllReady { registered, trigger } => {
                (registered, registered, trigger, Handlers::Plain)
            }
            Case::FourFds { subscribers, trigger } => {
                (subscribers * 4, 1, trigger, Handlers::Devices)
            }
            Case::EightTypes { registered, ready } => {
                (registered, ready, Trigger::Edge, Handlers::EightTypes)
            }
            _ => return None,
        };
        Some(Self { sources, ready, trigger, handlers })
    }
}

/// Minimum length of the sequence of targets, in rounds: too long for a branch predictor to learn.
const SEQUENCE_ROUNDS_MIN: usize = 64;

pub(super) struct Rounds<S> {
    plan: RoundsPlan,
    /// Dropped before the pool, which owns the watched descriptors.
    subject: S,
    hits: Vec<Hits>,
    /// Indexes of the sources in the order of firing, a multiple of `plan.ready`.
    targets: Vec<usize>,
    sequence: Vec<Source>,
    position: usize,
    expected: Vec<u64>,
    idle: bool,
    _pool: SourcePool,
}

impl<S: Subject> Rounds<S> {
    pub(super) fn new(plan: RoundsPlan, backend: &str, idle: bool) -> Result<Self, Error> {
        let pool = SourcePool::new(plan.sources)?;
        let sources = pool.sources();
        let hits: Vec<Hits> = sources.iter().map(|_| Hits::default()).collect();
        let mut subject = S::new(backend)?;
        match plan.handlers {
            Handlers::Plain | Handlers::EightTypes => {
                for (number, (&source, hits)) in sources.iter().zip(&hits).enumerate() {
                    add_one(&mut subject, &plan, number, source, hits.clone())?;
                }
            }
            Handlers::Devices => {
                for (sources, hits) in sources.chunks_exact(4).zip(hits.chunks_exact(4)) {
                    let queues = std::array::from_fn(|queue| hits[queue].clone());
                    let device = Device::new(queues, plan.trigger == Trigger::Level);
                    let four = std::array::from_fn(|queue| sources[queue]);
                    subject.add_device(four, plan.trigger, device)?;
                }
            }
        }
        let targets = targets(&plan);
        Ok(Self {
            sequence: targets.iter().map(|&target| sources[target]).collect(),
            expected: vec![0; sources.len()],
            plan,
            subject,
            hits,
            targets,
            position: 0,
            idle,
            _pool: pool,
        })
    }

    /// Compares the counts of the last `rounds` rounds with the expected ones.
    fn check(&mut self, from: usize, rounds: u64) -> Result<(), Error> {
        if self.idle {
            return Ok(());
        }
        let events = rounds as usize * self.plan.ready;
        // Whole passes over the sequence are multiplied, the rest is counted one by one.
        let (passes, rest) = (events / self.targets.len(), events % self.targets.len());
        for (place, &target) in self.targets.iter().enumerate() {
            let offset = (place + self.targets.len() - from) % self.targets.len();
            self.expected[target] += passes as u64 + u64::from(offset < rest);
        }
        for (number, (hits, &expected)) in self.hits.iter().zip(&self.expected).enumerate() {
            if hits.count() != expected {
                let count = hits.count();
                return Err(format!("handler {number} ran {count} times, not {expected}").into());
            }
        }
        match self.plan.handlers {
            Handlers::Plain => Ok(()),
            Handlers::EightTypes => self.check_kinds(),
            Handlers::Devices => self.check_devices(),
        }
    }

    /// Checks that each source called a handler of the registered type.
    fn check_kinds(&self) -> Result<(), Error> {
        for (number, hits) in self.hits.iter().enumerate() {
            if hits.count() > 0 && hits.note() != kind_of(number) {
                return Err(format!("the handler of another type ran for source {number}").into());
            }
        }
        Ok(())
    }

    /// Checks that the four handlers of a device shared one state: its last total is their sum.
    fn check_devices(&self) -> Result<(), Error> {
        for (number, queues) in self.hits.chunks_exact(4).enumerate() {
            let sum: u64 = queues.iter().map(Hits::count).sum();
            if queues.iter().map(Hits::note).max() != Some(sum) {
                return Err(format!("the handlers of device {number} share no state").into());
            }
        }
        Ok(())
    }
}

/// The numbers of the types, which are the notes of their handlers.
fn kind_of(number: usize) -> u64 {
    number as u64 % 8
}

fn add_one<S: Subject>(
    subject: &mut S,
    plan: &RoundsPlan,
    number: usize,
    source: Source,
    hits: Hits,
) -> Result<(), Error> {
    let trigger = plan.trigger;
    if plan.handlers == Handlers::EightTypes {
        match kind_of(number) {
            0 => subject.add(source, trigger, KindCount::<0>(hits)),
            1 => subject.add(source, trigger, KindCount::<1>(hits)),
            2 => subject.add(source, trigger, KindCount::<2>(hits)),
            3 => subject.add(source, trigger, KindCount::<3>(hits)),
            4 => subject.add(source, trigger, KindCount::<4>(hits)),
            5 => subject.add(source, trigger, KindCount::<5>(hits)),
            6 => subject.add(source, trigger, KindCount::<6>(hits)),
            _ => subject.add(source, trigger, KindCount::<7>(hits)),
        }?;
    } else if trigger == Trigger::Level {
        subject.add(source, trigger, DrainCount(hits))?;
    } else {
        subject.add(source, trigger, Count(hits))?;
    }
    Ok(())
}

/// Returns the order of firing: whole rounds of `ready` different sources each.
fn targets(plan: &RoundsPlan) -> Vec<usize> {
    let mut random = Random::new(42);
    let mut all: Vec<usize> = (0..plan.sources).collect();
    let rounds = SEQUENCE_ROUNDS_MIN.max(plan.sources / plan.ready);
    let mut targets = Vec::with_capacity(rounds * plan.ready);
    while targets.len() < rounds * plan.ready {
        random.shuffle(&mut all);
        for round in all.chunks_exact(plan.ready) {
            targets.extend_from_slice(round);
        }
    }
    targets
}

impl<S: Subject> Measured for Rounds<S> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let from = self.position;
        let before = alloc::counts();
        let started = Instant::now();
        let mut result = Ok(());
        counted(&mut || {
            result =
                run(&mut self.subject, &self.sequence, self.plan.ready, &mut self.position, rounds);
        });
        let ns = started.elapsed().as_nanos() as u64;
        let allocations = alloc::counts().allocations - before.allocations;
        result?;
        self.check(from, rounds)?;
        Ok(Outcome {
            ns,
            units: rounds * self.plan.ready as u64,
            turns: rounds,
            allocations,
            ..Outcome::default()
        })
    }
}

/// The measured loop: fires the sources of a round, and takes one turn.
#[inline(never)]
fn run<S: Subject>(
    subject: &mut S,
    sequence: &[Source],
    ready: usize,
    position: &mut usize,
    rounds: u64,
) -> Result<(), Error> {
    let mut at = *position;
    for _ in 0..rounds {
        for source in &sequence[at..at + ready] {
            source.fire();
        }
        subject.turn()?;
        at += ready;
        if at == sequence.len() {
            at = 0;
        }
    }
    *position = at;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::subject::NoTurns;
    use super::*;

    #[test]
    fn a_round_never_fires_a_source_twice_and_a_pass_is_fair() {
        for (sources, ready) in [(1, 1), (10, 1), (256, 64), (16, 16)] {
            let plan =
                RoundsPlan { sources, ready, trigger: Trigger::Edge, handlers: Handlers::Plain };
            let targets = targets(&plan);
            assert_eq!(targets.len() % ready, 0);
            for round in targets.chunks_exact(ready) {
                let mut round = round.to_vec();
                round.sort_unstable();
                round.dedup();
                assert_eq!(round.len(), ready);
            }
            assert!((0..sources).all(|source| targets.contains(&source)));
        }
    }

    /// A subject that drops its events must be detected.
    #[test]
    fn a_silent_subject_fails_the_check() {
        let plan =
            RoundsPlan { sources: 4, ready: 2, trigger: Trigger::Edge, handlers: Handlers::Plain };
        let mut rounds = Rounds::<NoTurns>::new(plan, "epoll", false).unwrap();
        assert!(rounds.slice(3).is_err());
    }
}
