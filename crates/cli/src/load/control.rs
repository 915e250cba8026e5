//! What the workers share: the clock, the common start and end, and what the progress bar shows.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};

use super::{
    course::Nanos,
    tally::{Sample, Tally},
};

/// Nanoseconds since the program has begun, the same for all workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    #[inline]
    pub(crate) fn now(self) -> Nanos {
        self.0.elapsed().as_nanos() as Nanos
    }

    /// The moment for a timer. `None`: so late that nobody lives to see it.
    pub(crate) fn instant(self, moment: Nanos) -> Option<Instant> {
        self.0.checked_add(Duration::from_nanos(moment))
    }

    /// What this process has used of the processors, all of its threads together.
    pub(crate) fn sample(self) -> Sample {
        let used =
            clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("every process has this clock");
        Sample { at: self.now(), cpu: Duration::from(used).as_nanos() as Nanos }
    }
}

/// If so many connections could not be opened, and none could, the others are not tried.
const GIVE_UP_AFTER: u64 = 100;

/// What the workers tell each other. Nothing here changes with a message.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) clock: Clock,
    workers: usize,
    ready: AtomicUsize,
    done: AtomicUsize,
    /// When the first message is to be sent; 0 until every worker is ready.
    origin: AtomicU64,
    /// The signal that has asked for the end; 0 if none has.
    signal: AtomicI32,
    /// Connections that were opened so far.
    pub(crate) opened: AtomicU64,
    /// Connections that could not be opened.
    unopened: AtomicU64,
    /// There is no point in going on: each worker stops at its next tick.
    is_given_up: AtomicBool,
    /// Measured messages that were answered so far, as of the last tick of each worker.
    pub(crate) answered: AtomicU64,
    total: Mutex<Tally>,
}

impl Control {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            clock: Clock::start(),
            workers,
            ready: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            origin: AtomicU64::new(0),
            signal: AtomicI32::new(0),
            opened: AtomicU64::new(0),
            unopened: AtomicU64::new(0),
            is_given_up: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            total: Mutex::new(Tally::new()),
        }
    }

    /// A worker has all of its connections. The last one to say so decides when all begin.
    pub(crate) fn ready(&self, delay: Duration) {
        if self.ready.fetch_add(1, Relaxed) + 1 == self.workers {
            let delay = if self.workers == 1 { 0 } else { delay.as_nanos() as Nanos };
            self.origin.store(self.clock.now().max(1) + delay, Relaxed);
        }
    }

    /// When the first message is to be sent, once that is known.
    pub(crate) fn origin(&self) -> Option<Nanos> {
        Some(self.origin.load(Relaxed)).filter(|&origin| origin > 0)
    }

    /// A worker has nothing more to do. Whether it was the last one.
    pub(crate) fn is_last_to_end(&self) -> bool {
        self.done.fetch_add(1, Relaxed) + 1 == self.workers
    }

    /// Somebody wants the end. Whether he had asked for it before.
    pub(crate) fn interrupt(&self, signal: i32) -> bool {
        self.signal.swap(signal, Relaxed) != 0
    }

    /// The number of the signal that has asked for the end.
    pub(crate) fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Relaxed)).filter(|&signal| signal != 0)
    }

    /// A connection could not be opened. If none can, there is no point in trying all of them.
    pub(crate) fn unopened(&self) {
        let unopened = self.unopened.fetch_add(1, Relaxed) + 1;
        if unopened >= GIVE_UP_AFTER && self.opened.load(Relaxed) == 0 {
            self.give_up();
        }
    }

    /// Ends it all. Whether somebody has before.
    pub(crate) fn give_up(&self) -> bool {
        self.is_given_up.swap(true, Relaxed)
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Relaxed)
    }

    /// Takes over what a worker has measured.
    pub(crate) fn deliver(&self, tally: &Tally) {
        self.total.lock().unwrap_or_else(PoisonError::into_inner).add(tally);
    }

    /// What all workers have delivered.
    pub(crate) fn into_total(self) -> Tally {
        self.total.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
