//! The timer of hyper, from the feature `hyper`.

use std::{cell::Cell, pin::Pin, rc::Rc, sync::Arc, task::Waker, time::Instant};

use hyper::rt::{Executor as _, Timer as _};
use windlass_task::{
    rt::{WindlassExecutor, WindlassTimer},
    time::{advance, now, sleep_until},
    yield_now,
};

use crate::{
    counting_waker::CountingWaker,
    scenarios::Build,
    tools::{LONG, ms, poll_once, poll_with, run, run_paused, timers},
};

type BoxedSleep = Pin<Box<dyn hyper::rt::Sleep>>;

fn sleeps_of_hyper_are_ready_in_time_and_can_be_reset(build: Build) {
    run_paused(build, async {
        let timer = WindlassTimer::new();
        let start = timer.now();
        timer.sleep(ms(30)).await;
        timer.sleep_until(start + ms(50)).await;
        assert_eq!(timer.now(), start + ms(50));
        let mut sleep = timer.sleep(LONG);
        assert!(poll_once(&mut sleep).await.is_pending());
        timer.reset(&mut sleep, start + ms(70));
        sleep.await;
        assert_eq!(now(), start + ms(70));
        let mut later = timer.sleep(ms(1));
        timer.reset(&mut later, start + ms(90));
        later.await;
        assert_eq!(now(), start + ms(90));
    });
}

fn a_sleep_of_another_runtime_is_replaced_by_a_reset(build: Build) {
    struct Other;
    impl Future for Other {
        type Output = ();
        fn poll(
            self: Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Self::Output> {
            unreachable!("it was replaced");
        }
    }
    impl hyper::rt::Sleep for Other {}
    run_paused(build, async {
        let mut sleep: BoxedSleep = Box::pin(Other);
        let deadline = now() + ms(5);
        WindlassTimer::new().reset(&mut sleep, deadline);
        sleep.await;
        assert_eq!(now(), deadline);
    });
}

/// hyper makes and drops a sleep for each request. The reactor's timer stays.
fn the_next_sleep_uses_the_timer_of_the_last_one(build: Build) {
    run_paused(build, async {
        let (timer, start) = (WindlassTimer::new(), now());
        let mut first = timer.sleep_until(start + ms(10));
        assert_eq!(timers(), 0);
        assert!(poll_once(&mut first).await.is_pending());
        assert_eq!(timers(), 1);
        drop(first);
        assert_eq!(timers(), 1, "it is kept");
        let mut second = timer.sleep_until(start + ms(30));
        assert!(poll_once(&mut second).await.is_pending());
        assert_eq!(timers(), 1, "it is used again");
        // One more at the same time has a timer of its own, and one is kept of the two.
        let mut third = timer.sleep_until(start + ms(25));
        assert!(poll_once(&mut third).await.is_pending());
        assert_eq!(timers(), 2);
        drop(third);
        second.await;
        assert_eq!(now(), start + ms(30));
        // An earlier deadline than that of the kept timer.
        let mut fourth = timer.sleep_until(start + LONG);
        assert!(poll_once(&mut fourth).await.is_pending());
        drop(fourth);
        timer.sleep_until(start + ms(40)).await;
        assert_eq!(now(), start + ms(40));
        drop(timer);
        assert_eq!(timers(), 0, "the timer keeps no sleep that it does not own");
    });
}

fn a_kept_sleep_wakes_once_in_vain(build: Build) {
    run_paused(build, async {
        let (timer, start) = (WindlassTimer::new(), now());
        let count = Arc::new(CountingWaker::default());
        let waker = Waker::from(Arc::clone(&count));
        assert!(poll_with(&mut timer.sleep_until(start + ms(10)), &waker).is_pending());
        sleep_until(start + LONG).await;
        assert_eq!((count.count(), timers()), (1, 0));
        // The timer has fired, so the next sleep needs another one.
        let deadline = start + LONG + ms(10);
        timer.sleep_until(deadline).await;
        assert_eq!(now(), deadline);
    });
}

/// With another waker the timer cannot stay.
fn a_timer_may_be_shared_by_tasks(build: Build) {
    run_paused(build, async {
        let timer = WindlassTimer::new();
        let start = now();
        let mut first = timer.sleep_until(start + ms(10));
        assert!(poll_once(&mut first).await.is_pending());
        drop(first);
        let count = Arc::new(CountingWaker::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut second = timer.clone().sleep_until(start + ms(20));
        assert!(poll_with(&mut second, &waker).is_pending());
        advance(ms(25)).await;
        assert_eq!(count.count(), 1);
        assert!(poll_with(&mut second, &waker).is_ready());
    });
}

fn a_sleep_that_outlives_its_timer_ends_its_reactor_timer(build: Build) {
    run(build, async {
        let mut sleep = WindlassTimer::new().sleep(LONG);
        assert!(poll_once(&mut sleep).await.is_pending());
        assert_eq!(timers(), 1);
        drop(sleep);
        assert_eq!(timers(), 0);
    });
}

fn a_sleep_may_be_dropped_on_another_thread(build: Build) {
    run(build, async {
        let timer = WindlassTimer::new();
        let mut sleep = timer.sleep(LONG);
        assert!(poll_once(&mut sleep).await.is_pending());
        std::thread::spawn(move || drop(sleep)).join().unwrap();
        std::thread::spawn(move || drop(timer)).join().unwrap();
        // It was handed back, and the next sleep cancels it.
        let mut next = windlass_task::time::sleep(LONG);
        assert!(poll_once(&mut next).await.is_pending());
        assert_eq!(timers(), 1);
    });
}

fn futures_of_hyper_are_spawned_here_and_need_not_be_send(build: Build) {
    run(build, async {
        let is_done = Rc::new(Cell::new(false));
        let set = Rc::clone(&is_done);
        WindlassExecutor.execute(async move { set.set(true) });
        assert!(!is_done.get());
        yield_now().await;
        assert!(is_done.get());
    });
    let nowhere = std::panic::catch_unwind(|| WindlassExecutor.execute(async {}));
    let message = nowhere.unwrap_err();
    let message = message.downcast_ref::<String>().unwrap();
    assert!(message.contains("no executor runs on this thread"), "{message}");
}

fn the_time_is_that_of_the_system_without_a_paused_clock(build: Build) {
    run(build, async {
        let before = Instant::now();
        let now = WindlassTimer::new().now();
        assert!(before <= now && now <= Instant::now());
    });
}

scenarios! {
    sleeps_of_hyper_are_ready_in_time_and_can_be_reset,
    a_sleep_of_another_runtime_is_replaced_by_a_reset,
    the_next_sleep_uses_the_timer_of_the_last_one,
    a_kept_sleep_wakes_once_in_vain,
    a_timer_may_be_shared_by_tasks,
    a_sleep_that_outlives_its_timer_ends_its_reactor_timer,
    a_sleep_may_be_dropped_on_another_thread,
    futures_of_hyper_are_spawned_here_and_need_not_be_send,
    the_time_is_that_of_the_system_without_a_paused_clock,
}
