//! Sleeps that wait, are reset and dropped.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use windlass_task::{
    Executor, JoinSet, spawn, stats,
    time::{Sleep, advance, now, sleep, sleep_until},
};

use crate::{
    counting_waker::CountingWaker,
    scenarios::Build,
    tools::{LONG, Log, at_most, ms, poll_once, poll_with, run, run_paused, timers, turns},
};

fn a_sleep_is_never_early(build: Build) {
    run(build, async {
        for nanos in [0, 1, 999, 1000, 1001, 250_000, 1_234_567, 3_000_000] {
            let span = Duration::from_nanos(nanos);
            let start = Instant::now();
            sleep(span).await;
            assert!(start.elapsed() >= span, "{span:?}");
            let deadline = Instant::now() + span;
            sleep_until(deadline).await;
            assert!(Instant::now() >= deadline);
        }
    });
}

fn the_timer_starts_with_the_first_poll_and_ends_with_the_sleep(build: Build) {
    run(build, async {
        let mut long = sleep(LONG);
        assert_eq!(timers(), 0);
        assert!(poll_once(&mut long).await.is_pending());
        assert!(poll_once(&mut long).await.is_pending());
        assert_eq!(timers(), 1);
        drop(long);
        assert_eq!(timers(), 0);
    });
}

fn a_sleep_of_zero_and_one_in_the_past_need_no_turn(build: Build) {
    run(build, async {
        let before = turns();
        for _ in 0..10 {
            assert!(poll_once(&mut sleep(Duration::ZERO)).await.is_ready());
            let past = Instant::now().checked_sub(ms(1)).unwrap();
            assert!(poll_once(&mut sleep_until(past)).await.is_ready());
            assert!(poll_once(&mut sleep_until(now())).await.is_ready());
        }
        assert_eq!((turns(), timers()), (before, 0));
    });
}

fn a_span_that_is_over_when_it_is_polled_needs_no_turn(build: Build) {
    run(build, async {
        let mut ready = 0;
        for _ in 0..1000 {
            ready += u32::from(poll_once(&mut sleep(Duration::from_nanos(1))).await.is_ready());
        }
        // Not all, because two readings of the clock may be the same.
        assert!(ready > 0, "each took a timer and a turn");
    });
}

/// The deadline is reset where there is a turn, where there is none, and after it.
fn a_reset_to_the_past_is_ready_at_the_next_poll(build: Build) {
    run(build, async {
        let mut long = sleep(LONG);
        let before = turns();
        for _ in 0..2 {
            long.reset(now() + LONG);
            assert!(poll_once(&mut long).await.is_pending());
            long.reset(now());
            assert!(poll_once(&mut long).await.is_ready());
            long.reset(now() + LONG);
            assert!(poll_once(&mut long).await.is_pending());
            windlass_task::with_turn(|_| long.reset(now())).unwrap();
            assert!(poll_once(&mut long).await.is_ready());
        }
        assert_eq!((turns(), timers()), (before, 0));
    });
}

fn a_sleep_stays_ready(build: Build) {
    run(build, async {
        let mut short = sleep(LONG);
        assert!(!short.is_elapsed());
        short.reset(now() + ms(1));
        (&mut short).await;
        assert!(short.is_elapsed());
        assert!(poll_once(&mut short).await.is_ready());
    });
}

fn sleeps_wake_in_the_order_of_their_deadlines(build: Build) {
    run_paused(build, async {
        let start = now();
        let log = Log::new();
        let mut tasks = JoinSet::new();
        for (number, delay) in [5, 1, 3, 3, 1, 2].into_iter().enumerate() {
            let log = log.clone();
            tasks.spawn(async move {
                sleep_until(start + ms(delay)).await;
                log.add((delay, number));
            });
        }
        while tasks.join_next().await.is_some() {}
        assert_eq!(log.take(), [(1, 1), (1, 4), (2, 5), (3, 2), (3, 3), (5, 0)]);
    });
}

