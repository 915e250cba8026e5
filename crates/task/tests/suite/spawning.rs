//! Spawning from other threads.

use std::{
    rc::Rc,
    sync::{Arc, mpsc},
    thread,
};

use windlass_task::{SpawnReason, yield_now};

use crate::tools::{Drops, Flag, builder, executor};

#[test]
fn futures_of_other_threads_run_on_the_executors_thread() {
    let mut executor = executor();
    let spawner = executor.spawner();
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || {
        for number in 0..100 {
            let sender = sender.clone();
            spawner
                .spawn(async move {
                    yield_now().await;
                    sender.send((number, thread::current().id())).unwrap();
                })
                .unwrap();
        }
        spawner
            .spawn_with(move || {
                let number = Rc::new(100);
                async move {
                    yield_now().await;
                    sender.send((*number, thread::current().id())).unwrap();
                }
            })
            .unwrap();
    });
    let mut seen = Vec::new();
    executor.block_on(async {
        while seen.len() < 101 {
            seen.extend(receiver.try_iter());
            yield_now().await;
        }
    });
    thread.join().unwrap();
    let own = thread::current().id();
    assert!(seen.iter().enumerate().all(|(at, seen)| *seen == (at, own)), "{seen:?}");
}

#[test]
fn a_sleeping_executor_is_woken() {
    let mut executor = executor();
    let spawner = executor.spawner();
    let flag = Flag::default();
    let (ready, is_ready) = mpsc::channel();
    let thread = thread::spawn(move || {
        is_ready.recv().unwrap();
        spawner.spawn_with(|| async { FLAG.with(Flag::set) }).unwrap();
    });
    FLAG.with(|shared| {
        let shared = shared.clone();
        executor.block_on(async move {
            ready.send(()).unwrap();
            shared.wait().await;
        });
    });
    drop(flag);
    thread.join().unwrap();
}

std::thread_local! {
    static FLAG: Flag = Flag::default();
}

#[test]
fn a_full_queue_and_a_dead_executor_give_the_future_back() {
    let executor = builder().spawns_max(2).build().unwrap();
    let spawner = executor.spawner();
    let token = Arc::new(());
    let future = || {
        let token = Arc::clone(&token);
        async move { drop(token) }
    };
    spawner.spawn(future()).unwrap();
    let made = future();
    spawner.spawn_with(|| made).unwrap();
    let full = spawner.spawn(future()).unwrap_err();
    assert_eq!(full.reason, SpawnReason::Full);
    assert_eq!(Arc::strong_count(&token), 4, "here, two queued, one rejected");
    assert!(!spawner.is_closed());
    drop(executor);
    assert_eq!(Arc::strong_count(&token), 2, "queued futures are dropped with the executor");
    assert!(spawner.is_closed());
    let closed = spawner.spawn(full.rejected.into_inner()).unwrap_err();
    assert_eq!(closed.reason, SpawnReason::Closed);
    let error = std::io::Error::from(closed);
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    assert_eq!(Arc::strong_count(&token), 1);
}

#[test]
fn a_closure_that_panics_is_a_task_that_panics() {
    let mut executor = executor();
    let spawner = executor.spawner();
    spawner
        .spawn_with(|| -> std::future::Ready<()> { std::panic::resume_unwind(Box::new("make")) })
        .unwrap();
    executor.block_on(async {
        yield_now().await;
        yield_now().await;
    });
    assert_eq!(executor.stats().tasks, 0);
}

#[test]
fn more_futures_than_one_turn_takes_all_run() {
    // A turn takes 61.
    const COUNT: u32 = if cfg!(miri) { 150 } else { 1000 };
    let mut executor = executor();
    let spawner = executor.spawner();
    let (sender, receiver) = mpsc::channel();
    for number in 0..COUNT {
        let sender = sender.clone();
        spawner.spawn(async move { sender.send(number).unwrap() }).unwrap();
    }
    executor.block_on(async {
        while executor_is_busy(u64::from(COUNT)) {
            yield_now().await;
        }
    });
    assert!(receiver.try_iter().eq(0..COUNT));
    drop(Drops::default());
}

/// Whether not all of `count` futures have been taken and run, beside the one that asks.
fn executor_is_busy(count: u64) -> bool {
    let stats = windlass_task::stats().unwrap();
    stats.tasks > 1 || stats.spawned < count + 1
}
