//! The suite `timers`: starting, cancelling, resetting and firing, while many timers wait.

use std::time::{Duration, Instant};

use crate::alloc;
use crate::measured::{Error, Measured, counted};
use crate::protocol::{Case, Outcome};
use crate::random::Random;
use crate::source::Hits;

/// A library's timers.
pub trait TimerSubject: Sized + 'static {
    /// Identifies a timer. Dropping it must not cancel the timer.
    type Key;

    /// Creates one on the named backend.
    ///
    /// # Errors
    ///
    /// If it does not have this backend, or if the kernel returns an error.
    fn new(backend: &str) -> Result<Self, Error>;

    /// Starts a timer that counts in `fired` at `deadline`.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    fn insert(&mut self, deadline: Instant, fired: Hits) -> Result<Self::Key, Error>;

    /// Starts a timer that counts in `fired` once in every period.
    /// [`Unsupported`](crate::measured::Unsupported) if the library's resolution is coarser than
    /// the period.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    fn every(&mut self, period: Duration, fired: Hits) -> Result<(), Error>;

    /// Cancels a timer that has not fired.
    ///
    /// # Errors
    ///
    /// If there is no such timer.
    fn cancel(&mut self, key: Self::Key) -> Result<(), Error>;

    /// Resets a timer that has not fired to another deadline.
    ///
    /// # Errors
    ///
    /// If there is no such timer.
    fn reset(&mut self, key: &mut Self::Key, deadline: Instant) -> Result<(), Error>;

    /// Fires the due timers, without waiting for others.
    ///
    /// # Errors
    ///
    /// If the wait fails.
    fn turn(&mut self) -> Result<(), Error>;
}

/// Turns that are not measured, before those beside timers.
const WARM_TURNS: u32 = 100;

/// Sets up a case of this suite.
pub(crate) fn prepare<T: TimerSubject>(
    case: &Case,
    backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    Ok(match *case {
        Case::TurnBeside { .. } if idle => Box::new(Beside::<T>(None)),
        Case::TurnBeside { alive } => {
            let mut beside = Alive::<T>::new(alive, backend, Step::Reset)?;
            // Windlass looks at far timers in another way after some turns.
            (0..WARM_TURNS).try_for_each(|_| beside.subject.turn())?;
            Box::new(Beside::<T>(Some(beside)))
        }
        _ if idle => return Err("only turns of the suite `timers` can be idle".into()),
        Case::InsertCancel { alive } => Box::new(Alive::<T>::new(alive, backend, Step::Pair)?),
        Case::Reset { alive } => Box::new(Alive::<T>::new(alive, backend, Step::Reset)?),
        Case::Insert { count } => Box::new(Insert::<T>::new(count, backend)),
        Case::Fire { count } => Box::new(Fire::<T>::new(count, backend)),
        Case::Every { period_ns } => Box::new(Every::<T>::new(period_ns, backend)?),
        _ => return Err("no case of the suite `timers`".into()),
    })
}

/// Deadlines that do not pass during the measurement: between one and two hours away.
struct Far {
    random: Random,
    base: Instant,
}

impl Far {
    fn new() -> Self {
        Self { random: Random::new(7), base: Instant::now() + Duration::from_secs(3600) }
    }

    fn next(&mut self) -> Instant {
        self.base + Duration::from_nanos(self.random.next() % 3_600_000_000_000)
    }
}

#[derive(Clone, Copy)]
enum Step {
    /// Starts a timer and cancels it.
    Pair,
    /// Resets a timer.
    Reset,
}

/// Deadlines and targets, which are drawn before a slice so that this is not timed.
const DRAWN: usize = 4096;

struct Alive<T: TimerSubject> {
    subject: T,
    keys: Vec<T::Key>,
    fired: Hits,
    far: Far,
    step: Step,
    bytes_per_timer: f64,
}

impl<T: TimerSubject> Alive<T> {
    fn new(alive: usize, backend: &str, step: Step) -> Result<Self, Error> {
        let mut subject = T::new(backend)?;
        let fired = Hits::default();
        let mut far = Far::new();
        let mut keys = Vec::with_capacity(alive);
        let before = alloc::counts().live_bytes;
        for _ in 0..alive {
            keys.push(subject.insert(far.next(), fired.clone())?);
        }
        let bytes = alloc::counts().live_bytes - before;
        let bytes_per_timer = bytes as f64 / alive.max(1) as f64;
        Ok(Self { subject, keys, fired, far, step, bytes_per_timer })
    }

    fn run(&mut self, rounds: u64, drawn: &[(Instant, usize)]) -> Result<(), Error> {
        for (_, &(deadline, target)) in (0..rounds).zip(drawn.iter().cycle()) {
            match self.step {
                Step::Pair => {
                    let key = self.subject.insert(deadline, self.fired.clone())?;
                    self.subject.cancel(key)?;
                }
                Step::Reset => self.subject.reset(&mut self.keys[target], deadline)?,
            }
        }
        Ok(())
    }
}

impl<T: TimerSubject> Measured for Alive<T> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let drawn: Vec<(Instant, usize)> = (0..DRAWN)
            .map(|_| {
                let target = self.far.random.below(self.keys.len().max(1));
                (self.far.next(), target)
            })
            .collect();
        let before = alloc::counts();
        let started = Instant::now();
        let mut result = Ok(());
        counted(&mut || result = self.run(rounds, &drawn));
        let ns = started.elapsed().as_nanos() as u64;
        let allocations = alloc::counts().allocations - before.allocations;
        result?;
        self.subject.turn()?;
        if self.fired.count() != 0 {
            return Err(format!("{} timers fired an hour early", self.fired.count()).into());
        }
        let gauges = [("bytes_per_timer".to_owned(), self.bytes_per_timer)].into();
        Ok(Outcome { ns, units: rounds, turns: 0, allocations, gauges })
    }
}

