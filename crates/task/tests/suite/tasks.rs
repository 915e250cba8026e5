//! Spawning, yielding, the order of polls, and `block_on`.

use std::{
    cell::RefCell,
    rc::Rc,
    time::{Duration, Instant},
};

use windlass_task::{spawn, stats, with_turn, yield_now};

use crate::{
    panics::caught,
    tools::{Flag, block_on, builder, executor},
};

#[test]
fn tasks_run_in_the_order_in_which_they_were_spawned_and_woken() {
    let log = Rc::new(RefCell::new(Vec::new()));
    block_on(async {
        let tasks: Vec<_> = (0..3)
            .map(|number| {
                let log = Rc::clone(&log);
                spawn(async move {
                    log.borrow_mut().push((number, "first"));
                    yield_now().await;
                    log.borrow_mut().push((number, "second"));
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    let numbers = |which| log.borrow().iter().filter(|(_, at)| *at == which).count();
    assert_eq!((numbers("first"), numbers("second")), (3, 3));
    let order: Vec<u32> = log.borrow().iter().map(|(number, _)| *number).collect();
    assert_eq!(order, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_task_is_polled_once_for_many_wakes() {
    block_on(async {
        let before = stats().unwrap().polls;
        let flag = Flag::default();
        let other = spawn({
            let flag = flag.clone();
            async move {
                futures_join(&flag).await;
            }
        });
        yield_now().await;
        flag.set();
        flag.set();
        other.await.unwrap();
        // This task: once for the yield, once for the end of the other. The other: twice.
        assert_eq!(stats().unwrap().polls - before, 4);
    });
}

/// Waits for one flag three times at once, so that its set wakes the task three times.
async fn futures_join(flag: &Flag) {
    let mut waits = [Box::pin(flag.wait()), Box::pin(flag.wait()), Box::pin(flag.wait())];
    std::future::poll_fn(|context| {
        let mut is_ready = true;
        for wait in &mut waits {
            is_ready &= wait.as_mut().poll(context).is_ready();
        }
        if is_ready { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

use std::future::Future as _;

#[test]
fn the_future_of_block_on_may_borrow() {
    let mut text = String::from("a");
    let length = block_on(async {
        text.push('b');
        text.len()
    });
    assert_eq!((length, text.as_str()), (2, "ab"));
}

#[test]
fn tasks_rest_between_two_runs_and_go_on() {
    let mut executor = executor();
    let flag = Flag::default();
    let wait = flag.clone();
    let task = executor.spawn(async move {
        wait.wait().await;
        5
    });
    executor.block_on(yield_now());
    // A wake between two runs.
    executor.block_on(yield_now());
    flag.set();
    assert!(!task.is_finished());
    assert_eq!(executor.block_on(task).unwrap(), 5);
    let outside = executor.spawn(async { 6 });
    assert_eq!(executor.block_on(outside).unwrap(), 6);
}

#[test]
fn nested_block_on_panics_with_a_message() {
    let mut executor = executor();
    let payload = executor.block_on(async {
        let mut other = builder().build().unwrap();
        let nested = caught(|| other.block_on(async {})).unwrap_err();
        let simple = caught(|| windlass_task::block_on(async {})).unwrap_err();
        (nested, simple)
    });
    for payload in [payload.0, payload.1] {
        let message = payload.downcast_ref::<&str>().unwrap();
        assert!(message.starts_with("`block_on` inside of `block_on`"), "{message}");
    }
    assert_eq!(executor.block_on(async { 1 }), 1, "the executor goes on");
}

#[test]
fn spawning_where_no_executor_runs_panics_with_a_message() {
    let payload = caught(|| spawn(async {})).unwrap_err();
    let message = payload
        .downcast_ref::<String>()
        .map_or_else(|| *payload.downcast_ref::<&str>().unwrap(), String::as_str);
    assert!(message.starts_with("no executor runs on this thread"), "{message}");
}

#[test]
fn a_panic_of_the_main_future_comes_out_and_the_executor_goes_on() {
    let mut executor = executor();
    let log = Rc::new(RefCell::new(Vec::new()));
    let payload = caught(|| {
        executor.block_on(async {
            let log = Rc::clone(&log);
            drop(spawn(async move {
                yield_now().await;
                log.borrow_mut().push("task");
            }));
            panic!("main");
        })
    })
    .unwrap_err();
    assert_eq!(*payload.downcast_ref::<&str>().unwrap(), "main");
    executor.block_on(async {
        yield_now().await;
        yield_now().await;
    });
    assert_eq!(*log.borrow(), ["task"]);
}

#[test]
fn timers_of_the_reactor_wake_tasks_and_a_stop_does_not_end_block_on() {
    let mut executor = executor();
    executor.with_turn(|mut turn| turn.stop());
    executor.block_on(async {
        let flag = Flag::default();
        let at_end = flag.clone();
        with_turn(|mut turn| {
            turn.after_with(Duration::from_millis(1), move |mut turn| {
                turn.stop();
                at_end.set();
            })
            .unwrap();
        })
        .unwrap();
        flag.wait().await;
    });
}

#[test]
fn counters_count() {
    let mut executor = builder().measure_polls(true).build().unwrap();
    let inside = executor.block_on(async {
        drop(spawn(std::future::pending::<()>()));
        drop(spawn(async {}));
        stats().unwrap()
    });
    assert_eq!((inside.spawned, inside.tasks, inside.queue_depth, inside.polls), (3, 3, 2, 1));
    executor.block_on(async {
        yield_now().await;
    });
    let outside = executor.stats();
    assert_eq!((outside.spawned, outside.tasks, outside.queue_depth), (4, 1, 0));
    assert!(outside.longest_poll > Duration::ZERO);
    assert_eq!(outside.budget_exhausted, 0);
}

#[test]
fn the_longest_poll_is_measured_if_that_is_asked_for() {
    const LONG: Duration = Duration::from_millis(2);
    for measures in [true, false] {
        let mut executor = builder().measure_polls(measures).build().unwrap();
        executor.block_on(async {
            let task = spawn(async {
                let start = Instant::now();
                while start.elapsed() < LONG {
                    std::hint::spin_loop();
                }
            });
            // Polls before and after it are shorter.
            yield_now().await;
            task.await.unwrap();
        });
        let longest = executor.stats().longest_poll;
        assert!(if measures { longest >= LONG } else { longest.is_zero() }, "{longest:?}");
    }
}
