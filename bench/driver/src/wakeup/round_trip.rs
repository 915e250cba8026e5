//! Two loops that wake each other in turn.

use std::marker::PhantomData;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::subject::{LoopSubject, Waker};
use crate::measured::{Error, Measured};
use crate::protocol::Outcome;
use crate::threads;

/// Number of round trips before the clock starts.
const WARM_ROUNDS: u64 = 16;

pub(crate) struct RoundTrip<L> {
    spin: Duration,
    backend: String,
    subject: PhantomData<L>,
}

impl<L: LoopSubject> RoundTrip<L> {
    /// Without a spin. Its errors occur now, and not on a thread during a slice.
    pub(crate) fn checked(backend: &str) -> Result<Self, Error> {
        drop(L::new(backend, Duration::ZERO)?);
        Ok(Self::new(Duration::ZERO, backend))
    }

    pub(super) fn new(spin: Duration, backend: &str) -> Self {
        Self { spin, backend: backend.into(), subject: PhantomData }
    }
}

/// The loop that answers.
struct Answering<W> {
    spin: Duration,
    backend: String,
    calls_max: u64,
    own: Sender<W>,
    other: Receiver<W>,
}

impl<W: Waker> Answering<W> {
    fn run<L: LoopSubject<Waker = W>>(self) -> Result<(), Error> {
        let mut subject = L::new(&self.backend, self.spin)?;
        self.own.send(subject.waker())?;
        let other = self.other.recv()?;
        let mut calls = 0;
        subject.run(&mut || {
            calls += 1;
            other.wake();
            calls < self.calls_max
        })
    }
}

impl<L: LoopSubject> Measured for RoundTrip<L> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let calls_max = rounds + WARM_ROUNDS;
        let mut subject = L::new(&self.backend, self.spin)?;
        let (send_other, other) = channel();
        let (own, receive) = channel();
        let answering =
            Answering { spin: self.spin, backend: self.backend.clone(), calls_max, own, other };
        let thread = threads::opposite(move || answering.run::<L>());
        let Ok(waker) = receive.recv() else {
            threads::join(thread)?;
            return Err("the loop ended before it began".into());
        };
        send_other.send(subject.waker())?;
        let mut started = Instant::now();
        let mut calls = 0;
        waker.wake();
        subject.run(&mut || {
            calls += 1;
            if calls == WARM_ROUNDS {
                started = Instant::now();
            }
            let goes_on = calls < calls_max;
            if goes_on {
                waker.wake();
            }
            goes_on
        })?;
        let ns = started.elapsed().as_nanos() as u64;
        // The other loop has answered every wake, because otherwise this wait would not have ended.
        threads::join(thread)?;
        Ok(Outcome { ns, units: rounds, turns: calls, ..Outcome::default() })
    }
}
