//! The cost of waking a loop that is awake.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use super::subject::{LoopSubject, Waker};
use crate::measured::{Error, Measured};
use crate::protocol::{Awake, Outcome};
use crate::threads::{self, Padded, wait_until};

/// Number of turns that a loop takes before the measurement.
const WARM_TURNS: u64 = 100;

pub(super) struct WakeRunning<L> {
    awake: Awake,
    backend: String,
    subject: PhantomData<L>,
}

impl<L: LoopSubject> WakeRunning<L> {
    pub(super) fn new(awake: Awake, backend: &str) -> Self {
        Self { awake, backend: backend.into(), subject: PhantomData }
    }
}

/// The state that both threads use.
#[derive(Debug, Default)]
struct SharedState {
    /// Number of calls of the handler.
    calls: Padded<AtomicU64>,
    /// The handler may return.
    release: Padded<AtomicBool>,
    /// The next call of the handler ends the loop.
    stop: AtomicBool,
}

impl SharedState {
    fn calls(&self) -> u64 {
        self.calls.0.load(Ordering::Acquire)
    }
}

fn run<L: LoopSubject>(
    awake: Awake,
    backend: &str,
    shared: &SharedState,
    waker: &Sender<L::Waker>,
) -> Result<(), Error> {
    let mut subject = L::new(backend, std::time::Duration::ZERO)?;
    let own = subject.waker();
    waker.send(subject.waker())?;
    subject.run(&mut || {
        let calls = shared.calls.0.fetch_add(1, Ordering::AcqRel) + 1;
        match awake {
            Awake::InHandler if calls == 1 => {
                while !shared.release.0.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
            }
            Awake::InHandler => {}
            Awake::Turning => own.wake(),
        }
        !shared.stop.load(Ordering::Acquire)
    })
}

impl<L: LoopSubject> Measured for WakeRunning<L> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let shared = Arc::new(SharedState::default());
        let (send, receive) = channel();
        let thread = threads::opposite({
            let (awake, backend, shared) = (self.awake, self.backend.clone(), Arc::clone(&shared));
            move || run::<L>(awake, &backend, &shared, &send)
        });
        let Ok(waker) = receive.recv() else {
            threads::join(thread)?;
            return Err("the loop ended before it began".into());
        };
        waker.wake();
        let warm = if self.awake == Awake::Turning { WARM_TURNS } else { 1 };
        wait_until("call of the handler", || shared.calls() >= warm)?;
        let calls = shared.calls();
        let started = Instant::now();
        for _ in 0..rounds {
            waker.wake();
        }
        let ns = started.elapsed().as_nanos() as u64;
        let turns = shared.calls() - calls;
        shared.release.0.store(true, Ordering::Release);
        // The wakes arrived during the handler or during the next turn.
        let seen = shared.calls();
        let seen = if self.awake == Awake::Turning { seen + 1 } else { 2 };
        wait_until("call of the handler after the wakes", || shared.calls() >= seen)?;
        shared.stop.store(true, Ordering::Release);
        waker.wake();
        threads::join(thread)?;
        Ok(Outcome { ns, units: rounds, turns, ..Outcome::default() })
    }
}
