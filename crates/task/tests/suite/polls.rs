//! Futures that are dropped after k polls, for every k.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

use windlass_task::{JoinSet, spawn, spawn_blocking, yield_now};

use crate::tools::{Drops, Flag, executor};

type Scenario = fn(&Drops) -> Pin<Box<dyn Future<Output = ()>>>;

/// Polls a future at most `count` times and drops it then. False if it was pending.
async fn limited(future: Pin<Box<dyn Future<Output = ()>>>, count: usize) -> bool {
    let (mut future, mut left) = (Some(future), count);
    poll_fn(move |context| {
        if left == 0 {
            future = None;
            return Poll::Ready(false);
        }
        left -= 1;
        let is_ready = future.as_mut().unwrap().as_mut().poll(context).is_ready();
        if is_ready {
            future = None;
            return Poll::Ready(true);
        }
        if left == 0 {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

/// Runs a scenario with each number of polls, until one is enough. Everything must be dropped then,
/// and the executor must go on.
fn every_count(scenario: Scenario) {
    for count in 0..1000 {
        let drops = Drops::default();
        let mut executor = executor();
        let is_ready = executor.block_on(limited(scenario(&drops), count));
        executor.block_on(async { spawn(async {}).await.unwrap() });
        drop(executor);
        let made = drops.made();
        assert_eq!(drops.count(), made, "after {count} polls");
        if is_ready {
            assert!(made > 0 && count > 1, "the scenario does something: {count}");
            return;
        }
    }
    panic!("the scenario never ends");
}

#[test]
fn of_a_join_handle() {
    every_count(|drops| {
        let drops = drops.clone();
        Box::pin(async move {
            for _ in 0..3 {
                let token = drops.token();
                let task = spawn(async move {
                    yield_now().await;
                    token
                });
                let _mine = drops.token();
                drop(task.await.unwrap());
            }
        })
    });
}

#[test]
fn of_a_join_set() {
    every_count(|drops| {
        let drops = drops.clone();
        Box::pin(async move {
            let mut set = JoinSet::new();
            let flag = Flag::default();
            for number in 0..4 {
                let (token, flag) = (drops.token(), flag.clone());
                set.spawn(async move {
                    if number == 3 {
                        flag.wait().await;
                    }
                    for _ in 0..number {
                        yield_now().await;
                    }
                    token
                });
            }
            while let Some(output) = set.join_next().await {
                drop(output.unwrap());
                if set.len() == 1 {
                    flag.set();
                }
            }
        })
    });
}

#[test]
fn of_a_task_that_is_aborted() {
    every_count(|drops| {
        let drops = drops.clone();
        Box::pin(async move {
            let token = drops.token();
            let task = spawn(async move {
                let _token = token;
                std::future::pending::<()>().await;
            });
            yield_now().await;
            task.abort();
            yield_now().await;
            assert!(task.await.unwrap_err().is_cancelled());
        })
    });
}

#[test]
#[cfg_attr(miri, ignore = "starts a thread for each count")]
fn of_a_blocking_closure() {
    every_count(|drops| {
        let drops = drops.clone();
        Box::pin(async move {
            let _token = drops.token();
            for _ in 0..3 {
                spawn_blocking(|| ()).unwrap().await.unwrap();
                yield_now().await;
            }
        })
    });
}

#[test]
fn of_tasks_that_wait_for_tasks() {
    fn nested(depth: usize, drops: Drops) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(async move {
            let _token = drops.token();
            if depth > 0 {
                spawn(nested(depth - 1, drops)).await.unwrap();
            }
        })
    }
    every_count(|drops| nested(4, drops.clone()));
}
