//! The paused clock.

use std::{cell::Cell, rc::Rc, time::Duration};

use windlass_task::{
    JoinSet, block_on, spawn,
    time::{advance, now, sleep, sleep_until, timeout},
    with_turn, yield_now,
};

use crate::{
    scenarios::Build,
    tools::{LONG, Log, ms, poll_once, run, run_paused, timers},
};

fn the_clock_stands_while_tasks_run(build: Build) {
    run_paused(build, async {
        let start = now();
        let task = spawn(async {
            for _ in 0..1000 {
                yield_now().await;
            }
        });
        let mut long = sleep(LONG);
        assert!(poll_once(&mut long).await.is_pending());
        task.await.unwrap();
        assert_eq!(now(), start);
    });
}

fn the_clock_moves_to_the_next_deadline(build: Build) {
    run_paused(build, async {
        let start = now();
        let log = Log::new();
        let mut tasks = JoinSet::new();
        for seconds in [50, 10, 30] {
            let log = log.clone();
            tasks.spawn(async move {
                for _ in 0..2 {
                    sleep(Duration::from_secs(seconds)).await;
                    log.add((seconds, (now() - start).as_secs()));
                }
            });
        }
        while tasks.join_next().await.is_some() {}
        assert_eq!(log.take(), [(10, 10), (10, 20), (30, 30), (50, 50), (30, 60), (50, 100)]);
        // Not a multiple of the default resolution.
        let odd = Duration::from_nanos(1_234_567_891);
        let before = now();
        sleep(odd).await;
        assert_eq!(now() - before, odd);
    });
}

/// The kernel may still deliver what a socket has sent.
fn with_descriptors_the_clock_waits_before_it_moves(build: Build) {
    run_paused(build, async {
        let pair = windlass_task::net::UnixStream::pair().unwrap();
        let start = std::time::Instant::now();
        for _ in 0..10 {
            sleep(LONG).await;
        }
        assert!(start.elapsed() >= ms(10), "a millisecond for each move");
        drop(pair);
    });
}

fn an_advance_stops_at_each_deadline(build: Build) {
    run_paused(build, async {
        let start = now();
        let log = Log::new();
        let noted = log.clone();
        let task = spawn(async move {
            loop {
                sleep(ms(10)).await;
                noted.add((now() - start).as_millis());
                // Its next sleep starts some polls later.
                yield_now().await;
                yield_now().await;
            }
        });
        advance(ms(35)).await;
        assert_eq!((log.take(), now() - start), (vec![10, 20, 30], ms(35)));
        advance(ms(4)).await;
        assert_eq!(log.take(), [0; 0]);
        advance(ms(1)).await;
        assert_eq!((log.take(), now() - start), (vec![40], ms(40)));
        task.abort();
    });
}

fn an_advance_by_nothing_moves_nothing(build: Build) {
    run_paused(build, async {
        let start = now();
        let task = spawn(sleep(ms(1)));
        advance(Duration::ZERO).await;
        assert!(!task.is_finished());
        assert_eq!((now(), timers()), (start, 1), "the task has run until its sleep");
    });
}

fn an_advance_ends_although_a_task_never_rests(build: Build) {
    run_paused(build, async {
        let is_done = Rc::new(Cell::new(false));
        let done = Rc::clone(&is_done);
        let busy = spawn(async move {
            while !done.get() {
                yield_now().await;
            }
        });
        let mut short = sleep(ms(5));
        assert!(poll_once(&mut short).await.is_pending());
        advance(ms(5)).await;
        assert!(poll_once(&mut short).await.is_ready());
        is_done.set(true);
        busy.await.unwrap();
    });
}

fn two_advances_at_once_add_up_at_most(build: Build) {
    run_paused(build, async {
        let start = now();
        let other = spawn(advance(ms(20)));
        advance(ms(10)).await;
        other.await.unwrap();
        assert_eq!(now() - start, ms(20), "both count from where the clock was");
    });
}

fn ready_events_come_before_the_clock_moves(build: Build) {
    run_paused(build, async {
        let (one, other) = windlass_task::net::UnixStream::pair().unwrap();
        let (mut one, mut other) = (one, other);
        let writer = spawn(async move {
            for byte in 0..100 {
                one.write_all(&[byte]).await.unwrap();
                // It rests, and the reader has its turn.
                let mut back = [0];
                one.read_exact(&mut back).await.unwrap();
            }
        });
        let start = now();
        for byte in 0..100 {
            let mut buffer = [0];
            timeout(ms(1), other.read_exact(&mut buffer)).await.unwrap().unwrap();
            assert_eq!(buffer, [byte]);
            other.write_all(&buffer).await.unwrap();
        }
        writer.await.unwrap();
        assert_eq!(now(), start);
    });
}

fn timers_of_the_reactor_use_the_same_clock(build: Build) {
    run_paused(build, async {
        let fired = Rc::new(Cell::new(false));
        let is_fired = Rc::clone(&fired);
        with_turn(|mut turn| turn.after_with(ms(7), move |_| fired.set(true)).map(drop).unwrap())
            .unwrap();
        // Only deadlines of sleeps stop the clock.
        sleep_until(now() + ms(8)).await;
        yield_now().await;
        assert!(is_fired.get());
    });
}

fn a_clock_that_is_not_paused_cannot_be_advanced(build: Build) {
    run(build, async {
        let error = spawn(advance(ms(1))).await.unwrap_err().to_string();
        assert!(error.contains("build it with `paused_clock(true)`"), "{error}");
    });
}

#[test]
#[should_panic(expected = "`advance` needs an executor with a paused clock")]
fn an_advance_without_an_executor_panics() {
    let mut advance = Box::pin(advance(ms(1)));
    let _ = crate::tools::poll_with(&mut advance, std::task::Waker::noop());
}

#[test]
fn other_executors_use_the_system_s_clock() {
    let before = std::time::Instant::now();
    let inside = block_on(async { now() });
    assert!(before <= inside && inside <= now());
}

scenarios! {
    the_clock_stands_while_tasks_run,
    the_clock_moves_to_the_next_deadline,
    with_descriptors_the_clock_waits_before_it_moves,
    an_advance_stops_at_each_deadline,
    an_advance_by_nothing_moves_nothing,
    an_advance_ends_although_a_task_never_rests,
    two_advances_at_once_add_up_at_most,
    ready_events_come_before_the_clock_moves,
    timers_of_the_reactor_use_the_same_clock,
    a_clock_that_is_not_paused_cannot_be_advanced,
}
