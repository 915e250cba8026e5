//! A waker whose clone is the test's own code, as that of a foreign executor may be.

#![allow(unsafe_code, reason = "wakers made by hand, whose clones run a closure")]

use std::{
    cell::{Cell, RefCell},
    future::pending,
    pin::pin,
    ptr,
    rc::Rc,
    task::{Context, Poll, RawWaker, RawWakerVTable, Waker},
};

use rustix::io::write;
use windlass_task::{AsyncFd, Direction, Executor, JoinError, JoinSet, with_turn, yield_now};

use crate::tools::{executor, nonblocking_pair, poll_once};

thread_local! {
    /// What the next clone does.
    static ON_CLONE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    static WAKES: Cell<usize> = const { Cell::new(0) };
}

fn clone(_: *const ()) -> RawWaker {
    // The borrow ends before the call.
    let call = ON_CLONE.take();
    call.into_iter().for_each(|call| call());
    raw()
}

fn wake(_: *const ()) {
    WAKES.set(WAKES.get() + 1);
}

static TABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake, |_| ());

const fn raw() -> RawWaker {
    RawWaker::new(ptr::null(), &TABLE)
}

/// A waker whose next clone calls this.
fn waker(on_clone: impl FnOnce() + 'static) -> Waker {
    ON_CLONE.set(Some(Box::new(on_clone)));
    // SAFETY: the functions of the table take any pointer, and own nothing. What they use is that
    // of their thread.
    unsafe { Waker::from_raw(raw()) }
}

#[test]
fn a_clone_that_drops_the_executor_does_not_make_a_handle_wait_for_ever() {
    let executor = executor();
    let mut task = executor.spawn(pending::<()>());
    let waker = waker(|| drop(executor));
    let Poll::Ready(output) = poll_once(&mut task, &waker) else {
        panic!("it waits for a task that has ended")
    };
    assert!(matches!(output, Err(JoinError::Cancelled)));
}

#[test]
fn a_clone_that_drops_the_executor_does_not_make_a_set_wait_for_ever() {
    let mut executor = executor();
    let mut set = JoinSet::new();
    executor.block_on(async { set.spawn(pending::<()>()) });
    let waker = waker(|| drop(executor));
    let Poll::Ready(Some(output)) = set.poll_join_next(&mut Context::from_waker(&waker)) else {
        panic!("it waits for a task that has ended")
    };
    assert!(matches!(output, Err(JoinError::Cancelled)));
}

#[test]
fn a_clone_that_makes_a_task_ready_keeps_its_output() {
    let mut executor = executor();
    let mut task = executor.spawn(async { 5 });
    let waker = waker(move || executor.block_on(windlass_task::yield_now()));
    let Poll::Ready(output) = poll_once(&mut task, &waker) else { panic!("it is ready") };
    assert_eq!(output.unwrap(), 5);
    assert_eq!(WAKES.get(), 0);
}

type Kept = Rc<RefCell<Option<Executor>>>;

/// Gives an executor, if it was not dropped, some turns.
fn run_turns(executor: &Kept) {
    let turns = || with_turn(|turn| turn.stats().turns).unwrap();
    let Some(mut running) = executor.take() else { return };
    running.block_on(async {
        let end = turns() + 3;
        while turns() < end {
            yield_now().await;
        }
    });
    executor.replace(Some(running));
}

/// A clone drops the executor, or runs it when the descriptor is ready. Who waits is woken.
#[test]
fn a_clone_that_ends_a_wait_for_readiness_does_not_make_it_wait_for_ever() {
    for (is_dropped, is_listed) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut first = executor();
        let (ours, theirs) = nonblocking_pair();
        let fd = first.block_on(async { AsyncFd::new(ours).unwrap() });
        let kept = Rc::new(RefCell::new(Some(first)));
        let mut listed = pin!(fd.readable());
        let mut poll = |waker: &Waker| match is_listed {
            true => poll_once(&mut listed, waker),
            false => fd.poll_ready(Direction::Read, &mut Context::from_waker(waker)),
        };
        WAKES.set(0);
        let executor = Rc::clone(&kept);
        let waker = waker(move || {
            if is_dropped {
                drop(executor.take());
            } else {
                write(&theirs, b"x").unwrap();
                run_turns(&executor);
            }
        });
        if poll(&waker).is_pending() {
            // Without edges it was not registered before.
            run_turns(&kept);
            assert_ne!(WAKES.get(), 0, "it sleeps for ever: {is_dropped}, {is_listed}");
            assert!(matches!(poll(&waker), Poll::Ready(result) if result.is_err() == is_dropped));
        }
    }
}
