//! The end of an executor.

use std::{
    cell::{Cell, RefCell},
    future::{Future, pending},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    panic::resume_unwind,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use windlass::{Group, Key, interest};
use windlass_task::{AsyncFd, spawn, with_turn, yield_now};

use crate::{
    panics::caught,
    tools::{Counted, Drops, Flag, OnDrop, block_on, executor, nonblocking_pair, own_waker},
};

#[test]
fn all_futures_are_dropped_polled_or_not() {
    let drops = Drops::default();
    let mut executor = executor();
    let tokens: Vec<_> = (0..3).map(|_| drops.token()).collect();
    for token in tokens {
        executor
            .spawn(async move {
                let _token = token;
                pending::<()>().await;
            })
            .detach();
    }
    executor.block_on(yield_now());
    let never_polled = drops.token();
    let handle = executor.spawn(async move { drop(never_polled) });
    assert_eq!(drops.count(), 0);
    drop(executor);
    assert_eq!(drops.count(), 4);
    assert!(block_on(handle).unwrap_err().is_cancelled());
}

#[test]
fn futures_are_dropped_with_the_reactor_alive() {
    let (here, _there) = UnixStream::pair().unwrap();
    let seen = Rc::new(Cell::new(None));
    let at_drop = Rc::clone(&seen);
    let mut executor = executor();
    executor.block_on(async move {
        let register = |mut turn: windlass::Turn<'_>| -> Key {
            interest()
                .read()
                .with_fd(here)
                .with_handler(|_: &mut UnixStream| {})
                .register_into(&mut turn)
                .unwrap()
        };
        let key = with_turn(register).unwrap();
        let mut delete = move || at_drop.set(with_turn(|mut turn| turn.delete(key).is_ok()));
        drop(spawn(async move {
            let _guard = OnDrop(&mut delete);
            pending::<()>().await;
        }));
        yield_now().await;
    });
    assert_eq!(seen.get(), None);
    drop(executor);
    assert_eq!(seen.get(), Some(true), "the registration was deleted by the destructor");
}

#[test]
fn futures_that_are_spawned_by_destructors_are_dropped_and_never_polled() {
    let drops = Drops::default();
    let executor = executor();
    let outer = drops.clone();
    let spawn_more = OnDrop(move || {
        let (token, inner) = (outer.token(), outer.clone());
        let again = OnDrop(move || {
            let token = inner.token();
            drop(spawn(async move {
                drop(token);
                unreachable!("polled");
            }));
        });
        drop(spawn(async move {
            let (_token, _again) = (token, again);
            unreachable!("polled");
        }));
    });
    executor
        .spawn(async move {
            let _spawn_more = spawn_more;
            pending::<()>().await;
        })
        .detach();
    drop(executor);
    assert_eq!(drops.count(), 2);
}

#[test]
fn a_panic_of_one_destructor_does_not_keep_the_others_from_being_dropped() {
    let drops = Drops::default();
    let executor = executor();
    let mut handles = Vec::new();
    for number in 0..4 {
        let token = drops.token();
        handles.push(executor.spawn(async move {
            let _token = token;
            let _bomb = OnDrop(move || {
                if number % 2 == 0 {
                    std::panic::resume_unwind(Box::new("bomb"));
                }
            });
            pending::<()>().await;
        }));
    }
    // Destructors of variables need a poll. Of what a future has captured, they do not.
    let mut executor = executor;
    executor.block_on(yield_now());
    drop(executor);
    assert_eq!(drops.count(), 4);
    let ends: Vec<bool> =
        handles.into_iter().map(|handle| block_on(handle).unwrap_err().is_panic()).collect();
    assert_eq!(ends, [true, false, true, false]);
}

#[test]
fn wakes_by_destructors_at_the_end_do_nothing() {
    let mut executor = executor();
    let wakers = Rc::new(RefCell::new(Vec::new()));
    for _ in 0..3 {
        let wakers = Rc::clone(&wakers);
        executor
            .spawn(async move {
                let waker = own_waker().await;
                wakers.borrow_mut().push(waker);
                let _wake_all = OnDrop(|| wakers.borrow().iter().for_each(|w| w.wake_by_ref()));
                pending::<()>().await;
            })
            .detach();
    }
    executor.block_on(yield_now());
    drop(executor);
    let wakers = wakers.take();
    assert_eq!(wakers.len(), 3);
    wakers.into_iter().for_each(std::task::Waker::wake);
}

#[test]
fn an_executor_may_be_dropped_in_a_task_of_another() {
    let drops = Drops::default();
    let token = drops.token();
    let other = executor();
    other
        .spawn(async move {
            let _token = token;
            pending::<()>().await;
        })
        .detach();
    block_on(async move {
        drop(other);
        // This executor is current again, with its turn.
        assert!(with_turn(|_| ()).is_some());
        spawn(async {}).await.unwrap();
    });
    assert_eq!(drops.count(), 1);
}

