//! The suite `kick`: a guest writes to a port, which becomes an event of the loop (ioeventfd), and
//! the handler interrupts the guest (irqfd). Without a guest, eventfds alone.

#[cfg(target_arch = "x86_64")]
#[path = "../../../examples/examples/kvm/machine.rs"]
mod machine;

use std::time::Instant;

use crate::alloc;
use crate::dispatch::{NoTurns, Subject};
use crate::measured::{Error, Measured, counted};
use crate::protocol::{Case, Outcome, Trigger};
use crate::source::{Handler, Hits, Source, SourcePool};

/// Sets up a case of this suite.
pub(crate) fn prepare<S: Subject>(
    case: &Case,
    backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    match *case {
        Case::Kick { guest: false } if idle => Ok(Box::new(Alone::<NoTurns>::new(backend, true)?)),
        Case::Kick { guest: false } => Ok(Box::new(Alone::<S>::new(backend, false)?)),
        Case::Kick { guest: true } => with_guest::prepare::<S>(backend),
        _ => Err("no case of the suite `kick`".into()),
    }
}

/// The handler of a device: takes the kicks, and interrupts the guest.
struct Answer {
    interrupt: Source,
    hits: Hits,
}

impl Handler for Answer {
    #[inline]
    fn handle(&mut self, source: Source) {
        source.drain();
        self.interrupt.fire();
        self.hits.add();
    }
}

/// Without a guest: the driver writes to the one eventfd and reads the other.
struct Alone<S> {
    /// Dropped before the pool, which owns the watched descriptors.
    subject: S,
    kick: Source,
    interrupt: Source,
    hits: Hits,
    /// Only the workload runs, so there is nothing to check.
    idle: bool,
    _pool: SourcePool,
}

impl<S: Subject> Alone<S> {
    fn new(backend: &str, idle: bool) -> Result<Self, Error> {
        let pool = SourcePool::new(2)?;
        let (kick, interrupt) = (pool.sources()[0], pool.sources()[1]);
        let (mut subject, hits) = (S::new(backend)?, Hits::default());
        subject.add(kick, Trigger::Level, Answer { interrupt, hits: hits.clone() })?;
        Ok(Self { subject, kick, interrupt, hits, idle, _pool: pool })
    }
}

impl<S: Subject> Measured for Alone<S> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let (expected, before) = (self.hits.count() + rounds, alloc::counts());
        let started = Instant::now();
        let mut result = Ok(0);
        counted(&mut || result = run(&mut self.subject, self.kick, self.interrupt, rounds));
        let ns = started.elapsed().as_nanos() as u64;
        let allocations = alloc::counts().allocations - before.allocations;
        let answers = result?;
        if !self.idle && (answers != rounds || self.hits.count() != expected) {
            return Err(format!("{rounds} kicks had {answers} answers").into());
        }
        Ok(Outcome { ns, units: rounds, turns: rounds, allocations, ..Outcome::default() })
    }
}

/// Returns the number of answers.
#[inline(never)]
fn run<S: Subject>(
    subject: &mut S,
    kick: Source,
    interrupt: Source,
    rounds: u64,
) -> Result<u64, Error> {
    let mut answers = 0;
    for _ in 0..rounds {
        kick.fire();
        subject.turn()?;
        answers += u64::from(interrupt.drain());
    }
    Ok(answers)
}

#[cfg(not(target_arch = "x86_64"))]
mod with_guest {
    use super::{Error, Measured, Subject};
    use crate::measured::Unsupported;

    pub(super) fn prepare<S: Subject>(_: &str) -> Result<Box<dyn Measured>, Error> {
        Err(Unsupported("the guest is a program for x86-64").into())
    }
}

#[cfg(target_arch = "x86_64")]
mod with_guest {
    use std::cell::Cell;
    use std::marker::PhantomData;
    use std::rc::Rc;

    use super::machine::{Machine, machine, refusal};
    use super::{Answer, Handler, Hits, Source, SourcePool, Subject, Trigger};
    use crate::measured::{Error, Measured, Unsupported};
    use crate::protocol::Outcome;
    use crate::source::{Count, Fuse};
    use crate::tasks::{Lap, Laps};
    use crate::threads;

    /// Sets up the case, if there can be a machine.
    pub(super) fn prepare<S: Subject>(backend: &str) -> Result<Box<dyn Measured>, Error> {
        threads::check_processors()?;
        if refusal().is_some() {
            return Err(Unsupported("/dev/kvm cannot be opened").into());
        }
        drop(S::new(backend)?);
        Ok(Box::new(WithGuest::<S> { backend: backend.into(), subject: PhantomData }))
    }

    /// Notes the time from one kick to the next: the way of an answer to the guest, and back.
    struct Timed {
        answer: Answer,
        laps: Rc<Laps>,
        lap: Cell<Option<Lap>>,
    }

    impl Handler for Timed {
        #[inline]
        fn handle(&mut self, source: Source) {
            self.answer.handle(source);
            match self.lap.get_mut() {
                Some(lap) => self.laps.record(lap),
                // The first kick comes when the guest has begun.
                none => *none = Some(self.laps.lap()),
            }
        }
    }

