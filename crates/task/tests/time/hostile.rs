//! Wakers that panic, or drop what they wake.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    task::{Wake, Waker},
};

use windlass_task::{
    time::{Sleep, now, sleep},
    yield_now,
};

use crate::{
    counting_waker::CountingWaker,
    scenarios::Build,
    tools::{LONG, executor, ms, poll_once, poll_with, run, timers},
};

/// Panics when it is woken.
struct PanicsOnWake;

impl Wake for PanicsOnWake {
    fn wake(self: Arc<Self>) {
        resume_unwind(Box::new("wake"));
    }
}

fn a_waker_that_panics_does_not_keep_others_from_being_woken(build: Build) {
    let mut executor = executor(build);
    let counts: Vec<_> = (0..3).map(|_| Arc::new(CountingWaker::default())).collect();
    let mut sleeps = Vec::new();
    let run = catch_unwind(AssertUnwindSafe(|| {
        executor.block_on(async {
            for count in &counts {
                for waker in [Waker::from(Arc::new(PanicsOnWake)), Waker::from(Arc::clone(count))] {
                    let mut next = sleep(LONG);
                    assert!(poll_with(&mut next, &waker).is_pending());
                    sleeps.push(next);
                }
            }
            let deadline = now() + ms(1);
            sleeps.iter_mut().for_each(|sleep| sleep.reset(deadline));
            while timers() > 0 {
                yield_now().await;
            }
        });
    }));
    assert_eq!(run.unwrap_err().downcast_ref(), Some(&"wake"));
    for _ in 0..2 {
        let run = catch_unwind(AssertUnwindSafe(|| executor.block_on(sleep(ms(1)))));
        drop(run);
    }
    executor.block_on(async {
        while timers() > 0 {
            yield_now().await;
        }
        for sleep in &mut sleeps {
            assert!(poll_once(sleep).await.is_ready());
        }
    });
    assert!(counts.iter().all(|count| count.count() == 1));
}

thread_local! {
    /// What the waker below drops or polls.
    static VICTIMS: RefCell<Vec<Sleep>> = const { RefCell::new(Vec::new()) };
}

/// Drops sleeps when it is woken, its own among them.
struct DropsOnWake;

impl Wake for DropsOnWake {
    fn wake(self: Arc<Self>) {
        drop(VICTIMS.take());
    }
}

fn a_waker_may_drop_the_sleep_that_wakes_it_and_others(build: Build) {
    run(build, async {
        for first in [0, 1] {
            let waker = Waker::from(Arc::new(DropsOnWake));
            for _ in 0..2 {
                let mut next = sleep(LONG);
                assert!(poll_with(&mut next, &waker).is_pending());
                VICTIMS.with_borrow_mut(|victims| victims.push(next));
            }
            VICTIMS.with_borrow_mut(|victims| victims[first].reset(now() + ms(1)));
            while timers() > 0 {
                yield_now().await;
            }
            assert!(VICTIMS.take().is_empty());
        }
    });
}

/// Panics when the last reference is dropped.
struct PanicsOnDrop;

impl Wake for PanicsOnDrop {
    fn wake(self: Arc<Self>) {}
}

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        resume_unwind(Box::new("drop"));
    }
}

fn a_waker_whose_destructor_panics_leaves_no_timer(build: Build) {
    run(build, async {
        let mut long = sleep(LONG);
        let waker = Waker::from(Arc::new(PanicsOnDrop));
        assert!(poll_with(&mut long, &waker).is_pending());
        drop(waker);
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(long)));
        assert_eq!(dropped.unwrap_err().downcast_ref(), Some(&"drop"));
        assert_eq!(timers(), 0);

        // When it is replaced by another waker.
        let mut long = sleep(LONG);
        let waker = Waker::from(Arc::new(PanicsOnDrop));
        assert!(poll_with(&mut long, &waker).is_pending());
        drop(waker);
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let _ = poll_with(&mut long, Waker::noop());
        }));
        assert_eq!(polled.unwrap_err().downcast_ref(), Some(&"drop"));
        assert_eq!(timers(), 0);
        assert!(poll_once(&mut long).await.is_pending());
        assert_eq!(timers(), 1);
    });
}

scenarios! {
    a_waker_that_panics_does_not_keep_others_from_being_woken,
    a_waker_may_drop_the_sleep_that_wakes_it_and_others,
    a_waker_whose_destructor_panics_leaves_no_timer,
}
