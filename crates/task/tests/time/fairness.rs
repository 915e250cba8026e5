//! Sleeps beside other work: nobody waits for ever.

use std::{
    cell::Cell,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use windlass_task::{
    SpawnReason, spawn, stats,
    time::{now, sleep, sleep_until},
    yield_now,
};

use crate::{
    scenarios::Build,
    tools::{executor, ms, run},
};

fn elapsed_sleeps_count_for_the_budget(build: Build) {
    run(build, async {
        let others = Rc::new(Cell::new(0));
        let count = Rc::clone(&others);
        let other = spawn(async move {
            loop {
                count.set(count.get() + 1);
                yield_now().await;
            }
        });
        let before = stats().unwrap().budget_exhausted;
        for _ in 0..50 {
            sleep(Duration::ZERO).await;
            sleep_until(now()).await;
        }
        assert_eq!(stats().unwrap().budget_exhausted - before, 3);
        assert!(others.get() >= 3);
        other.abort();
    });
}

fn sleeps_end_beside_tasks_that_never_rest(build: Build) {
    run(build, async {
        let busy: Vec<_> = (0..100)
            .map(|_| {
                spawn(async {
                    loop {
                        yield_now().await;
                    }
                })
            })
            .collect();
        for _ in 0..5 {
            sleep(ms(1)).await;
        }
        busy.iter().for_each(windlass_task::JoinHandle::abort);
    });
}

/// corosio's scenario: timers under a flood of posts.
fn sleeps_end_under_a_flood_of_spawns_of_other_threads(build: Build) {
    let mut executor = executor(build);
    let (is_over, has_begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (spawner, is_over) = (executor.spawner(), Arc::clone(&is_over));
            let has_begun = Arc::clone(&has_begun);
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    match spawner.spawn(async {}) {
                        Ok(()) => has_begun.store(true, Ordering::Relaxed),
                        Err(error) => {
                            assert_eq!(error.reason, SpawnReason::Full);
                            thread::yield_now();
                        }
                    }
                }
            })
        })
        .collect();
    executor.block_on(async {
        while !has_begun.load(Ordering::Relaxed) {
            yield_now().await;
        }
        let deadline = now() + ms(10);
        for _ in 0..5 {
            sleep(ms(1)).await;
        }
        sleep_until(deadline).await;
        is_over.store(true, Ordering::Relaxed);
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A sleep that is due at once in every turn starves nobody either.
fn tasks_run_beside_sleeps_that_are_always_due(build: Build) {
    run(build, async {
        let sleepers: Vec<_> = (0..100)
            .map(|_| {
                spawn(async {
                    loop {
                        sleep(Duration::from_nanos(1)).await;
                    }
                })
            })
            .collect();
        for _ in 0..1000 {
            yield_now().await;
        }
        sleepers.iter().for_each(windlass_task::JoinHandle::abort);
    });
}

scenarios! {
    elapsed_sleeps_count_for_the_budget,
    sleeps_end_beside_tasks_that_never_rest,
    sleeps_end_under_a_flood_of_spawns_of_other_threads,
    tasks_run_beside_sleeps_that_are_always_due,
}