fn an_earlier_deadline_wakes_without_a_poll(build: Build) {
    run(build, async {
        let count = Arc::new(CountingWaker::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut long = sleep(LONG);
        assert!(poll_with(&mut long, &waker).is_pending());
        let deadline = now() + ms(1);
        long.reset(deadline);
        assert_eq!((long.deadline(), timers()), (deadline, 1));
        while count.count() == 0 {
            windlass_task::yield_now().await;
        }
        assert!(now() >= deadline);
        assert!(poll_with(&mut long, &waker).is_ready());
        assert_eq!(count.count(), 1);
    });
}

fn a_later_deadline_leaves_the_timer_and_is_not_early(build: Build) {
    run_paused(build, async {
        let start = now();
        let polls = Rc::new(Cell::new(0));
        let mut limit = sleep(ms(10));
        assert!(poll_once(&mut limit).await.is_pending());
        for add in 11..=100 {
            limit.reset(start + ms(add));
            assert_eq!(timers(), 1);
        }
        poll_fn(|context| {
            polls.set(polls.get() + 1);
            Pin::new(&mut limit).poll(context)
        })
        .await;
        assert_eq!(now() - start, ms(100));
        assert_eq!(polls.get(), 3, "the first, one at the old deadline, and the last");
    });
}

fn a_deadline_that_goes_forth_and_back_is_kept(build: Build) {
    run_paused(build, async {
        for deadlines in [[20, 5, 8], [5, 20, 8], [8, 5, 20], [5, 8, 20], [20, 8, 5]] {
            let start = now();
            let mut limit = sleep(ms(10));
            assert!(poll_once(&mut limit).await.is_pending());
            for deadline in deadlines {
                limit.reset(start + ms(deadline));
            }
            limit.await;
            assert_eq!(now() - start, ms(deadlines[2]));
        }
    });
}

fn a_sleep_that_was_ready_can_be_reset(build: Build) {
    run_paused(build, async {
        let start = now();
        let mut again = sleep(ms(1));
        for round in 1..5 {
            (&mut again).await;
            assert_eq!(now() - start, ms(round));
            again.reset(now() + ms(1));
            assert!(!again.is_elapsed());
        }
        // Reset between the firing and the poll.
        let mut fired = sleep(ms(1));
        assert!(poll_once(&mut fired).await.is_pending());
        windlass_task::time::advance(ms(2)).await;
        fired.reset(now() + ms(3));
        let before = now();
        fired.await;
        assert_eq!(now() - before, ms(3));
    });
}

fn the_last_waker_is_woken(build: Build) {
    run(build, async {
        let counts: Vec<_> = (0..3).map(|_| Arc::new(CountingWaker::default())).collect();
        let wakers: Vec<_> = counts.iter().map(|count| Waker::from(Arc::clone(count))).collect();
        let mut short = sleep(LONG);
        for waker in [0, 1, 1, 0, 2, 2] {
            assert!(poll_with(&mut short, &wakers[waker]).is_pending());
            assert_eq!(timers(), 1);
        }
        assert_eq!(Arc::strong_count(&counts[0]), 2, "only the last is kept");
        short.reset(now() + ms(1));
        while timers() > 0 {
            windlass_task::yield_now().await;
        }
        let counts: Vec<_> = counts.iter().map(|count| count.count()).collect();
        assert_eq!(counts, [0, 0, 1]);
    });
}

fn a_far_deadline_does_not_overflow(build: Build) {
    run(build, async {
        for span in [Duration::MAX, Duration::from_secs(1 << 40), Duration::from_nanos(u64::MAX)] {
            let mut far = sleep(span);
            assert!(poll_once(&mut far).await.is_pending());
            far.reset(far.deadline());
            assert!(!far.is_elapsed());
            assert!(poll_once(&mut far).await.is_pending());
        }
        assert_eq!(timers(), 0);
    });
}

fn a_sleep_that_is_dropped_after_k_polls_leaves_no_timer(build: Build) {
    run_paused(build, async {
        for polls in 0..4 {
            for span in [Duration::ZERO, ms(1), LONG] {
                let result = at_most(polls, sleep(span)).await;
                // When nothing else can run, the clock moves on.
                assert_eq!(result.is_some(), polls > usize::from(!span.is_zero()));
                assert_eq!(timers(), 0);
            }
        }
    });
}

fn many_sleeps_that_are_dropped_leave_no_timer(build: Build) {
    run(build, async {
        for _ in 0..2 {
            let mut sleeps: Vec<_> = (0..100_000).map(|_| sleep(LONG)).collect();
            poll_fn(|context| {
                for sleep in &mut sleeps {
                    // The budget is not asked outside of a poll of the executor's own.
                    assert!(Pin::new(sleep).poll(context).is_pending());
                }
                Poll::Ready(())
            })
            .await;
            assert_eq!(timers(), sleeps.len());
            drop(sleeps);
            assert_eq!(timers(), 0);
        }
    });
}

/// Small numbers that look random, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// Sleeps that are polled, reset and dropped at random are ready when a deadline says so.
fn random_sleeps_agree_with_their_deadlines(build: Build) {
    run_paused(build, async {
        let mut random = Random(17);
        let start = now();
        let time = |ns: u64| start + Duration::from_nanos(ns);
        let mut sleeps: Vec<(u64, Sleep, Arc<CountingWaker>)> = Vec::new();
        let mut passed = 0;
        for _ in 0..3000 {
            let place = usize::try_from(random.below(20)).unwrap();
            let deadline = passed + random.below(5000);
            match (random.below(8), sleeps.get_mut(place)) {
                (0..3, None) => {
                    sleeps.push((deadline, sleep_until(time(deadline)), Arc::default()));
                }
                (0, Some(_)) => drop(sleeps.swap_remove(place)),
                (1 | 2, Some((due, sleep, _))) => {
                    *due = deadline;
                    sleep.reset(time(deadline));
                }
                (3..6, Some((due, sleep, count))) => {
                    *count = Arc::default();
                    let poll = poll_with(sleep, &Waker::from(Arc::clone(count)));
                    assert_eq!(poll.is_ready(), *due <= passed);
                }
                _ => {
                    let span = random.below(1000);
                    passed += span;
                    advance(Duration::from_nanos(span)).await;
                    assert_eq!(now(), time(passed));
                }
            }
            for (due, sleep, count) in &mut sleeps {
                assert_eq!(sleep.is_elapsed(), *due <= passed);
                // One that waits is woken when it is due. It may be woken in vain before.
                if Arc::strong_count(count) > 1 || count.count() > 0 {
                    assert!(*due > passed || count.count() > 0, "{due} {passed}");
                }
            }
            assert!(timers() <= sleeps.len());
        }
        drop(sleeps);
        assert_eq!(timers(), 0);
    });
}

fn sleeps_in_tasks_end_with_the_executor(build: Build) {
    let mut executor = Executor::builder().reactor(build()).build().unwrap();
    let tasks = executor.block_on(async {
        let tasks: Vec<_> = (0..100).map(|_| spawn(sleep(LONG))).collect();
        while timers() < 100 {
            windlass_task::yield_now().await;
        }
        assert_eq!(stats().unwrap().tasks, 101);
        tasks
    });
    drop(executor);
    assert!(tasks.iter().all(windlass_task::JoinHandle::is_finished));
}

scenarios! {
    a_sleep_is_never_early,
    the_timer_starts_with_the_first_poll_and_ends_with_the_sleep,
    a_sleep_of_zero_and_one_in_the_past_need_no_turn,
    a_span_that_is_over_when_it_is_polled_needs_no_turn,
    a_reset_to_the_past_is_ready_at_the_next_poll,
    a_sleep_stays_ready,
    sleeps_wake_in_the_order_of_their_deadlines,
    an_earlier_deadline_wakes_without_a_poll,
    a_later_deadline_leaves_the_timer_and_is_not_early,
    a_deadline_that_goes_forth_and_back_is_kept,
    a_sleep_that_was_ready_can_be_reset,
    the_last_waker_is_woken,
    a_far_deadline_does_not_overflow,
    a_sleep_that_is_dropped_after_k_polls_leaves_no_timer,
    many_sleeps_that_are_dropped_leave_no_timer,
    random_sleeps_agree_with_their_deadlines,
    sleeps_in_tasks_end_with_the_executor,
}
