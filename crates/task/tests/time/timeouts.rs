//! Time limits.

use std::{
    cell::Cell,
    future::{Future, pending, poll_fn, ready},
    io,
    pin::{Pin, pin},
    rc::Rc,
    task::Poll,
    time::{Duration, Instant},
};

use windlass_task::{
    budget::poll_proceed,
    time::{now, sleep, timeout, timeout_at},
    yield_now,
};

use crate::{
    scenarios::Build,
    tools::{LONG, ms, poll_once, run, run_paused, timers, turns},
};

fn a_future_that_is_ready_starts_no_timer(build: Build) {
    run(build, async {
        let before = turns();
        for limit in [Duration::ZERO, ms(1), LONG] {
            assert_eq!(timeout(limit, ready(5)).await, Ok(5));
            let looks = poll_fn(|_| Poll::Ready(timers()));
            assert_eq!(timeout(limit, looks).await, Ok(0));
        }
        let past = Instant::now().checked_sub(ms(1)).unwrap();
        assert_eq!(timeout_at(past, ready(5)).await, Ok(5), "the future comes first");
        assert_eq!(turns(), before);
    });
}

fn the_limit_begins_with_the_first_pending_poll(build: Build) {
    run_paused(build, async {
        let limited = timeout(ms(10), pending::<()>());
        sleep(ms(50)).await;
        let mut limited = pin!(limited);
        let start = now();
        assert!(poll_once(&mut limited).await.is_pending());
        assert_eq!(timers(), 1);
        assert!(limited.await.is_err());
        assert_eq!(now() - start, ms(10));
    });
}

fn a_future_that_is_ready_in_time_leaves_no_timer(build: Build) {
    run_paused(build, async {
        let start = now();
        assert_eq!(timeout(ms(10), sleep(ms(9))).await, Ok(()));
        assert_eq!((now() - start, timers()), (ms(9), 0));
        assert!(timeout(ms(10), sleep(ms(11))).await.is_err());
        assert_eq!((now() - start, timers()), (ms(19), 0));
        assert!(timeout_at(start + ms(25), sleep(LONG)).await.is_err());
        assert_eq!(now() - start, ms(25));
        // Both at the same time: the future is looked at first.
        assert_eq!(timeout(ms(10), sleep(ms(10))).await, Ok(()));
    });
}

fn a_limit_of_zero_polls_once(build: Build) {
    run(build, async {
        let polls = Cell::new(0);
        let counting = poll_fn(|_| {
            polls.set(polls.get() + 1);
            Poll::<()>::Pending
        });
        assert!(timeout(Duration::ZERO, counting).await.is_err());
        assert_eq!((polls.get(), timers()), (1, 0));
    });
}

fn limits_can_be_nested(build: Build) {
    run_paused(build, async {
        let start = now();
        let inner = timeout(ms(20), pending::<()>());
        assert!(timeout(ms(10), inner).await.is_err());
        assert_eq!(now() - start, ms(10));
        let inner = timeout(ms(10), pending::<()>());
        assert!(timeout(ms(20), inner).await.unwrap().is_err());
        assert_eq!((now() - start, timers()), (ms(20), 0));
    });
}

fn the_future_is_dropped_with_the_limit_and_not_before(build: Build) {
    run_paused(build, async {
        let token = Rc::new(());
        let held = Rc::clone(&token);
        let limited = timeout(ms(1), async move {
            pending::<()>().await;
            drop(held);
        });
        let mut limited = Box::pin(limited);
        assert!(limited.as_mut().await.is_err());
        assert_eq!(Rc::strong_count(&token), 2);
        drop(limited);
        assert_eq!(Rc::strong_count(&token), 1);
    });
}

/// A future that uses up the budget in each poll, as a busy socket does.
fn a_busy_future_does_not_hold_up_its_limit(build: Build) {
    run(build, async {
        let busy = async {
            loop {
                poll_fn(|context| poll_proceed(context).map(|proceed| proceed.made_progress()))
                    .await;
            }
        };
        assert!(timeout(ms(2), busy).await.is_err());
    });
}

