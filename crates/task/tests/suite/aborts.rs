//! Aborting tasks.

use std::{future::pending, thread};

use windlass_task::{spawn, yield_now};

use crate::tools::{Drops, Flag, block_on, executor, own_waker};

#[test]
fn abort_drops_the_future_at_its_next_turn_and_never_inline() {
    let drops = Drops::default();
    let token = drops.token();
    block_on(async {
        let task = spawn(async move {
            let _token = token;
            pending::<()>().await;
        });
        yield_now().await;
        task.abort();
        assert_eq!(drops.count(), 0, "not inside of `abort`");
        assert!(!task.is_finished());
        yield_now().await;
        assert_eq!(drops.count(), 1);
        assert!(task.is_finished());
        assert!(task.await.unwrap_err().is_cancelled());
    });
}

#[test]
fn a_task_that_is_aborted_before_it_starts_is_never_polled() {
    block_on(async {
        let task = spawn(async { panic!("polled") });
        task.abort();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    });
}

#[test]
fn a_task_that_is_ready_keeps_its_output() {
    block_on(async {
        let task = spawn(async { 3 });
        yield_now().await;
        task.abort();
        yield_now().await;
        assert_eq!(task.await.unwrap(), 3);
    });
}

#[test]
fn a_task_may_abort_itself() {
    block_on(async {
        let (slot, taken) = async_slot();
        let ready = spawn(async move {
            let handle: windlass_task::AbortHandle = taken.await;
            handle.abort();
            1
        });
        slot(ready.abort_handle());
        assert_eq!(ready.await.unwrap(), 1, "it is ready in the same poll");

        let (slot, taken) = async_slot();
        let waiting = spawn(async move {
            let handle: windlass_task::AbortHandle = taken.await;
            handle.abort();
            pending::<()>().await;
        });
        slot(waiting.abort_handle());
        assert!(waiting.await.unwrap_err().is_cancelled());
    });
}

/// A value that is given later.
fn async_slot<T: 'static>() -> (impl FnOnce(T), impl Future<Output = T>) {
    let slot = std::rc::Rc::new(std::cell::Cell::new(None));
    let given = std::rc::Rc::clone(&slot);
    let flag = Flag::default();
    let wait = flag.clone();
    let give = move |value| {
        slot.set(Some(value));
        flag.set();
    };
    (give, async move {
        wait.wait().await;
        given.take().unwrap()
    })
}

use std::future::Future;

#[test]
fn an_abort_from_another_thread_drops_the_future_on_its_own() {
    let drops = Drops::default();
    let token = drops.token();
    let (handle, output) = block_on(async {
        let task = spawn(async move {
            let _token = token;
            pending::<()>().await;
        });
        yield_now().await;
        let handle = task.abort_handle();
        thread::spawn({
            let handle = handle.clone();
            move || handle.abort()
        });
        (handle, task.await)
    });
    assert!(output.unwrap_err().is_cancelled());
    assert_eq!(drops.thread(), Some(thread::current().id()));
    assert!(handle.is_finished());
    handle.abort();
}

#[test]
fn aborting_after_the_end_of_the_executor_does_nothing() {
    let executor = executor();
    let task = executor.spawn(pending::<()>());
    let handle = task.abort_handle();
    drop(executor);
    assert!(task.is_finished());
    handle.abort();
    task.abort();
    thread::spawn(move || handle.abort()).join().unwrap();
}

#[test]
fn a_waker_of_an_aborted_task_does_nothing() {
    block_on(async {
        let (slot, taken) = async_slot();
        let task = spawn(async move {
            slot(own_waker().await);
            pending::<()>().await;
        });
        let waker = taken.await;
        task.abort();
        waker.wake_by_ref();
        assert!(task.await.unwrap_err().is_cancelled());
        waker.wake();
        yield_now().await;
    });
}