    struct WithGuest<S> {
        backend: String,
        subject: PhantomData<S>,
    }

    impl<S: Subject> Measured for WithGuest<S> {
        fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
            let (machine, processor) = machine(u32::try_from(rounds)?)?;
            let guest = move || Ok(processor.run().map(drop)?);
            self.run(&machine, guest, rounds)
        }
    }

    impl<S: Subject> WithGuest<S> {
        /// Takes turns until the guest has kicked so often, or has ended before.
        fn run(
            &self,
            machine: &Machine,
            guest: impl FnOnce() -> Result<(), Error> + Send + 'static,
            rounds: u64,
        ) -> Result<Outcome, Error> {
            let pool = SourcePool::new(3)?;
            let [kick, interrupt, end] = pool.sources()[..] else { unreachable!("it has three") };
            let (laps, hits) = (Rc::new(Laps::new(rounds)), Hits::default());
            let ends = Hits::default();
            let mut subject = S::new(&self.backend)?;
            let answer = Answer { interrupt, hits: hits.clone() };
            let handler = Timed { answer, laps: Rc::clone(&laps), lap: Cell::new(None) };
            subject.add(kick, Trigger::Level, handler)?;
            // Its handler does not read, so a subject that misses one event has another.
            subject.add(end, Trigger::Level, Count(ends.clone()))?;
            machine.plug(0, pool.descriptor(0), pool.descriptor(1))?;
            let fuse = Fuse::new(pool.descriptor(2))?;
            let guest = threads::opposite(move || {
                // Dropped by a panic, too.
                let _fuse = fuse;
                guest()
            });
            laps.start();
            while hits.count() < rounds && ends.count() == 0 {
                subject.turn()?;
            }
            laps.stop(hits.count());
            threads::join(guest)?;
            machine.unplug(0, pool.descriptor(0), pool.descriptor(1))?;
            if u64::from(machine.answers(0)) != rounds {
                return Err(format!("{rounds} kicks had {} answers", machine.answers(0)).into());
            }
            laps.outcome(rounds)
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::epoll::Epoll;
        use crate::source::Device;
        use std::os::fd::AsFd;

        /// Fails where nothing happens for as long as other threads are waited for.
        struct Impatient {
            set: Epoll,
            handlers: Vec<Box<dyn FnMut()>>,
        }

        impl Subject for Impatient {
            type Key = ();

            fn new(_: &str) -> Result<Self, Error> {
                Ok(Self { set: Epoll::new()?, handlers: Vec::new() })
            }

            fn add<H: Handler>(
                &mut self,
                source: Source,
                _: Trigger,
                mut handler: H,
            ) -> Result<(), Error> {
                self.set.watch(source.as_fd(), self.handlers.len() as u64)?;
                self.handlers.push(Box::new(move || handler.handle(source)));
                Ok(())
            }

            fn add_device(&mut self, _: [Source; 4], _: Trigger, _: Device) -> Result<(), Error> {
                unreachable!("the suite has none")
            }

            fn delete(&mut self, (): ()) -> Result<(), Error> {
                unreachable!("the suite deletes nothing")
            }

            fn turn(&mut self) -> std::io::Result<()> {
                let set = std::cell::RefCell::new(&mut self.set);
                let ready = Cell::new(None);
                threads::wait_until("event", || {
                    ready.set(set.borrow_mut().ready().ok().and_then(|mut ready| ready.next()));
                    ready.get().is_some()
                })
                .map_err(|error| std::io::Error::other(error.to_string()))?;
                ready.take().into_iter().for_each(|number| self.handlers[number as usize]());
                Ok(())
            }
        }

        /// Runs a guest that does not kick as often as it is asked to.
        fn failure(guest: impl FnOnce() -> Result<(), Error> + Send + 'static) -> Option<String> {
            if let Some(reason) = refusal() {
                eprintln!("skipped here: a guest that fails: {reason}");
                return None;
            }
            let (machine, _processor) = machine(1).expect("a machine");
            let subject = WithGuest::<Impatient> { backend: String::new(), subject: PhantomData };
            Some(subject.run(&machine, guest, 1).expect_err("it fails").to_string())
        }

        #[test]
        fn a_guest_that_fails_ends_the_slice_with_its_error() {
            let lost = failure(|| Err("the processor is lost".into()));
            assert!(lost.is_none_or(|reason| reason == "the processor is lost"));
        }

        #[test]
        fn a_guest_that_ends_too_early_fails_the_check() {
            let early = failure(|| Ok(()));
            assert!(early.is_none_or(|reason| reason == "1 kicks had 0 answers"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_that_answers_nothing_fails_the_check() {
        let mut silent = Alone::<NoTurns>::new("epoll", false).expect("it has eventfds");
        assert!(silent.slice(4).is_err());
        let mut idle = Alone::<NoTurns>::new("epoll", true).expect("the same");
        assert_eq!(idle.slice(4).map(|outcome| outcome.units).ok(), Some(4));
    }
}
