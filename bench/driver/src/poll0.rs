//! The suite `poll0`: a turn that does not wait, and finds no event or one.

use std::io;
use std::time::Instant;

use crate::alloc;
use crate::dispatch::{NoTurns, Ready, Subject, TakeTurn};
use crate::measured::{Error, Measured, counted};
use crate::protocol::{Case, Outcome, Trigger};
use crate::source::{DrainCount, Hits, Source, SourcePool};

/// A reactor that can take a turn without waiting.
pub trait PollSubject: Subject {
    /// Takes a turn like [`Subject::turn`], but without waiting. It is `#[inline(always)]` for the
    /// same reason.
    ///
    /// # Errors
    ///
    /// If the wait fails.
    fn turn_at_once(&mut self) -> io::Result<()>;
}

impl PollSubject for NoTurns {
    #[inline(always)]
    fn turn_at_once(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Turns that do not wait.
struct AtOnce;

impl<S: PollSubject> TakeTurn<S> for AtOnce {
    #[inline(always)]
    fn take(subject: &mut S) -> io::Result<()> {
        subject.turn_at_once()
    }
}

struct Asking<S> {
    /// Dropped before the pool, which owns the watched descriptors.
    subject: S,
    sources: Vec<Source>,
    hits: Vec<Hits>,
    /// Number of times that the checks have fired a source. They fire the sources in turn.
    fired: u64,
    /// Only the workload runs, so there is nothing to check.
    idle: bool,
    _pool: SourcePool,
}

/// Sets up a case of this suite.
pub(crate) fn prepare<S: PollSubject>(
    case: &Case,
    backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    if let Case::ReadyTurn { registered } = *case {
        return Ok(if idle {
            Box::new(Ready::<NoTurns, AtOnce>::new(registered, backend, idle)?)
        } else {
            Box::new(Ready::<S, AtOnce>::new(registered, backend, idle)?)
        });
    }
    Ok(if idle {
        Box::new(Asking::<NoTurns>::new(case, backend, idle)?)
    } else {
        Box::new(Asking::<S>::new(case, backend, idle)?)
    })
}

impl<S: PollSubject> Asking<S> {
    fn new(case: &Case, backend: &str, idle: bool) -> Result<Self, Error> {
        let Case::EmptyTurn { registered } = *case else {
            return Err("no case of the suite `poll0`".into());
        };
        let pool = SourcePool::new(registered)?;
        let sources = pool.sources();
        let hits: Vec<Hits> = sources.iter().map(|_| Hits::default()).collect();
        let mut subject = S::new(backend)?;
        for (&source, hits) in sources.iter().zip(&hits) {
            subject.add(source, Trigger::Level, DrainCount(hits.clone()))?;
        }
        // This turn does the delayed work of registering.
        subject.turn_at_once()?;
        Ok(Self { subject, sources, hits, fired: 0, idle, _pool: pool })
    }

    /// Checks that no event was reported until now, and that the next turn reports one at once.
    fn check(&mut self) -> Result<(), Error> {
        let came = |hits: &[Hits]| hits.iter().map(Hits::count).sum::<u64>();
        if came(&self.hits) != self.fired {
            return Err("a handler ran in an empty turn".into());
        }
        let place = self.fired as usize % self.sources.len();
        let before = self.hits[place].count();
        self.sources[place].fire();
        self.fired += 1;
        self.subject.turn_at_once()?;
        if self.hits[place].count() != before + 1 || came(&self.hits) != self.fired {
            return Err("a source was ready and its handler has not run once".into());
        }
        // This turn does delayed work after the event, such as arming a poll again.
        Ok(self.subject.turn_at_once()?)
    }
}

impl<S: PollSubject> Measured for Asking<S> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let before = alloc::counts();
        let started = Instant::now();
        let mut result = Ok(());
        counted(&mut || result = run(&mut self.subject, rounds));
        let ns = started.elapsed().as_nanos() as u64;
        let allocations = alloc::counts().allocations - before.allocations;
        result?;
        if !self.idle {
            self.check()?;
        }
        Ok(Outcome { ns, units: rounds, turns: rounds, allocations, ..Outcome::default() })
    }
}

#[inline(never)]
fn run<S: PollSubject>(subject: &mut S, rounds: u64) -> io::Result<()> {
    for _ in 0..rounds {
        // `black_box` keeps the compiler from moving anything out of the loop.
        std::hint::black_box(&mut *subject).turn_at_once()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Handler;

    /// Runs a handler without an event, or no handler at all.
    struct Wrong {
        handlers: Vec<(Box<dyn FnMut()>, bool)>,
        runs_unasked: bool,
    }

    impl Subject for Wrong {
        type Key = ();

        fn new(backend: &str) -> Result<Self, Error> {
            Ok(Self { handlers: Vec::new(), runs_unasked: backend == "eager" })
        }

        fn add<H: Handler>(
            &mut self,
            source: Source,
            _: Trigger,
            mut handler: H,
        ) -> Result<(), Error> {
            self.handlers.push((Box::new(move || handler.handle(source)), self.runs_unasked));
            Ok(())
        }

        fn add_device(
            &mut self,
            _: [Source; 4],
            _: Trigger,
            _: crate::source::Device,
        ) -> Result<(), Error> {
            Err("none are added here".into())
        }

        fn delete(&mut self, (): ()) -> Result<(), Error> {
            Ok(())
        }

        fn turn(&mut self) -> io::Result<()> {
            self.turn_at_once()
        }
    }

    impl PollSubject for Wrong {
        fn turn_at_once(&mut self) -> io::Result<()> {
            self.handlers.iter_mut().filter(|(_, runs)| *runs).for_each(|(handler, _)| handler());
            Ok(())
        }
    }

    #[test]
    fn a_subject_that_finds_nothing_or_too_much_fails_the_check() {
        for backend in ["eager", "blind"] {
            let mut measured =
                prepare::<Wrong>(&Case::EmptyTurn { registered: 3 }, backend, false).unwrap();
            assert!(measured.slice(2).is_err(), "{backend}");
        }
    }
}
