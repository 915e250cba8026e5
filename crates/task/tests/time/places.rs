//! Sleeps in unusual places: other threads, other executors, and where there is no turn.

use std::{
    sync::Arc,
    task::{Poll, Waker},
    thread,
};

use windlass_task::{
    Executor, spawn,
    time::{Sleep, now, sleep, timeout},
    with_turn,
};

use crate::{
    counting_waker::CountingWaker,
    scenarios::Build,
    tools::{LONG, executor, ms, poll_once, poll_with, run, timers, two_turns},
};

/// A sleep with a timer.
async fn armed() -> Sleep {
    let mut long = sleep(LONG);
    assert!(poll_once(&mut long).await.is_pending());
    long
}

fn a_sleep_that_is_dropped_on_another_thread_is_cancelled_with_the_next_timer(build: Build) {
    run(build, async {
        for _ in 0..3 {
            let (mut one, other) = (armed().await, armed().await);
            let count = Arc::new(CountingWaker::default());
            assert!(poll_with(&mut one, &Waker::from(Arc::clone(&count))).is_pending());
            thread::spawn(move || drop((one, other))).join().unwrap();
            assert_eq!(timers(), 2);
            drop(armed().await);
            assert_eq!(timers(), 0);
            assert_eq!(Arc::strong_count(&count), 1, "the waker is gone too");
        }
    });
}

fn a_sleep_that_is_polled_on_another_thread_panics_there(build: Build) {
    run(build, async {
        let mut long = armed().await;
        let polled = thread::spawn(move || poll_with(&mut long, Waker::noop())).join();
        let message = polled.unwrap_err();
        let message = message
            .downcast_ref::<String>()
            .cloned()
            .unwrap_or_else(|| (*message.downcast_ref::<&str>().unwrap()).to_owned());
        assert!(message.contains("on a thread that runs no executor"), "{message}");
        drop(armed().await);
        assert_eq!(timers(), 0);
    });
}

fn a_sleep_moves_to_the_executor_that_polls_it(build: Build) {
    let mut moved = run(build, armed());
    let mut other = executor(build);
    moved.reset(now() + LONG / 2);
    other.block_on(async {
        assert!(poll_once(&mut moved).await.is_pending());
        assert_eq!(timers(), 1);
        moved.reset(now() + ms(1));
        moved.await;
        assert_eq!(timers(), 0);
    });
}

fn a_sleep_moves_between_threads_that_run_executors(build: Build) {
    run(build, async {
        let mut moved = armed().await;
        let other = thread::spawn(move || {
            let mut executor = executor(build);
            executor.block_on(async {
                moved.reset(now() + ms(1));
                (&mut moved).await;
                moved.reset(now() + LONG);
                assert!(poll_once(&mut moved).await.is_pending());
            });
            moved
        });
        let mut back = other.join().unwrap();
        back.reset(now() + ms(1));
        back.await;
        assert_eq!(timers(), 0);
    });
}

fn an_earlier_deadline_on_another_thread_counts_from_the_next_poll(build: Build) {
    run(build, async {
        let mut long = armed().await;
        let reset = move || {
            long.reset(now() + ms(1));
            long
        };
        let mut short = thread::spawn(reset).join().unwrap();
        assert!(timeout(LONG, &mut short).await.is_ok());
    });
}

fn a_sleep_outlives_its_executor(build: Build) {
    let mut outlived = run(build, armed());
    let count = Arc::new(CountingWaker::default());
    let mut executor = executor(build);
    executor.block_on(async {
        assert!(poll_with(&mut outlived, &Waker::from(Arc::clone(&count))).is_pending());
    });
    // Between two runs there is no turn.
    outlived.reset(now() + ms(1));
    drop(executor);
    assert_eq!(Arc::strong_count(&count), 1);
    outlived.reset(now() + LONG);
    drop(outlived);
}

