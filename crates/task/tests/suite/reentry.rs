//! Wakers and handlers that end or use what is in the middle of something.

use std::{
    cell::{Cell, RefCell},
    future::{Future, pending},
    pin::pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use windlass_task::{
    AsyncFd, Direction, Executor, JoinHandle, JoinSet, spawn, with_turn, yield_now,
};

use crate::tools::{Drops, Flag, OnDrop, block_on, executor, nonblocking_pair};

/// What the waker of a test ends. A waker is `Send`, and these are not.
#[derive(Default)]
struct Targets {
    set: Option<JoinSet<crate::tools::Counted>>,
    handle: Option<JoinHandle<crate::tools::Counted>>,
    executor: Option<Executor>,
}

thread_local! {
    static TARGETS: RefCell<Targets> = RefCell::default();
}

fn end_all() {
    // Dropped when nothing is borrowed.
    drop(TARGETS.take());
}

/// Ends what there is when it is woken.
struct EndsByWake;

impl Wake for EndsByWake {
    fn wake(self: Arc<Self>) {
        end_all();
    }
}

/// Ends what there is when it is dropped.
struct EndsByDrop;

impl Wake for EndsByDrop {
    fn wake(self: Arc<Self>) {}
}

impl Drop for EndsByDrop {
    fn drop(&mut self) {
        end_all();
    }
}

/// Polls a future once with a waker. It is not ready.
fn poll_once(future: impl Future, waker: &Waker) {
    assert!(pin!(future).poll(&mut Context::from_waker(waker)).is_pending());
}

#[test]
fn the_waker_of_a_set_may_drop_the_set_while_a_member_ends() {
    let drops = Drops::default();
    block_on(async {
        let mut set = JoinSet::new();
        let go = Flag::default();
        let (token, started) = (drops.token(), go.clone());
        set.spawn(async move {
            started.wait().await;
            token
        });
        for token in [drops.token(), drops.token()] {
            set.spawn(async move {
                pending::<()>().await;
                token
            });
        }
        let waker = Waker::from(Arc::new(EndsByWake));
        poll_once(set.join_next(), &waker);
        TARGETS.with_borrow_mut(|targets| targets.set = Some(set));
        go.set();
        while drops.count() < 3 {
            yield_now().await;
        }
    });
    assert_eq!(drops.count(), 3);
}

#[test]
fn the_waker_of_a_handle_may_drop_the_handle_at_the_end_of_its_task() {
    for at_end_of_executor in [false, true] {
        let drops = Drops::default();
        let mut executor = executor();
        let go = Flag::default();
        let (token, started) = (drops.token(), go.clone());
        let mut handle = executor.spawn(async move {
            started.wait().await;
            token
        });
        poll_once(&mut handle, &Waker::from(Arc::new(EndsByWake)));
        TARGETS.with_borrow_mut(|targets| targets.handle = Some(handle));
        if !at_end_of_executor {
            go.set();
            executor.block_on(yield_now());
            executor.block_on(yield_now());
        }
        drop(executor);
        assert_eq!(drops.count(), 1);
        assert!(TARGETS.with_borrow(|targets| targets.handle.is_none()));
    }
}

#[test]
fn the_destructor_of_a_waker_may_drop_an_executor_in_a_poll_of_another() {
    let drops = Drops::default();
    let spawned = Rc::new(Cell::new(0));
    let other = executor();
    for token in [drops.token(), drops.token()] {
        let spawned = Rc::clone(&spawned);
        let at_end = OnDrop(move || {
            // In the executor that ends, with its turn.
            assert!(with_turn(|_| ()).is_some());
            drop(spawn(pending::<()>()));
            spawned.set(spawned.get() + 1);
        });
        other
            .spawn(async move {
                let _owned = (token, at_end);
                pending::<()>().await;
            })
            .detach();
    }
    TARGETS.with_borrow_mut(|targets| targets.executor = Some(other));
    block_on(async {
        let mut task = spawn(pending::<()>());
        poll_once(&mut task, &Waker::from(Arc::new(EndsByDrop)));
        // The new waker replaces the old one.
        poll_once(&mut task, Waker::noop());
        assert_eq!((drops.count(), spawned.get()), (2, 2));
        assert!(with_turn(|_| ()).is_some(), "the turn of this executor is back");
        assert_eq!(spawn(async { 7 }).await.unwrap(), 7);
    });
}

#[test]
fn a_handler_of_one_executor_may_use_and_drop_another() {
    let done = Rc::new(Cell::new(None));
    block_on(async {
        let result = Rc::clone(&done);
        let handler = move |_: windlass::Turn<'_>| {
            assert!(with_turn(|_| ()).is_none(), "a handler has its own turn");
            let mut other = executor();
            let handle = other.with_turn(|mut turn| {
                let handle = spawn(async { 42 });
                turn.after_with(Duration::ZERO, |_| ()).unwrap();
                handle
            });
            // The turn of the outer executor is hidden from code of the inner one.
            let inner_turn = other.with_turn(|_| with_turn(|_| ()).is_some());
            drop(other);
            let cancelled = RefCell::new(handle);
            assert!(cancelled.borrow().is_finished());
            result.set(Some(inner_turn));
        };
        with_turn(|mut turn| turn.after_with(Duration::ZERO, handler).map(drop).unwrap());
        while done.get().is_none() {
            yield_now().await;
        }
        assert!(with_turn(|_| ()).is_some());
    });
    assert_eq!(done.get(), Some(false));
}

