//! The suite `poll0`: a turn that asks and finds nothing.

use std::io;
use std::time::Instant;

use crate::alloc;
use crate::dispatch::{Idle, Subject};
use crate::measured::{Error, Measured, counted};
use crate::protocol::{Case, Outcome, Trigger};
use crate::source::{DrainCount, Hits, Source, SourcePool};

/// A reactor that can take a turn without waiting.
pub trait PollSubject: Subject {
    /// A turn as [`Subject::turn`], but for what is ready now: it does not wait.
    /// `#[inline(always)]` for the same reason.
    ///
    /// # Errors
    ///
    /// If asking fails.
    fn turn_at_once(&mut self) -> io::Result<()>;
}

impl PollSubject for Idle {
    #[inline(always)]
    fn turn_at_once(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Asking<S> {
    /// Dropped before the pool, whose descriptors it watches.
    subject: S,
    sources: Vec<Source>,
    hits: Vec<Hits>,
    /// How often the checks have fired each source, round and round.
    fired: u64,
    /// It is the workload alone: nothing is found, and nobody looks whether it is.
    idle: bool,
    _pool: SourcePool,
}

/// Sets a case of this suite up.
pub(crate) fn prepare<S: PollSubject>(
    case: &Case,
    backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    Ok(if idle {
        Box::new(Asking::<Idle>::new(case, backend, idle)?)
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
        // What registering has left to do.
        subject.turn_at_once()?;
        Ok(Self { subject, sources, hits, fired: 0, idle, _pool: pool })
    }

    /// Nothing has come until now; and who asks for nothing in vain also finds something, at once.
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
        // What the handler has left to do: a poll is armed again.
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
        // The subject may be somebody else's for all that the compiler knows: nothing is moved out
        // of the loop.
        std::hint::black_box(&mut *subject).turn_at_once()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Handler;

    /// Runs a handler that nobody has asked for, or none at all.
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
