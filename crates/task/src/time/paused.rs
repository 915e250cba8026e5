//! The clock of sleeps, and one that stands still, for tests.
//!
//! # How a paused clock moves
//!
//! 1. The executor reports the end of each round here. It is idle after two idle rounds in a row
//!    with a turn between them and without a poll. So events that are ready come first. If there
//!    are descriptors, a moment of real time must have passed between them: the kernel may still
//!    deliver what was sent through a socket.
//! 2. When it is idle and a call of [`advance`] waits, that call goes on.
//! 3. When it is idle otherwise, the clock moves to the first deadline, and a turn follows.

use core::{
    cell::{Cell, OnceCell, RefCell},
    future::poll_fn,
    task::{Poll, Waker},
};
use std::{
    collections::{BTreeSet, HashMap},
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{Builder, Key, NextTurn};

use crate::{
    handle::{Handle, with_local, with_turn},
    time::{after, custom::custom_now},
};

/// A call of [`advance`] goes on after so many rounds for each deadline, although tasks still run.
const ROUNDS_MAX: u32 = 16;

/// How long the kernel may take to deliver, in real time.
const DELIVERY_MAX: Duration = Duration::from_millis(1);

/// The current time, for deadlines, by the clock of the executor that runs on this thread: the
/// system's monotonic clock, the paused clock, or that of
/// [`windlass::Builder::clock`]. Without an executor it is the system's.
///
/// ```
/// use windlass_task::{block_on, time};
///
/// block_on(async { assert!(time::now() <= std::time::Instant::now()) });
/// ```
#[must_use]
pub fn now() -> Instant {
    own_now().unwrap_or_else(Instant::now)
}

/// The time of the executor's clock, if that is not the system's.
#[inline]
pub(super) fn own_now() -> Option<Instant> {
    if with_local(|local| local.limits.has_own_clock) == Some(true) { find_own_now() } else { None }
}

#[cold]
fn find_own_now() -> Option<Instant> {
    match Paused::current() {
        Some(paused) => Some(paused.clock.0.get()),
        None => custom_now(),
    }
}

/// Moves the paused clock. Sleeps that become due wake their tasks on the way, each at its time.
///
/// The clock stops at each deadline until no task can run. Tasks that never rest have sixteen
/// rounds. So a task that sleeps again sleeps from its own deadline on. A span of zero lets sleeps
/// be ready that are due now.
///
/// ```
/// use std::time::Duration;
/// use windlass_task::{Executor, spawn, time};
///
/// # fn main() -> std::io::Result<()> {
/// let mut executor = Executor::builder().paused_clock(true).build()?;
/// executor.block_on(async {
///     let task = spawn(time::sleep(Duration::from_secs(60)));
///     time::advance(Duration::from_secs(59)).await;
///     assert!(!task.is_finished());
///     time::advance(Duration::from_secs(1)).await;
///     assert!(task.is_finished());
/// });
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// If this thread runs no executor with a paused clock
/// ([`paused_clock`](crate::ExecutorBuilder::paused_clock)).
pub async fn advance(span: Duration) {
    let paused = Paused::current().expect(
        "`advance` needs an executor with a paused clock: build it with `paused_clock(true)`",
    );
    let target = after(paused.clock.0.get(), span);
    loop {
        // Tasks that were spawned before have started their sleeps by then.
        paused.settle().await;
        let Some(next) = paused.first().filter(|deadline| *deadline <= target) else { break };
        paused.move_to(next);
    }
    paused.move_to(target);
}

/// A clock that is moved by hand.
#[derive(Clone)]
pub(crate) struct VirtualClock(Rc<Cell<Instant>>);

impl VirtualClock {
    pub(crate) fn new() -> Self {
        Self(Rc::new(Cell::new(Instant::now())))
    }

    /// Makes it the clock of a reactor. Its timers are exact, because the clock stops at them.
    pub(crate) fn set(&self, settings: Builder) -> Builder {
        let time = Rc::clone(&self.0);
        settings.clock(move || time.get()).timer_resolution(Duration::from_nanos(1))
    }

    /// Makes it the clock of an executor.
    pub(crate) fn pause(self, handle: &Handle) {
        let slot = handle.extension::<PausedSlot>();
        slot.0.get_or_init(|| Rc::new(Paused::new(self)));
    }
}

#[derive(Default)]
struct PausedSlot(OnceCell<Rc<Paused>>);

/// The paused clock of one executor.
pub(super) struct Paused {
    clock: VirtualClock,
    /// The deadlines of all timers of sleeps.
    deadlines: RefCell<Deadlines>,
    /// Who waits for the executor to be idle.
    settling: RefCell<Vec<Waker>>,
    /// Rounds since the last call began to wait.
    rounds: Cell<u32>,
    /// The number of polls at the last idle round, and the real time of the first one with it.
    idle_at: Cell<Option<(u64, Instant)>>,
    /// How often the executor was idle.
    settled: Cell<u64>,
}

#[derive(Default)]
struct Deadlines {
    sorted: BTreeSet<(Instant, u64)>,
    by_key: HashMap<u64, Instant>,
}

impl Paused {
    fn new(clock: VirtualClock) -> Self {
        Self {
            clock,
            deadlines: RefCell::default(),
            settling: RefCell::default(),
            rounds: Cell::new(0),
            idle_at: Cell::new(None),
            settled: Cell::new(0),
        }
    }

    /// That of the executor that runs on this thread.
    #[inline]
    pub(super) fn current() -> Option<Rc<Self>> {
        if with_local(|local| local.limits.has_paused_clock) == Some(true) {
            Self::find()
        } else {
            None
        }
    }

    #[cold]
    fn find() -> Option<Rc<Self>> {
        let slot = Handle::current()?.extension::<PausedSlot>();
        slot.0.get().cloned()
    }

    /// Notes a timer.
    pub(super) fn add(&self, key: Key, deadline: Instant) {
        let mut deadlines = self.deadlines.borrow_mut();
        deadlines.sorted.insert((deadline, key.to_bits()));
        deadlines.by_key.insert(key.to_bits(), deadline);
    }

    /// Forgets a timer that has fired or is cancelled.
    pub(super) fn remove(&self, key: Key) {
        let mut deadlines = self.deadlines.borrow_mut();
        if let Some(deadline) = deadlines.by_key.remove(&key.to_bits()) {
            deadlines.sorted.remove(&(deadline, key.to_bits()));
        }
    }

    fn first(&self) -> Option<Instant> {
        self.deadlines.borrow().sorted.first().map(|(deadline, _)| *deadline)
    }

    fn move_to(&self, time: Instant) {
        let clock = &self.clock.0;
        clock.set(clock.get().max(time));
    }

    /// Waits until the executor is idle, or for some rounds.
    async fn settle(&self) {
        let before = self.settled.get();
        self.rounds.set(0);
        poll_fn(|context| {
            if self.settled.get() > before {
                return Poll::Ready(());
            }
            let waker = context.waker().clone();
            self.settling.borrow_mut().push(waker);
            Poll::Pending
        })
        .await;
    }

    /// Returns what follows, if it is not for the executor to say.
    fn after_round(
        &self,
        is_idle: bool,
        polls: u64,
        has_descriptors: impl FnOnce() -> bool,
    ) -> Option<NextTurn> {
        self.rounds.set(self.rounds.get() + 1);
        let before = self.idle_at.get().filter(|&(at, _)| is_idle && at == polls);
        let since = before.map(|(_, since)| since);
        // A ring ends waits for completions of its own, so the time counts, and not the wait.
        let left = match since {
            Some(since) if has_descriptors() => DELIVERY_MAX.saturating_sub(since.elapsed()),
            _ => Duration::ZERO,
        };
        let was_idle = since.is_some() && left.is_zero();
        self.idle_at.set(is_idle.then(|| (polls, since.unwrap_or_else(Instant::now))));
        let is_settling = !self.settling.borrow().is_empty();
        if is_settling && (was_idle || self.rounds.get() >= ROUNDS_MAX) {
            self.settled.set(self.settled.get() + 1);
            let wakers = self.settling.take();
            for waker in wakers {
                waker.wake();
            }
            return Some(NextTurn::Again);
        }
        let first = self.first();
        if !is_idle || (first.is_none() && !is_settling) {
            return None;
        }
        if was_idle {
            self.move_to(first?);
        } else if !left.is_zero() {
            // The wait takes real time, although this clock stands still.
            return Some(NextTurn::Until(after(self.clock.0.get(), left)));
        }
        Some(NextTurn::Again)
    }
}

/// Called after each round of an executor with a paused clock. Returns what follows, if it is not
/// for the executor to say.
#[cold]
pub(crate) fn after_paused_round(is_idle: bool) -> Option<NextTurn> {
    let polls = with_local(|local| local.counters.polls.get())?;
    Paused::current()?.after_round(is_idle, polls, || {
        with_turn(|turn| turn.stats().subscribers > 0).unwrap_or(false)
    })
}