#[test]
fn a_closure_with_the_turn_may_drop_another_executor() {
    let drops = Drops::default();
    let other = executor();
    let token = drops.token();
    other
        .spawn(async move {
            let _token = token;
            pending::<()>().await;
        })
        .detach();
    block_on(async {
        let turns = with_turn(|mut turn| {
            drop(other);
            turn.after_with(Duration::ZERO, |_| ()).unwrap();
            turn.stats().turns
        });
        assert!(turns.is_some());
        assert!(with_turn(|_| ()).is_some());
    });
    assert_eq!(drops.count(), 1);
}

/// Runs turns of the executor in `TARGETS` when it is dropped.
struct RunsByDrop;

impl Wake for RunsByDrop {
    fn wake(self: Arc<Self>) {}
}

impl Drop for RunsByDrop {
    fn drop(&mut self) {
        let Some(mut executor) = TARGETS.with_borrow_mut(|targets| targets.executor.take()) else {
            return;
        };
        executor.block_on(async {
            let turns = || with_turn(|turn| turn.stats().turns).unwrap();
            let begin = turns();
            while turns() < begin + 3 {
                yield_now().await;
            }
        });
        TARGETS.with_borrow_mut(|targets| targets.executor = Some(executor));
    }
}

/// Notes that it was woken.
#[derive(Default)]
struct Noting(AtomicBool);

impl Wake for Noting {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// Polls with a waker whose destructor runs the executor, and then with another one. The second
/// poll must be ready, or its waker must be woken.
fn poll_twice(mut poll: impl FnMut(&mut Context<'_>) -> bool, make_ready: impl FnOnce()) {
    let old = Waker::from(Arc::new(RunsByDrop));
    assert!(!poll(&mut Context::from_waker(&old)));
    drop(old);
    make_ready();
    let noting = Arc::new(Noting::default());
    let waker = Waker::from(Arc::clone(&noting));
    // The poll drops the old waker, whose executor then learns of it.
    let is_ready = poll(&mut Context::from_waker(&waker));
    assert!(is_ready || noting.0.load(Relaxed), "nothing else will come");
    drop(TARGETS.with_borrow_mut(|targets| targets.executor.take()));
}

#[test]
fn what_the_destructor_of_an_old_waker_makes_ready_wakes_the_new_one() {
    let mut own = executor();
    let (here, there) = nonblocking_pair();
    let fd = own.block_on(async { AsyncFd::new(here).unwrap() });
    TARGETS.with_borrow_mut(|targets| targets.executor = Some(own));
    poll_twice(
        |context| fd.poll_ready(Direction::Read, context).is_ready(),
        || assert_eq!(rustix::io::write(&there, b"x"), Ok(1)),
    );

    let mut own = executor();
    let flag = Flag::default();
    let waiting = flag.clone();
    let mut set = JoinSet::new();
    own.block_on(async {
        set.spawn(async move { waiting.wait().await });
        yield_now().await;
    });
    TARGETS.with_borrow_mut(|targets| targets.executor = Some(own));
    poll_twice(|context| set.poll_join_next(context).is_ready(), || flag.set());
}
