//! Closures that a loop runs for another thread, which waits for the results.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::alloc::{self, CountMode, counting};
use crate::measured::{Error, Measured};
use crate::protocol::Outcome;
use crate::threads;

/// Number of calls whose allocations are counted when the case is set up.
const COUNTED_CALLS: u64 = 1000;

/// A loop that runs closures for other threads. It is created and runs on one thread.
pub trait CallSubject: Sized + 'static {
    /// The handle of a calling thread.
    type Caller: Caller;

    /// Creates one on the named backend, with space for `bound` queued calls. It spins for up to
    /// `spin` before it sleeps.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::measured::Unsupported) if it cannot spin; otherwise the kernel's
    /// error.
    fn new(backend: &str, bound: usize, spin: Duration) -> Result<Self, Error>;

    /// Returns another handle.
    fn caller(&self) -> Self::Caller;

    /// Runs the called closures until it is stopped.
    ///
    /// # Errors
    ///
    /// If a wait fails.
    fn run(&mut self) -> Result<(), Error>;
}

/// Calls a [`CallSubject`] from any thread.
pub trait Caller: Send + 'static {
    /// Runs a closure on the loop that returns [`answer`]`(argument)`, and waits for its result.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    fn call(&mut self, argument: u64) -> Result<u64, Error>;

    /// Ends the loop.
    fn stop(self);
}

thread_local! {
    /// True on the loop's thread.
    static IS_LOOP: Cell<bool> = const { Cell::new(false) };
}

/// The result of a call's closure: the argument plus one, if it runs on the loop's thread.
pub fn answer(argument: u64) -> u64 {
    if IS_LOOP.get() { argument + 1 } else { u64::MAX }
}

pub(super) struct Call<C> {
    bound: usize,
    spin: Duration,
    backend: String,
    allocations_per_call: f64,
    subject: PhantomData<C>,
}

impl<C: CallSubject> Call<C> {
    pub(super) fn new(bound: usize, spin: Duration, backend: &str) -> Result<Self, Error> {
        // An error occurs here with its type, and not as the text of a thread's error.
        drop(C::new(backend, bound, spin)?);
        let mut case = Self {
            bound,
            spin,
            backend: backend.into(),
            allocations_per_call: 0.0,
            subject: PhantomData,
        };
        let _counting = counting(CountMode::AnyThread);
        let (_, allocations) = case.run(COUNTED_CALLS)?;
        case.allocations_per_call = allocations as f64 / COUNTED_CALLS as f64;
        Ok(case)
    }

    /// Measures the time and the allocations of some calls.
    fn run(&self, calls: u64) -> Result<(u64, u64), Error> {
        let (send, receive) = channel();
        let thread = threads::opposite({
            let (backend, bound, spin) = (self.backend.clone(), self.bound, self.spin);
            move || {
                IS_LOOP.set(true);
                let mut subject = C::new(&backend, bound, spin)?;
                send.send(subject.caller())?;
                subject.run()
            }
        });
        let Ok(mut caller) = receive.recv() else {
            threads::join(thread)?;
            return Err("the loop ended before it began".into());
        };
        // The first call is a warm-up.
        check(caller.call(0)?, 0)?;
        let before = alloc::counts();
        let started = Instant::now();
        for argument in 0..calls {
            check(caller.call(argument)?, argument)?;
        }
        let ns = started.elapsed().as_nanos() as u64;
        let allocations = alloc::counts().allocations - before.allocations;
        caller.stop();
        threads::join(thread)?;
        Ok((ns, allocations))
    }
}

fn check(answered: u64, argument: u64) -> Result<(), Error> {
    if answered == argument + 1 {
        return Ok(());
    }
    Err(format!("the answer to {argument} was {answered}, or given on another thread").into())
}

impl<C: CallSubject> Measured for Call<C> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let _counting = counting(CountMode::Not);
        let (ns, _) = self.run(rounds)?;
        let gauges = [("allocations_per_call".to_owned(), self.allocations_per_call)].into();
        Ok(Outcome { ns, units: rounds, gauges, ..Outcome::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_on_the_thread_of_the_loop_alone() {
        assert!(check(answer(4), 4).is_err());
        IS_LOOP.set(true);
        assert!(check(answer(4), 4).is_ok());
        assert!(check(answer(4), 5).is_err());
    }
}
