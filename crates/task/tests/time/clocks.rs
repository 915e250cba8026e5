//! A clock of the user's, in the settings of the reactor.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    time::{Duration, Instant},
};

use windlass_task::{
    Executor, spawn,
    time::{now, sleep, sleep_until, timeout},
};

use crate::{
    scenarios::Build,
    tools::{LONG, poll_once, timers, two_turns},
};

/// A clock that stands still until it is set, and counts how often it is read.
#[derive(Clone)]
struct TestClock {
    time: Rc<Cell<Instant>>,
    reads: Rc<Cell<usize>>,
}

impl TestClock {
    fn new() -> Self {
        // Later than the system's time, so that the two are never taken for each other.
        Self { time: Rc::new(Cell::new(Instant::now() + 10 * LONG)), reads: Rc::default() }
    }

    fn executor(&self, build: Build) -> Executor {
        let this = self.clone();
        let read = move || {
            this.reads.set(this.reads.get() + 1);
            this.time.get()
        };
        Executor::builder().reactor(build().clock(read)).build().unwrap()
    }

    fn advance(&self, by: Duration) {
        self.time.set(self.time.get() + by);
    }
}

fn sleeps_follow_the_clock_of_the_reactor(build: Build) {
    let clock = TestClock::new();
    clock.executor(build).block_on(async {
        let start = clock.time.get();
        assert_eq!(now(), start);
        let task = spawn(async {
            sleep(LONG).await;
            now()
        });
        two_turns().await;
        clock.advance(LONG - Duration::from_nanos(1));
        two_turns().await;
        assert!(!task.is_finished());
        clock.advance(Duration::from_millis(1));
        assert_eq!(task.await.unwrap(), clock.time.get());
        assert_eq!(now(), clock.time.get());
    });
}

fn a_deadline_has_passed_by_the_clock_of_the_reactor(build: Build) {
    let clock = TestClock::new();
    clock.executor(build).block_on(async {
        assert!(poll_once(&mut sleep_until(clock.time.get())).await.is_ready());
        let mut late = sleep(LONG);
        let mut limited = Box::pin(timeout(LONG, std::future::pending::<()>()));
        assert!(poll_once(&mut limited).await.is_pending());
        assert!(!late.is_elapsed());
        clock.advance(LONG);
        assert!(late.is_elapsed());
        // It was not polled before, and takes no timer.
        assert!(poll_once(&mut late).await.is_ready());
        assert_eq!(timers(), 1);
        assert!(limited.await.is_err());
    });
}

fn a_clock_that_goes_back_stands_still(build: Build) {
    let clock = TestClock::new();
    clock.executor(build).block_on(async {
        clock.advance(LONG);
        let latest = now();
        clock.time.set(latest - LONG);
        assert_eq!(now(), latest);
    });
}

fn a_sleep_of_zero_reads_no_clock(build: Build) {
    let clock = TestClock::new();
    clock.executor(build).block_on(async {
        let before = clock.reads.get();
        let mut none = sleep(Duration::ZERO);
        assert!(poll_once(&mut none).await.is_ready());
        assert!(none.is_elapsed());
        assert_eq!(clock.reads.get(), before);
        assert_eq!(none.deadline(), clock.time.get());
        none.reset(clock.time.get() + LONG);
        assert!(poll_once(&mut none).await.is_pending());
    });
}

fn a_clock_that_panics_leaves_an_executor_that_goes_on(build: Build) {
    let panics = Rc::new(Cell::new(false));
    let held = Rc::clone(&panics);
    let read = move || {
        if held.replace(false) {
            std::panic::resume_unwind(Box::new("the clock"));
        }
        Instant::now()
    };
    let mut executor = Executor::builder().reactor(build().clock(read)).build().unwrap();
    let armed = Rc::clone(&panics);
    let run = AssertUnwindSafe(|| {
        executor.block_on(async move {
            armed.set(true);
            now()
        })
    });
    assert!(catch_unwind(run).is_err());
    executor.block_on(sleep(Duration::from_micros(1)));
    drop(executor);
    assert_eq!(Rc::strong_count(&panics), 1, "the clock goes with the executor");
}

scenarios!(
    sleeps_follow_the_clock_of_the_reactor,
    a_deadline_has_passed_by_the_clock_of_the_reactor,
    a_clock_that_goes_back_stands_still,
    a_sleep_of_zero_reads_no_clock,
    a_clock_that_panics_leaves_an_executor_that_goes_on,
);
