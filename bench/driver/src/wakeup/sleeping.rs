//! The time to wake a loop that sleeps, and the cost for the thread that wakes it.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use super::subject::{LoopSubject, Waker};
use crate::measured::{Error, Measured};
use crate::protocol::Outcome;
use crate::threads::{self, Padded, Watched, wait_until};
use crate::{affinity, clock};

pub(super) struct WakeSleeping<L> {
    backend: String,
    subject: PhantomData<L>,
}

impl<L: LoopSubject> WakeSleeping<L> {
    pub(super) fn new(backend: &str) -> Self {
        Self { backend: backend.into(), subject: PhantomData }
    }
}

/// The state that both threads use.
#[derive(Debug, Default)]
struct SharedState {
    /// Time of the handler's call, on the clock of both threads; zero before it.
    called_ns: Padded<AtomicU64>,
    calls: AtomicU64,
    stop: AtomicBool,
}

fn run<L: LoopSubject>(
    backend: &str,
    shared: &SharedState,
    hello: &Sender<(L::Waker, u32)>,
) -> Result<(), Error> {
    let mut subject = L::new(backend, Duration::ZERO)?;
    hello.send((subject.waker(), affinity::thread_number()))?;
    subject.run(&mut || {
        shared.calls.fetch_add(1, Ordering::Relaxed);
        shared.called_ns.0.store(clock::now_ns(), Ordering::Release);
        !shared.stop.load(Ordering::Acquire)
    })
}

impl<L: LoopSubject> Measured for WakeSleeping<L> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let shared = Arc::new(SharedState::default());
        let (send, receive) = channel();
        let thread = threads::opposite({
            let (backend, shared) = (self.backend.clone(), Arc::clone(&shared));
            move || run::<L>(&backend, &shared, &send)
        });
        let Ok((waker, number)) = receive.recv() else {
            threads::join(thread)?;
            return Err("the loop ended before it began".into());
        };
        let watched = Watched::new(number)?;
        let (mut ns, mut waker_ns) = (0, 0);
        // The first wake is a warm-up.
        for round in 0..=rounds {
            watched.wait_until_asleep()?;
            shared.called_ns.0.store(0, Ordering::Relaxed);
            let begun = clock::now_ns();
            waker.wake();
            let done = clock::now_ns();
            let called = || shared.called_ns.0.load(Ordering::Acquire);
            wait_until("call of the handler", || called() != 0)?;
            if round > 0 {
                ns += called().saturating_sub(begun);
                waker_ns += done - begun;
            }
        }
        let calls = shared.calls.load(Ordering::Relaxed);
        if calls != rounds + 1 {
            return Err(format!(
                "{} wakes of a sleeping loop had its handler called {calls} times",
                rounds + 1
            )
            .into());
        }
        watched.wait_until_asleep()?;
        shared.stop.store(true, Ordering::Release);
        waker.wake();
        threads::join(thread)?;
        let gauges = [("waker_ns_per_wake".to_owned(), waker_ns as f64 / rounds as f64)].into();
        Ok(Outcome { ns, units: rounds, turns: calls, gauges, ..Outcome::default() })
    }
}
