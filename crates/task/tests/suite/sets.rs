//! `JoinSet`.

use std::{
    future::pending,
    task::{Poll, Waker},
};

use windlass_task::{JoinSet, spawn, stats, yield_now};

use crate::tools::{Drops, Flag, block_on, executor};

#[test]
fn outputs_come_in_the_order_in_which_tasks_finish() {
    block_on(async {
        let flags: Vec<Flag> = (0..3).map(|_| Flag::default()).collect();
        let mut set = JoinSet::new();
        for (number, flag) in flags.iter().cloned().enumerate() {
            set.spawn(async move {
                flag.wait().await;
                number
            });
        }
        assert_eq!(set.len(), 3);
        assert!(set.try_join_next().is_none());
        for number in [2, 0, 1] {
            flags[number].set();
            assert_eq!(set.join_next().await.unwrap().unwrap(), number);
        }
        assert!(set.is_empty());
        assert!(set.join_next().await.is_none());
    });
}

#[test]
fn members_come_and_go_and_places_are_used_again() {
    let rounds = if cfg!(miri) { 20 } else { 100 };
    block_on(async move {
        let mut set = JoinSet::new();
        let mut sum = 0;
        for round in 0..rounds {
            set.spawn(async move { round });
            set.spawn(async move {
                yield_now().await;
                round
            });
            sum += set.join_next().await.unwrap().unwrap();
        }
        let rest = set.join_all().await;
        sum += rest.into_iter().map(Result::unwrap).sum::<i32>();
        assert_eq!(sum, 2 * (0..rounds).sum::<i32>());
    });
}

#[test]
fn dropping_a_set_aborts_its_tasks() {
    let drops = Drops::default();
    block_on(async {
        let mut set = JoinSet::new();
        for _ in 0..3 {
            let token = drops.token();
            set.spawn(async move {
                let _token = token;
                pending::<()>().await;
            });
        }
        yield_now().await;
        drop(set);
        assert_eq!(drops.count(), 0, "never inline");
        yield_now().await;
        assert_eq!(drops.count(), 3);
    });
}

#[test]
fn a_detached_set_lets_its_tasks_go_on() {
    let drops = Drops::default();
    block_on(async {
        let flag = Flag::default();
        let mut set = JoinSet::new();
        for _ in 0..3 {
            let (token, wait) = (drops.token(), flag.clone());
            set.spawn(async move {
                wait.wait().await;
                token
            });
        }
        yield_now().await;
        set.detach_all();
        assert!(set.is_empty());
        drop(set);
        yield_now().await;
        assert_eq!(drops.count(), 0);
        flag.set();
        yield_now().await;
        assert_eq!(drops.count(), 3);
    });
}

#[test]
fn shutdown_waits_for_the_end_of_all() {
    block_on(async {
        let mut set = JoinSet::new();
        set.spawn(pending::<()>());
        set.spawn(async {});
        let aborted = set.spawn(pending::<()>());
        aborted.abort();
        set.shutdown().await;
        assert!(aborted.is_finished());
        assert_eq!((set.len(), stats().unwrap().tasks), (0, 1));
    });
}

#[test]
fn a_panic_and_an_abort_are_outputs() {
    block_on(async {
        let mut set = JoinSet::new();
        set.spawn(async { std::panic::resume_unwind(Box::new("bad")) });
        assert!(set.join_next().await.unwrap().unwrap_err().is_panic());
        set.spawn(pending::<()>()).abort();
        assert!(set.join_next().await.unwrap().unwrap_err().is_cancelled());
    });
}

#[test]
fn a_set_may_outlive_its_executor() {
    let mut executor = executor();
    let mut set = JoinSet::new();
    executor.block_on(async { set.spawn(pending::<()>()) });
    drop(executor);
    let mut context = std::task::Context::from_waker(Waker::noop());
    let Poll::Ready(Some(Err(error))) = set.poll_join_next(&mut context) else {
        panic!("the task was not cancelled")
    };
    assert!(error.is_cancelled());
}

#[test]
fn a_set_has_tasks_of_several_executors() {
    let mut executors = [executor(), executor()];
    let mut set = JoinSet::new();
    for (number, executor) in executors.iter().enumerate() {
        set.spawn_on(async move { number }, executor);
    }
    let aborted = set.spawn_on(pending(), &executors[0]);
    aborted.abort();
    let [first, second] = &mut executors;
    assert_eq!(first.block_on(set.join_next()).unwrap().unwrap(), 0);
    assert!(first.block_on(set.join_next()).unwrap().unwrap_err().is_cancelled());
    assert!(set.try_join_next().is_none(), "the other executor has not run");
    assert_eq!(second.block_on(set.join_next()).unwrap().unwrap(), 1);
    assert!(set.is_empty());
}

/// One executor wakes the task of the other that waits for the set.
#[test]
fn a_task_waits_for_a_set_whose_tasks_another_executor_runs() {
    let (mut here, mut there) = (executor(), executor());
    let mut set = JoinSet::new();
    set.spawn_on(async { 7 }, &there);
    let mut waiting = here.spawn(async move { set.join_next().await.unwrap().unwrap() });
    here.block_on(yield_now());
    assert!(!waiting.is_finished());
    there.block_on(yield_now());
    assert_eq!(here.block_on(&mut waiting).unwrap(), 7);
}

#[test]
fn a_set_is_collected_and_extended() {
    block_on(async {
        let mut set: JoinSet<_> = (0..3).map(std::future::ready).collect();
        set.extend((3..6).map(std::future::ready));
        assert_eq!(set.len(), 6);
        let outputs = set.join_all().await;
        assert!(outputs.into_iter().map(Result::unwrap).eq(0..6));
    });
}

#[test]
fn a_set_with_many_finished_tasks_keeps_to_the_budget() {
    block_on(async {
        let mut set = JoinSet::new();
        for _ in 0..100 {
            set.spawn(async {});
        }
        let other = spawn(async {});
        while set.len() > 60 {
            set.join_next().await.unwrap().unwrap();
        }
        assert!(other.is_finished(), "a task that is always ready lets others run");
    });
}