#[test]
fn a_panic_of_a_reactors_handler_comes_out_of_block_on_and_no_task_is_lost() {
    let mut executor = executor();
    executor.with_turn(|mut turn| {
        turn.defer(|_| std::panic::resume_unwind(Box::new("handler"))).unwrap();
    });
    let flag = Flag::default();
    let wait = flag.clone();
    let task = executor.spawn(async move { wait.wait().await });
    let main = Drops::default();
    let token = main.token();
    let result = caught(|| {
        executor.block_on(async move {
            let _token = token;
            pending::<()>().await
        })
    });
    assert_eq!(*result.unwrap_err().downcast::<&str>().unwrap(), "handler");
    assert_eq!(main.count(), 1, "the main future is dropped");
    assert!(with_turn(|_| ()).is_none(), "nothing is current");
    flag.set();
    executor.block_on(task).unwrap();
}

#[test]
fn a_stop_that_was_requested_does_not_keep_futures_from_being_dropped_with_a_turn() {
    let seen = Rc::new(Cell::new(false));
    let at_drop = Rc::clone(&seen);
    let mut executor = executor();
    executor
        .spawn(async move {
            let _guard = OnDrop(|| at_drop.set(with_turn(|_| ()).is_some()));
            pending::<()>().await;
        })
        .detach();
    executor.block_on(yield_now());
    executor.with_turn(|mut turn| turn.stop());
    drop(executor);
    assert!(seen.get());
}

#[test]
fn a_future_and_an_output_that_panic_when_they_are_dropped_do_not_abort() {
    struct Ready(Option<OnDrop<fn()>>);
    impl Future for Ready {
        type Output = OnDrop<fn()>;
        fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
            Poll::Ready(self.0.take().unwrap())
        }
    }
    impl Drop for Ready {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("future"));
        }
    }
    let output = || OnDrop((|| std::panic::resume_unwind(Box::new("output"))) as fn());
    let mut executor = executor();
    // Of the main future.
    let result = caught(|| std::mem::forget(executor.block_on(Ready(Some(output())))));
    assert_eq!(*result.unwrap_err().downcast::<&str>().unwrap(), "future");
    // Of a task.
    let task = executor.spawn(Ready(Some(output())));
    assert!(executor.block_on(task).map(std::mem::forget).unwrap_err().is_panic());
    // Of a main future that is pending while a handler panics.
    executor.with_turn(|mut turn| {
        turn.defer(|_| std::panic::resume_unwind(Box::new("handler"))).unwrap();
    });
    let result = caught(|| {
        executor.block_on(async {
            let _output = output();
            pending::<()>().await
        })
    });
    assert_eq!(*result.unwrap_err().downcast::<&str>().unwrap(), "handler");
    assert_eq!(executor.block_on(async { 1 }), 1);
}

/// The payload of a panic that nobody gets. Its destructor spawns a task with what is in `LATE`.
struct Spawns;

thread_local! {
    static LATE: RefCell<Option<Counted>> = const { RefCell::new(None) };
}

impl Drop for Spawns {
    fn drop(&mut self) {
        let Some(late) = LATE.take() else { return };
        drop(caught(|| {
            spawn(async move {
                let _late = late;
                pending::<()>().await;
            })
            .detach();
        }));
    }
}

/// A descriptor whose destructor panics with `Spawns`.
struct Descriptor(OwnedFd);

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        resume_unwind(Box::new(Spawns));
    }
}

/// Dropped where there is no turn, it waits for the executor's end.
fn registered() -> AsyncFd<Descriptor> {
    AsyncFd::new(Descriptor(nonblocking_pair().0)).unwrap()
}

#[test]
fn a_task_that_the_destructor_of_a_second_panic_spawns_ends_too() {
    let drops = Drops::default();
    LATE.set(Some(drops.token()));
    let mut executor = executor();
    let fd = executor.block_on(async {
        let fd = registered();
        let bomb = || OnDrop(|| resume_unwind(Box::new("the first")));
        let (one, other) = (bomb(), bomb());
        let minute = Duration::from_secs(60);
        let register = |mut turn: windlass::Turn<'_>| {
            Group::new(())
                .after(minute, move |_: &mut ()| _ = &one)
                .after(minute, move |_: &mut ()| _ = &other)
                .register_into(&mut turn)
                .unwrap()
                .group
        };
        let group = with_turn(register).unwrap();
        // One goes off here, and the other one waits until the reactor prepares its next turn.
        drop(caught(|| with_turn(|mut turn| turn.delete_group(group).unwrap())));
        fd
    });
    drop(fd);
    let spawner = executor.spawner();
    let end = caught(|| drop(executor));
    assert_eq!(*end.unwrap_err().downcast::<&str>().unwrap(), "the first");
    assert_eq!(drops.count(), 1, "its future is dropped");
    drop(spawner);
}

#[test]
fn a_task_that_is_spawned_while_the_thread_unwinds_ends_too() {
    let drops = Drops::default();
    LATE.set(Some(drops.token()));
    let mut executor = executor();
    drop(executor.block_on(async { registered() }));
    let end = caught(|| {
        let _executor = executor;
        resume_unwind(Box::new("the first"));
    });
    assert_eq!(*end.unwrap_err().downcast::<&str>().unwrap(), "the first");
    assert_eq!(drops.count(), 1, "its future is dropped");
}