fn a_sleep_that_is_dropped_between_two_runs_is_cancelled_in_the_next(build: Build) {
    let mut executor = executor(build);
    let long = executor.block_on(armed());
    drop(long);
    executor.block_on(async {
        assert_eq!(timers(), 1);
        drop(armed().await);
        assert_eq!(timers(), 0);
    });
}

fn where_there_is_no_turn_a_drop_is_queued(build: Build) {
    run(build, async {
        let mut sleeps = Vec::new();
        for _ in 0..100 {
            sleeps.push(armed().await);
        }
        let kept = sleeps.pop();
        with_turn(|_| drop(sleeps)).unwrap();
        assert_eq!(timers(), 100);
        two_turns().await;
        assert_eq!(timers(), 1);
        drop(kept);
        assert_eq!(timers(), 0);
    });
}

fn in_a_handler_a_drop_is_queued(build: Build) {
    run(build, async {
        let mut long = Some(armed().await);
        let handler = move |_: windlass::Turn<'_>| drop(long.take());
        with_turn(|mut turn| turn.after_with(ms(0), handler).map(drop).unwrap()).unwrap();
        while timers() > 0 {
            two_turns().await;
        }
    });
}

fn where_there_is_no_turn_a_poll_asks_for_another(build: Build) {
    run(build, async {
        let mut short = sleep(LONG);
        let count = Arc::new(CountingWaker::default());
        let waker = Waker::from(Arc::clone(&count));
        let polled = with_turn(|_| poll_with(&mut short, &waker)).unwrap();
        assert_eq!((polled, count.count(), timers()), (Poll::Pending, 1, 0));
        short.reset(now() + ms(1));
        short.await;

        // One that has a timer, and is given another waker.
        let mut long = armed().await;
        let polled = with_turn(|_| poll_with(&mut long, &waker)).unwrap();
        assert_eq!((polled, count.count()), (Poll::Pending, 2));
        two_turns().await;
        assert_eq!(timers(), 0);
        // An earlier deadline counts from the next poll.
        let mut long = armed().await;
        with_turn(|_| long.reset(now() + ms(1))).unwrap();
        long.await;
    });
}

fn a_limit_of_timers_is_a_panic_of_the_task(build: Build) {
    let reactor = build().timers_max(2);
    let mut executor = Executor::builder().reactor(reactor).build().unwrap();
    executor.block_on(async {
        let kept = (armed().await, armed().await);
        let third = spawn(sleep(LONG)).await.unwrap_err().to_string();
        assert!(third.contains("raise `timers_max`"), "{third}");
        drop(kept);
        sleep(ms(1)).await;
    });
}

fn a_slack_is_passed_on(build: Build) {
    let built =
        Executor::builder().timer_slack(std::time::Duration::from_nanos(1)).reactor(build());
    built.build().unwrap().block_on(async {
        // Linux shows the slack of a thread here, to the thread itself.
        let slack = std::fs::read_to_string("/proc/thread-self/timerslack_ns");
        if let Ok(slack) = slack {
            assert_eq!(slack.trim(), "1");
        }
        sleep(ms(1)).await;
    });
}

scenarios! {
    a_sleep_that_is_dropped_on_another_thread_is_cancelled_with_the_next_timer,
    a_sleep_that_is_polled_on_another_thread_panics_there,
    a_sleep_moves_to_the_executor_that_polls_it,
    a_sleep_moves_between_threads_that_run_executors,
    an_earlier_deadline_on_another_thread_counts_from_the_next_poll,
    a_sleep_outlives_its_executor,
    a_sleep_that_is_dropped_between_two_runs_is_cancelled_in_the_next,
    where_there_is_no_turn_a_drop_is_queued,
    in_a_handler_a_drop_is_queued,
    where_there_is_no_turn_a_poll_asks_for_another,
    a_limit_of_timers_is_a_panic_of_the_task,
    a_slack_is_passed_on,
}