/// Turns beside timers that wait; without a subject, nothing.
struct Beside<T: TimerSubject>(Option<Alive<T>>);

impl<T: TimerSubject> Measured for Beside<T> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let before = alloc::counts();
        let started = Instant::now();
        let mut result = Ok(());
        counted(&mut || {
            for _ in 0..rounds {
                // `black_box` keeps the compiler from moving anything out of the loop.
                let alive = std::hint::black_box(&mut self.0);
                if let Some(alive) = alive.as_mut().filter(|_| result.is_ok()) {
                    result = alive.subject.turn();
                }
            }
        });
        let ns = started.elapsed().as_nanos() as u64;
        let allocations = alloc::counts().allocations - before.allocations;
        result?;
        if self.0.as_ref().is_some_and(|alive| alive.fired.count() != 0) {
            return Err("a timer fired an hour early".into());
        }
        Ok(Outcome { ns, units: rounds, turns: rounds, allocations, ..Outcome::default() })
    }
}

/// Starts `count` timers in an empty subject. All of them are a round.
struct Insert<T> {
    count: usize,
    backend: String,
    subject: std::marker::PhantomData<T>,
}

impl<T: TimerSubject> Insert<T> {
    fn new(count: usize, backend: &str) -> Self {
        Self { count, backend: backend.into(), subject: std::marker::PhantomData }
    }
}

impl<T: TimerSubject> Measured for Insert<T> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        for _ in 0..rounds {
            let mut subject = T::new(&self.backend)?;
            let fired = Hits::default();
            let mut far = Far::new();
            let deadlines: Vec<Instant> = (0..self.count).map(|_| far.next()).collect();
            let mut keys = Vec::with_capacity(self.count);
            let before = alloc::counts();
            let started = Instant::now();
            let mut result = Ok(());
            counted(&mut || {
                for &deadline in &deadlines {
                    match subject.insert(deadline, fired.clone()) {
                        Ok(key) => keys.push(key),
                        Err(error) => {
                            result = Err(error);
                            return;
                        }
                    }
                }
            });
            outcome.ns += started.elapsed().as_nanos() as u64;
            outcome.allocations += alloc::counts().allocations - before.allocations;
            result?;
            outcome.units += self.count as u64;
            for key in keys {
                subject.cancel(key)?;
            }
        }
        Ok(outcome)
    }
}

/// Fires `count` timers that are all due when the clock starts. All of them are a round.
struct Fire<T> {
    count: usize,
    backend: String,
    subject: std::marker::PhantomData<T>,
}

impl<T: TimerSubject> Fire<T> {
    fn new(count: usize, backend: &str) -> Self {
        Self { count, backend: backend.into(), subject: std::marker::PhantomData }
    }
}

/// The range of the deadlines of the timers to fire.
const FIRE_SPAN: Duration = Duration::from_millis(50);

impl<T: TimerSubject> Measured for Fire<T> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        for _ in 0..rounds {
            let mut subject = T::new(&self.backend)?;
            let fired = Hits::default();
            let mut random = Random::new(11);
            // Far enough away that all timers are started before the first is due. Some libraries
            // fire late timers at once, and would do other work.
            let base = Instant::now() + Duration::from_micros(4 * self.count as u64);
            let span = FIRE_SPAN.as_nanos() as u64;
            let mut keys = Vec::with_capacity(self.count);
            for _ in 0..self.count {
                let deadline = base + Duration::from_nanos(random.next() % span);
                keys.push(subject.insert(deadline, fired.clone())?);
            }
            // Two milliseconds more, for libraries that round deadlines up to a millisecond.
            let all_due = base + FIRE_SPAN + Duration::from_millis(2);
            // sleep: the deadlines must pass before the measurement begins.
            std::thread::sleep(all_due.saturating_duration_since(Instant::now()));
            if fired.count() != 0 {
                return Err("a timer fired outside a turn".into());
            }
            let before = alloc::counts();
            let started = Instant::now();
            let expected = self.count as u64;
            let mut result = Ok(());
            let mut turns = 0;
            counted(&mut || {
                while fired.count() < expected && result.is_ok() {
                    result = subject.turn();
                    turns += 1;
                }
            });
            outcome.ns += started.elapsed().as_nanos() as u64;
            outcome.allocations += alloc::counts().allocations - before.allocations;
            result?;
            subject.turn()?;
            if fired.count() != expected {
                return Err(format!("{} timers fired, not {expected}", fired.count()).into());
            }
            outcome.units += expected;
            outcome.turns += turns;
        }
        Ok(outcome)
    }
}

/// One periodic timer that is due in every turn. A round is one firing.
struct Every<T> {
    subject: T,
    fired: Hits,
}

impl<T: TimerSubject> Every<T> {
    fn new(period_ns: u64, backend: &str) -> Result<Self, Error> {
        let mut subject = T::new(backend)?;
        let fired = Hits::default();
        subject.every(Duration::from_nanos(period_ns), fired.clone())?;
        Ok(Self { subject, fired })
    }
}

impl<T: TimerSubject> Measured for Every<T> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let from = self.fired.count();
        let before = alloc::counts();
        let started = Instant::now();
        let mut result = Ok(());
        let mut turns = 0;
        counted(&mut || {
            while self.fired.count() < from + rounds && result.is_ok() {
                result = self.subject.turn();
                turns += 1;
            }
        });
        let ns = started.elapsed().as_nanos() as u64;
        let allocations = alloc::counts().allocations - before.allocations;
        result?;
        let units = self.fired.count() - from;
        Ok(Outcome { ns, units, turns, allocations, ..Outcome::default() })
    }
}
