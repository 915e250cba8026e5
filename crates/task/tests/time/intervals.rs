//! Intervals, with the paused clock: the times are exact.

use std::{
    cell::RefCell,
    future::poll_fn,
    rc::Rc,
    time::{Duration, Instant},
};

use windlass_task::{
    spawn,
    time::{Interval, MissedTickBehavior, advance, interval, interval_at, now, sleep, timeout},
};

use crate::{
    scenarios::Build,
    tools::{LONG, at_most, ms, poll_once, run, run_paused, timers, turns, two_turns},
};

/// The times of some ticks after `start`, in milliseconds: when they were due and when they came.
/// After each tick, the test works for so long.
async fn ticks(interval: &mut Interval, start: Instant, work_ms: &[u64]) -> Vec<(u128, u128)> {
    let mut times = Vec::new();
    for work in work_ms {
        let due = interval.tick().await;
        times.push(((due - start).as_millis(), (now() - start).as_millis()));
        sleep(ms(*work)).await;
    }
    times
}

fn the_first_tick_is_at_once(build: Build) {
    run_paused(build, async {
        let start = now();
        let mut interval = interval(ms(10));
        assert_eq!(interval.period(), ms(10));
        let times = ticks(&mut interval, start, &[0, 3, 9, 0]).await;
        assert_eq!(times, [(0, 0), (10, 10), (20, 20), (30, 30)]);
    });
}

fn an_interval_begins_at_its_start(build: Build) {
    run_paused(build, async {
        let start = now();
        let mut interval = interval_at(start + ms(7), ms(10));
        assert_eq!(ticks(&mut interval, start, &[0, 0]).await, [(7, 7), (17, 17)]);
    });
}

const WORK: [u64; 6] = [0, 35, 0, 0, 0, 0];

fn missed_ticks_burst(build: Build) {
    run_paused(build, async {
        let start = now();
        let mut interval = interval(ms(10));
        assert_eq!(interval.missed_tick_behavior(), MissedTickBehavior::Burst);
        let times = ticks(&mut interval, start, &WORK).await;
        assert_eq!(times, [(0, 0), (10, 10), (20, 45), (30, 45), (40, 45), (50, 50)]);
    });
}

fn missed_ticks_delay(build: Build) {
    run_paused(build, async {
        let start = now();
        let mut interval = interval(ms(10));
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let times = ticks(&mut interval, start, &WORK).await;
        assert_eq!(times, [(0, 0), (10, 10), (20, 45), (55, 55), (65, 65), (75, 75)]);
        // A tick that is hardly late shifts nothing.
        let start = start + ms(75);
        let times = ticks(&mut interval, start, &[14, 0, 0]).await;
        assert_eq!(times, [(10, 10), (20, 24), (30, 30)]);
    });
}

fn missed_ticks_skip(build: Build) {
    run_paused(build, async {
        let start = now();
        let mut interval = interval(ms(10));
        interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let times = ticks(&mut interval, start, &WORK).await;
        assert_eq!(times, [(0, 0), (10, 10), (20, 45), (50, 50), (60, 60), (70, 70)]);
    });
}

fn an_interval_can_be_reset(build: Build) {
    run_paused(build, async {
        let start = now();
        let mut interval = interval(ms(10));
        interval.tick().await;
        advance(ms(4)).await;
        interval.reset();
        assert_eq!(ticks(&mut interval, start, &[0]).await, [(14, 14)]);
        interval.reset_immediately();
        assert_eq!(ticks(&mut interval, start, &[0, 0]).await, [(14, 14), (24, 24)]);
        interval.reset_after(ms(3));
        assert_eq!(ticks(&mut interval, start, &[0, 0]).await, [(27, 27), (37, 37)]);
        interval.reset_at(start + ms(60));
        assert_eq!(ticks(&mut interval, start, &[0, 0]).await, [(60, 60), (70, 70)]);
    });
}

fn a_tick_that_is_dropped_is_not_lost(build: Build) {
    run_paused(build, async {
        for polls in 0..2 {
            let start = now();
            let mut interval = interval_at(start + ms(10), ms(10));
            assert_eq!(at_most(polls, interval.tick()).await, None);
            assert!(timeout(ms(5), interval.tick()).await.is_err());
            assert_eq!(ticks(&mut interval, start, &[0, 0]).await, [(10, 10), (20, 20)]);
            drop(interval);
            assert_eq!(timers(), 0);
        }
    });
}

fn a_tick_is_pending_until_it_is_due(build: Build) {
    run_paused(build, async {
        let mut interval = interval(ms(10));
        let mut first = Box::pin(interval.tick());
        assert!(poll_once(&mut first).await.is_ready());
        drop(first);
        assert!(poll_once(&mut Box::pin(interval.tick())).await.is_pending());
        advance(ms(9)).await;
        assert!(poll_once(&mut Box::pin(interval.tick())).await.is_pending());
        advance(ms(1)).await;
        assert!(poll_once(&mut Box::pin(interval.tick())).await.is_ready());
    });
}

/// Also where its timer runs already, which another poll waits for.
fn a_reset_to_now_is_ready_at_the_next_poll(build: Build) {
    run(build, async {
        let mut interval = interval(LONG);
        interval.tick().await;
        for polls in 0..3 {
            for _ in 0..polls {
                assert!(poll_once(&mut Box::pin(interval.tick())).await.is_pending());
            }
            let before = turns();
            interval.reset_immediately();
            assert!(poll_once(&mut Box::pin(interval.tick())).await.is_ready());
            assert_eq!(turns(), before);
        }
        // A task that waits is woken.
        let interval = Rc::new(RefCell::new(interval));
        let shared = Rc::clone(&interval);
        let task = spawn(poll_fn(move |context| shared.borrow_mut().poll_tick(context)));
        two_turns().await;
        interval.borrow_mut().reset_immediately();
        task.await.unwrap();
    });
}

fn a_long_period_does_not_overflow(build: Build) {
    run_paused(build, async {
        let mut interval = interval(Duration::MAX);
        interval.tick().await;
        assert!(poll_once(&mut Box::pin(interval.tick())).await.is_pending());
        interval.reset();
        interval.reset_after(Duration::MAX);
        assert!(poll_once(&mut Box::pin(interval.tick())).await.is_pending());
    });
}

#[test]
#[should_panic(expected = "the period of an interval is zero")]
fn a_period_of_zero_panics() {
    drop(interval(Duration::ZERO));
}

scenarios! {
    the_first_tick_is_at_once,
    an_interval_begins_at_its_start,
    missed_ticks_burst,
    missed_ticks_delay,
    missed_ticks_skip,
    an_interval_can_be_reset,
    a_tick_that_is_dropped_is_not_lost,
    a_tick_is_pending_until_it_is_due,
    a_reset_to_now_is_ready_at_the_next_poll,
    a_long_period_does_not_overflow,
}
