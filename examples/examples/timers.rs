//! Timers: one-shot, periodic, reset and cancelled.
//!
//! A job is retried until it works, each time after twice the delay. A heartbeat runs meanwhile,
//! and a watchdog ends the program if the job makes no progress.
//!
//! It shows:
//! - `after_with` takes a closure `|turn| ..` without types. `every` takes any of `Tick` and
//!   `Turn`.
//! - A timer is identified by a key: `reset` changes its deadline, and `cancel` ends it. Starting,
//!   resetting and cancelling take no system call.
//! - A late periodic timer fires once. `Tick::missed` is the number of periods that it has missed.
//! - With a custom clock the time is under the test's control: the tests below take no time.
//!
//! Run it with `cargo run --example timers`, and its tests with `cargo test --example timers`.

use std::{cell::RefCell, io, rc::Rc, time::Duration};

use windlass::{Key, Reactor, Tick, Turn};

/// Delay after the first failure.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// Maximum delay between two attempts.
const DELAY_MAX: Duration = Duration::from_millis(400);
/// Maximum time without progress of the job.
const PROGRESS_MAX: Duration = Duration::from_millis(300);
const BEAT: Duration = Duration::from_millis(100);

/// The events, in order.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    fn say(&self, what: impl Into<String>) {
        let what = what.into();
        println!("{what}");
        self.0.borrow_mut().push(what);
    }
}

/// A job that fails a number of times before it works.
struct Job {
    failures_left: u32,
    log: Log,
    /// The timer that ends the program.
    watchdog: Key,
}

impl Job {
    /// Tries once, and retries later after a failure.
    fn attempt(mut self, wait: Duration, turn: &mut Turn<'_>) {
        if self.failures_left == 0 {
            self.log.say("done");
            // The key is valid as long as the timer has not fired.
            turn.cancel(self.watchdog).expect("the watchdog has not fired");
            return turn.stop();
        }
        self.failures_left -= 1;
        self.log.say(format!("failed, retrying in {wait:?}"));
        // A failure is progress, too.
        turn.reset(self.watchdog, PROGRESS_MAX).expect("the watchdog has not fired");
        // The closure runs once, but must be callable again, because a handler could `reset` the
        // timer.
        let mut job = Some(self);
        let later = turn.after_with(wait, move |mut turn| {
            if let Some(job) = job.take() {
                job.attempt((wait * 2).min(DELAY_MAX), &mut turn);
            }
        });
        if let Err(error) = later {
            println!("cannot retry: {error}");
            turn.stop();
        }
    }
}

/// Starts the job, the heartbeat and the watchdog in a reactor.
fn start(reactor: &mut Reactor, failures: u32, log: &Log) -> io::Result<()> {
    let barks = log.clone();
    let watchdog = reactor.after_with(PROGRESS_MAX, move |mut turn| {
        barks.say("given up");
        turn.stop();
    })?;
    let beats = log.clone();
    reactor.every(BEAT, move |tick: Tick| match tick.missed {
        0 => beats.say("beat"),
        missed => beats.say(format!("beat, and {missed} were missed")),
    })?;
    let job = Job { failures_left: failures, log: log.clone(), watchdog };
    reactor.defer(move |mut turn| job.attempt(FIRST_WAIT, &mut turn))?;
    Ok(())
}

fn main() -> io::Result<()> {
    let mut reactor = windlass_examples::builder()?.build()?;
    start(&mut reactor, 3, &Log::default())?;
    reactor.run()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, time::Instant};

    /// A reactor with a clock that the test advances.
    struct Bed {
        reactor: Reactor,
        now: Rc<Cell<Instant>>,
        log: Log,
    }

    impl Bed {
        fn new(failures: u32) -> Self {
            let now = Rc::new(Cell::new(Instant::now()));
            let clock = Rc::clone(&now);
            let mut reactor =
                windlass_examples::builder().unwrap().clock(move || clock.get()).build().unwrap();
            let log = Log::default();
            start(&mut reactor, failures, &log).unwrap();
            let mut bed = Self { reactor, now, log };
            bed.turn();
            bed
        }

        fn turn(&mut self) {
            self.reactor.run_once(Duration::ZERO).unwrap();
        }

        fn pass(&mut self, milliseconds: u64) -> Vec<String> {
            self.now.set(self.now.get() + Duration::from_millis(milliseconds));
            self.turn();
            self.log.0.take()
        }
    }

    #[test]
    fn each_wait_is_twice_the_one_before() {
        let mut bed = Bed::new(3);
        assert_eq!(bed.log.0.take(), ["failed, retrying in 50ms"]);
        assert_eq!(bed.pass(49), [""; 0]);
        assert_eq!(bed.pass(1), ["failed, retrying in 100ms"]);
        assert_eq!(bed.pass(99), ["beat"]);
        assert_eq!(bed.pass(1), ["failed, retrying in 200ms"]);
        assert_eq!(bed.pass(199), ["beat, and 1 were missed"]);
        assert_eq!(bed.pass(1), ["done"]);
        assert!(bed.reactor.stop_requested());
        assert_eq!(bed.reactor.stats().timers, 1, "the heartbeat; the watchdog is cancelled");
    }

    #[test]
    fn the_watchdog_waits_from_the_last_sign_of_life() {
        let mut bed = Bed::new(4);
        let said: Vec<String> =
            [50, 100, 200].into_iter().flat_map(|wait| bed.pass(wait)).collect();
        assert_eq!(said.last().map(String::as_str), Some("failed, retrying in 400ms"), "{said:?}");
        // This is longer than the limit of the watchdog.
        let said = bed.pass(299);
        assert!(!said.contains(&"given up".to_owned()), "{said:?}");
        assert_eq!(bed.pass(1), ["given up"]);
        assert!(bed.reactor.stop_requested());
    }

    #[test]
    fn a_loop_that_was_late_fires_in_the_order_of_the_deadlines() {
        let mut bed = Bed::new(2);
        bed.log.0.take();
        // The first attempt, due after 50 ms, resets the watchdog, which was due after 300.
        assert_eq!(bed.pass(1000), ["failed, retrying in 100ms", "beat, and 9 were missed"]);
        // Both are due at the same time. The one that was started first fires first.
        assert_eq!(bed.pass(100), ["done", "beat"]);
    }

    #[test]
    fn it_runs_to_its_end() {
        main().unwrap();
    }
}