/// A task that polls it again and again without an end of its own poll, as in a loop beside a
/// channel that is never empty. The reactor has no turn in which a timer could fire.
fn a_limit_is_over_in_time_without_a_turn(build: Build) {
    run(build, async {
        let mut limited = pin!(timeout(ms(1), pending::<()>()));
        assert!(poll_once(&mut limited).await.is_pending());
        poll_fn(|context| {
            let (before, end) = (turns(), Instant::now() + ms(1));
            while Instant::now() < end {}
            assert!(limited.as_mut().poll(context).is_ready(), "its time is over");
            assert_eq!((turns(), timers()), (before, 0));
            Poll::Ready(())
        })
        .await;
    });
}

/// The limit is polled after a future that has used up the budget, in each poll of the task.
fn a_busy_neighbour_does_not_hold_up_a_limit(build: Build) {
    run(build, async {
        for limit in [Duration::ZERO, ms(1)] {
            let mut limited = pin!(timeout(limit, pending::<()>()));
            let end = Instant::now() + Duration::from_secs(20);
            poll_fn(|context| {
                assert!(Instant::now() < end, "it was never looked at");
                while let Poll::Ready(proceed) = poll_proceed(context) {
                    proceed.made_progress();
                }
                limited.as_mut().poll(context)
            })
            .await
            .unwrap_err();
        }
    });
}

/// A loop of limits that are over must not keep the others from running.
fn limits_that_are_over_count_for_the_budget(build: Build) {
    run(build, async {
        let others = Rc::new(Cell::new(0));
        let count = Rc::clone(&others);
        let other = windlass_task::spawn(async move {
            loop {
                count.set(count.get() + 1);
                yield_now().await;
            }
        });
        for _ in 0..200 {
            assert!(timeout(Duration::ZERO, pending::<()>()).await.is_err());
        }
        assert!(others.get() >= 6, "{}", others.get());
        other.abort();
    });
}

fn the_parts_can_be_reached(build: Build) {
    run(build, async {
        let mut limited = timeout(LONG, ready(7));
        assert_eq!(format!("{limited:?}"), "TimeoutFuture { span: 3600s, .. }");
        *limited.get_mut() = ready(8);
        assert_eq!(format!("{:?}", limited.get_ref()), "Ready(Some(8))");
        assert_eq!(limited.into_inner().await, 8);
        let error = timeout(Duration::ZERO, pending::<()>()).await.unwrap_err();
        assert_eq!(error.to_string(), "the operation has timed out");
        let error = io::Error::from(error);
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    });
}

fn a_limit_that_is_dropped_after_k_polls_leaves_no_timer(build: Build) {
    run_paused(build, async {
        for count in 0..5 {
            let mut limited = Box::pin(timeout(LONG, async {
                for _ in 0..3 {
                    yield_now().await;
                }
            }));
            for poll in 0..count {
                let is_ready = poll_once(&mut limited).await.is_ready();
                assert_eq!(is_ready, poll == 3);
                if is_ready {
                    break;
                }
            }
            drop(limited);
            assert_eq!(timers(), 0);
        }
    });
}

fn it_is_a_future_that_can_be_boxed_and_pinned(build: Build) {
    run_paused(build, async {
        let boxed: Pin<Box<dyn Future<Output = Result<(), _>>>> =
            Box::pin(timeout(ms(1), Box::pin(pending::<()>())));
        assert!(boxed.await.is_err());
    });
}

scenarios! {
    a_future_that_is_ready_starts_no_timer,
    the_limit_begins_with_the_first_pending_poll,
    a_future_that_is_ready_in_time_leaves_no_timer,
    a_limit_of_zero_polls_once,
    limits_can_be_nested,
    the_future_is_dropped_with_the_limit_and_not_before,
    a_busy_future_does_not_hold_up_its_limit,
    a_limit_is_over_in_time_without_a_turn,
    a_busy_neighbour_does_not_hold_up_a_limit,
    limits_that_are_over_count_for_the_budget,
    the_parts_can_be_reached,
    a_limit_that_is_dropped_after_k_polls_leaves_no_timer,
    it_is_a_future_that_can_be_boxed_and_pinned,
}
