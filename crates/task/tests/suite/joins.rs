//! Join handles: outputs, panics, detaching, and the wakers that they keep.

use std::{
    any::Any,
    cell::Cell,
    future::pending,
    panic::panic_any,
    rc::Rc,
    sync::Arc,
    task::{Poll, Waker},
};

use windlass_task::{JoinError, JoinSet, spawn, yield_now};

use crate::{
    counting_waker::CountingWaker,
    panics::caught,
    tools::{Drops, Flag, OnDrop, block_on, executor, poll_once},
};

#[test]
fn a_panic_of_a_task_is_in_its_handle_and_the_others_go_on() {
    block_on(async {
        let before = spawn(async { 1 });
        let bad = spawn(async {
            if true {
                quiet_panic("in a task");
            }
            2
        });
        let after = spawn(async { 3 });
        assert_eq!(before.await.unwrap(), 1);
        let payload = bad.await.unwrap_err().try_into_panic().unwrap();
        assert_eq!(*payload.downcast::<&str>().unwrap(), "in a task");
        assert_eq!(after.await.unwrap(), 3);
    });
}

/// A panic that is not printed.
fn quiet_panic(payload: &'static str) {
    let payload = caught(|| panic_any(payload)).unwrap_err();
    std::panic::resume_unwind(payload);
}

#[test]
fn a_panic_of_the_futures_destructor_is_in_the_handle_and_the_output_is_dropped() {
    let drops = Drops::default();
    let output = drops.token();
    block_on(async {
        let task = spawn(async move {
            let _bomb = OnDrop(|| quiet_panic("when dropped"));
            // The bomb is dropped with the future, because it is still pending below.
            pending::<()>().await;
        });
        yield_now().await;
        task.abort();
        let error = task.await.unwrap_err();
        assert_eq!(format!("{error}"), "the task has panicked: when dropped");

        struct ReadyBomb(Option<crate::tools::Counted>);
        impl std::future::Future for ReadyBomb {
            type Output = crate::tools::Counted;
            fn poll(
                mut self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
            ) -> Poll<Self::Output> {
                Poll::Ready(self.0.take().unwrap())
            }
        }
        impl Drop for ReadyBomb {
            fn drop(&mut self) {
                quiet_panic("after it was ready");
            }
        }
        assert!(spawn(ReadyBomb(Some(output))).await.is_err_and(|error| error.is_panic()));
    });
    assert_eq!(drops.count(), 1);
}

#[test]
fn an_output_whose_destructor_panics_without_a_handle_stops_nothing() {
    block_on(async {
        drop(spawn(async { OnDrop(|| quiet_panic("output")) }));
        yield_now().await;
        assert_eq!(spawn(async { 1 }).await.unwrap(), 1);
    });
}

/// A panic of an output's destructor depends on nothing: it is never resumed.
#[test]
fn dropping_a_handle_resumes_no_panic_of_the_outputs_destructor() {
    let drops = Drops::default();
    block_on(async {
        for is_finished in [false, true] {
            let token = drops.token();
            let task = spawn(async {
                OnDrop(move || {
                    let _ = &token;
                    quiet_panic("output");
                })
            });
            if is_finished {
                yield_now().await;
            }
            assert_eq!(task.is_finished(), is_finished);
            caught(|| drop(task)).expect("the panic is not resumed");
            yield_now().await;
        }
        let mut set = JoinSet::new();
        for _ in 0..3 {
            let token = drops.token();
            set.spawn(async {
                OnDrop(move || {
                    let _ = &token;
                    quiet_panic("output");
                })
            });
        }
        yield_now().await;
        caught(|| set.detach_all()).expect("the panic is not resumed");
    });
    assert_eq!(drops.count(), 5);
}

#[test]
fn dropping_the_handle_detaches_and_the_output_is_dropped_at_the_end() {
    let drops = Drops::default();
    let token = drops.token();
    let flag = Flag::default();
    block_on(async {
        let wait = flag.clone();
        drop(spawn(async move {
            wait.wait().await;
            token
        }));
        yield_now().await;
        assert_eq!(drops.count(), 0);
        flag.set();
        yield_now().await;
        assert_eq!(drops.count(), 1);
    });
}

