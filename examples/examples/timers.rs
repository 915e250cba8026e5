//! Timers: once, again and again, put off, and given up.
//!
//! A job is tried until it works, after each failure twice as long later. A heartbeat goes on
//! meanwhile, and a watchdog ends the program if the job is not done in time.
//!
//! What to learn:
//! - `after_with` takes a closure `|turn| ..` without types; `every` takes any of `Tick` and
//!   `Turn`.
//! - A timer is a key: `reset` puts it off, `cancel` ends it. To start, reset or cancel one takes
//!   no system call.
//! - A late repeated timer fires once and says in `Tick::missed` how many beats it has passed over.
//! - A clock of one's own makes time a matter of the test: the tests below take none.
//!
//! Run it with `cargo run --example timers`, its tests with `cargo test --example timers`.

use std::{cell::RefCell, io, rc::Rc, time::Duration};

use windlass::{Key, Reactor, Tick, Turn};

/// How long to wait after the first failure.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// The longest wait between two tries.
const LONGEST_WAIT: Duration = Duration::from_millis(400);
/// How long the job may make no progress.
const PATIENCE: Duration = Duration::from_millis(300);
const BEAT: Duration = Duration::from_millis(100);

/// What happened, in order.
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
    /// Tries once, and again later if that fails.
    fn attempt(mut self, wait: Duration, turn: &mut Turn<'_>) {
        if self.failures_left == 0 {
            self.log.say("done");
            // It has a key for as long as it has not fired.
            turn.cancel(self.watchdog).expect("the watchdog has not barked");
            return turn.stop();
        }
        self.failures_left -= 1;
        self.log.say(format!("failed, again in {wait:?}"));
        // A failure is a sign of life.
        turn.reset(self.watchdog, PATIENCE).expect("the watchdog has not barked");
        // The closure is called once, but might be given another round by `reset`: so it may be
        // called again.
        let mut job = Some(self);
        let later = turn.after_with(wait, move |mut turn| {
            if let Some(job) = job.take() {
                job.attempt((wait * 2).min(LONGEST_WAIT), &mut turn);
            }
        });
        if let Err(error) = later {
            println!("cannot try again: {error}");
            turn.stop();
        }
    }
}

/// Sets everything going in a reactor.
fn start(reactor: &mut Reactor, failures: u32, log: &Log) -> io::Result<()> {
    let barks = log.clone();
    let watchdog = reactor.after_with(PATIENCE, move |mut turn| {
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

    /// A reactor whose time the test moves.
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
        assert_eq!(bed.log.0.take(), ["failed, again in 50ms"]);
        assert_eq!(bed.pass(49), [""; 0]);
        assert_eq!(bed.pass(1), ["failed, again in 100ms"]);
        assert_eq!(bed.pass(99), ["beat"]);
        assert_eq!(bed.pass(1), ["failed, again in 200ms"]);
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
        assert_eq!(said.last().map(String::as_str), Some("failed, again in 400ms"), "{said:?}");
        // That is longer than the watchdog waits.
        let said = bed.pass(299);
        assert!(!said.contains(&"given up".to_owned()), "{said:?}");
        assert_eq!(bed.pass(1), ["given up"]);
        assert!(bed.reactor.stop_requested());
    }

    #[test]
    fn a_loop_that_was_late_fires_in_the_order_of_the_deadlines() {
        let mut bed = Bed::new(2);
        bed.log.0.take();
        // The first try, due after 50 ms, puts off the watchdog, which is due after 300.
        assert_eq!(bed.pass(1000), ["failed, again in 100ms", "beat, and 9 were missed"]);
        // Both at the same moment: first the one that was started first.
        assert_eq!(bed.pass(100), ["done", "beat"]);
    }

    #[test]
    fn it_runs_to_its_end() {
        main().unwrap();
    }
}