#[test]
fn an_output_that_nobody_takes_is_dropped_with_the_handle() {
    let drops = Drops::default();
    let token = drops.token();
    block_on(async {
        let task = spawn(async { token });
        yield_now().await;
        assert!(task.is_finished());
        assert_eq!(drops.count(), 0);
        drop(task);
        assert_eq!(drops.count(), 1);
    });
}

#[test]
fn the_waker_of_a_handle_is_dropped_when_the_task_ends_and_when_the_handle_is_dropped() {
    let counting = Arc::new(CountingWaker::default());
    let waker = Waker::from(Arc::clone(&counting));
    let flag = Flag::default();
    let mut executor = executor();
    let wait = flag.clone();
    let mut task = executor.spawn(async move { wait.wait().await });
    assert!(poll_once(&mut task, &waker).is_pending());
    let again = Waker::from(Arc::clone(&counting));
    assert!(poll_once(&mut task, &again).is_pending());
    assert_eq!(Arc::strong_count(&counting), 4, "two here, one in the task, one here");
    executor.block_on(yield_now());
    flag.set();
    executor.block_on(yield_now());
    assert_eq!((counting.count(), Arc::strong_count(&counting)), (1, 3));
    assert!(poll_once(&mut task, &waker).is_ready());

    let mut task = executor.spawn(pending::<()>());
    assert!(poll_once(&mut task, &waker).is_pending());
    assert_eq!(Arc::strong_count(&counting), 4);
    drop(task);
    assert_eq!(Arc::strong_count(&counting), 3);
}

#[test]
fn a_handle_that_is_polled_after_it_was_ready_panics() {
    let mut executor = executor();
    let mut task = executor.spawn(async {});
    executor.block_on(yield_now());
    assert!(poll_once(&mut task, Waker::noop()).is_ready());
    assert!(caught(|| drop(poll_once(&mut task, Waker::noop()))).is_err());
}

#[test]
fn tasks_that_wait_for_each_other_are_dropped_with_the_executor() {
    // A cycle: each task holds the handle of the other (tokio issues 6505 and 6986).
    let drops = Drops::default();
    let (first, second) = (drops.token(), drops.token());
    let mut executor = executor();
    executor.block_on(async {
        let slot = Rc::new(Cell::new(None));
        let given = Rc::clone(&slot);
        let one = spawn(async move {
            let _token = first;
            yield_now().await;
            let two: windlass_task::JoinHandle<()> = given.take().unwrap();
            let _ = two.await;
        });
        let two = spawn(async move {
            let _token = second;
            let _ = one.await;
        });
        slot.set(Some(two));
        yield_now().await;
        yield_now().await;
    });
    assert_eq!(drops.count(), 0);
    drop(executor);
    assert_eq!(drops.count(), 2);
}

#[test]
fn errors_convert_and_print() {
    let cancelled = std::io::Error::from(JoinError::Cancelled);
    assert_eq!(cancelled.to_string(), "the task was cancelled");
    let panicked = |payload: Box<dyn Any + Send>| JoinError::Panicked(payload.into());
    assert_eq!(panicked(Box::new(1)).to_string(), "the task has panicked");
    let panicked = panicked(Box::new(String::from("why")));
    assert_eq!(format!("{panicked:?}"), "Panicked(Some(\"why\"))");
    assert!(caught(|| panicked.resume_panic()).is_err());
    assert!(JoinError::Cancelled.resume_panic().unwrap_err().is_cancelled());
    assert!(JoinError::Cancelled.try_into_panic().unwrap_err().is_cancelled());
}

/// In place of `anyhow`, which asks for the same.
#[test]
fn a_question_mark_makes_an_error_for_all_threads_of_it() {
    async fn fails() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        spawn(async { quiet_panic("in a task") }).await?;
        Ok(())
    }
    let error = block_on(fails()).unwrap_err();
    assert_eq!(error.to_string(), "the task has panicked: in a task");
    // As an error of input and output, it is still there.
    let error = std::io::Error::from(*error.downcast::<JoinError>().unwrap());
    assert_eq!(error.to_string(), "the task has panicked: in a task");
    assert!(error.downcast::<JoinError>().unwrap().is_panic());
}

#[test]
fn an_error_takes_no_more_room_than_a_pointer() {
    assert_eq!(size_of::<JoinError>(), size_of::<usize>());
}
