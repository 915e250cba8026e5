//! Scenarios that other runtimes have had bugs in. The comments name their tests or issues.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::{pending, poll_fn},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::{Poll, Waker},
    thread,
    time::Duration,
};

use windlass_task::{Executor, spawn, spawn_blocking, stats, with_turn, yield_now};

use crate::{
    leak::leak,
    panics::caught,
    tools::{Drops, Flag, OnDrop, block_on, builder, executor, own_waker},
};

/// async-executor, `await_task_after_dropping_executor` and
/// `drop_executor_and_then_drop_finished_task`.
#[test]
fn an_output_survives_its_executor_and_goes_with_its_handle() {
    let drops = Drops::default();
    let mut executor = executor();
    let token = drops.token();
    let (taken, dropped) = (executor.spawn(async { "output" }), executor.spawn(async { token }));
    executor.block_on(yield_now());
    assert!(taken.is_finished() && dropped.is_finished());
    drop(executor);
    assert_eq!(block_on(taken).unwrap(), "output");
    assert_eq!(drops.count(), 0);
    drop(dropped);
    assert_eq!(drops.count(), 1);
}

/// async-executor, `leaked_executor_leaks_everything`.
#[test]
#[cfg_attr(miri, ignore = "it leaks on purpose")]
fn an_executor_that_is_leaked_leaks_its_tasks_and_wakers_still_work() {
    let drops = Drops::default();
    let token = drops.token();
    let (sender, receiver) = mpsc::channel();
    let mut executor = executor();
    let task = executor.spawn(async move {
        let _token = token;
        sender.send(own_waker().await).unwrap();
        pending::<()>().await;
    });
    executor.block_on(yield_now());
    let waker = receiver.recv().unwrap();
    let (abort, spawner) = (task.abort_handle(), executor.spawner());
    leak(executor);
    waker.wake_by_ref();
    thread::spawn(move || {
        waker.wake();
        abort.abort();
        spawner.spawn(async {}).unwrap();
    })
    .join()
    .unwrap();
    assert!(!task.is_finished());
    drop(task);
    assert_eq!(drops.count(), 0);
}

/// tokio #1972: a wake inside of a borrow must not drop the future, whose destructor borrows too.
#[test]
fn a_wake_drops_no_future_although_its_task_was_aborted_or_its_executor_ends() {
    let shared = Rc::new(RefCell::new(0));
    let mut executor = executor();
    let mut wakers = Vec::new();
    for _ in 0..3 {
        let (sender, receiver) = mpsc::channel();
        let in_drop = Rc::clone(&shared);
        let task = executor.spawn(async move {
            let _add = OnDrop(|| *in_drop.borrow_mut() += 1);
            sender.send(own_waker().await).unwrap();
            pending::<()>().await;
        });
        executor.block_on(yield_now());
        wakers.push((receiver.recv().unwrap(), task));
    }
    let (waker, task) = wakers.pop().unwrap();
    executor.block_on(async {
        let borrowed = shared.borrow_mut();
        task.abort();
        waker.wake();
        drop((borrowed, task));
        yield_now().await;
        assert_eq!(*shared.borrow(), 1);
    });
    // A destructor that wakes the other while it holds the borrow, at the end of the executor.
    let in_drop = Rc::clone(&shared);
    executor
        .spawn(async move {
            let _wake = OnDrop(|| {
                let borrowed = in_drop.borrow_mut();
                for (waker, task) in wakers.drain(..) {
                    task.abort();
                    waker.wake();
                }
                drop(borrowed);
            });
            pending::<()>().await;
        })
        .detach();
    executor.block_on(yield_now());
    drop(executor);
    assert_eq!(*shared.borrow(), 3);
}

/// tokio, `wake_while_rt_is_dropping`: a destructor spawns a task that owns the sender that wakes
/// another task.
#[test]
fn tasks_that_wake_and_spawn_each_other_while_the_executor_ends_are_all_dropped() {
    let drops = Drops::default();
    let flags = [Flag::default(), Flag::default(), Flag::default()];
    let mut executor = executor();
    for at in 0..3 {
        let (token, flags) = (drops.token(), flags.clone());
        let in_drop = drops.clone();
        executor
            .spawn(async move {
                let _token = token;
                let wait = flags[at].clone();
                let _spawn = OnDrop(move || {
                    let (flags, token) = (flags.clone(), in_drop.token());
                    let set = OnDrop(move || flags.iter().for_each(Flag::set));
                    spawn(async move {
                        let _owned = (set, token);
                    })
                    .detach();
                });
                wait.wait().await;
            })
            .detach();
    }
    executor.block_on(yield_now());
    drop(executor);
    assert_eq!((drops.made(), drops.count()), (6, 6));
}

/// tokio, `test_abort_wakes_task_3964` and `test_abort_task_that_panics_on_drop_contained`.
#[test]
fn an_abort_without_a_handle_drops_the_future_and_contains_its_panic() {
    let drops = Drops::default();
    block_on(async {
        for panics in [false, true] {
            let token = drops.token();
            let task = spawn(async move {
                let _bomb = OnDrop(|| {
                    if panics {
                        std::panic::resume_unwind(Box::new("when dropped"));
                    }
                });
                let _token = token;
                pending::<()>().await;
            });
            yield_now().await;
            task.abort();
            drop(task);
            yield_now().await;
        }
        assert_eq!((drops.count(), stats().unwrap().tasks), (2, 1));
    });
}

/// tokio #4724, #6505, #6986: a join waker that is kept after the end of its task closes a cycle of
/// references.
#[test]
fn tasks_that_have_waited_for_each_other_are_freed_when_they_are_finished() {
    let drops = Drops::default();
    block_on(async {
        for _ in 0..3 {
            let slot = Rc::new(RefCell::new(None));
            let ready = Flag::default();
            let (own, wait, token) = (Rc::clone(&slot), ready.clone(), drops.token());
            let first = spawn(async move {
                let _token = token;
                // Polled once, so that the other task has a waker of this one.
                let mut other: windlass_task::JoinHandle<()> =
                    poll_fn(|_| own.take().map_or(Poll::Pending, Poll::Ready)).await;
                poll_fn(|context| {
                    assert!(std::pin::Pin::new(&mut other).poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
                wait.wait().await;
                drop(other);
            });
            let waker = own_waker().await;
            let token = drops.token();
            let second = spawn(async move {
                let _token = token;
                waker.wake();
                first.await.unwrap();
            });
            slot.replace(Some(second));
            for _ in 0..3 {
                yield_now().await;
            }
            ready.set();
            for _ in 0..4 {
                yield_now().await;
            }
        }
        assert_eq!((drops.count(), stats().unwrap().tasks), (6, 1));
    });
}

use std::future::Future as _;

/// tokio, `create_rt_in_block_on`.
#[test]
fn an_executor_that_is_built_in_another_runs_after_it() {
    let mut inner = block_on(async {
        let inner = executor();
        spawn(async {}).await.unwrap();
        inner
    });
    assert_eq!(inner.block_on(async { spawn(async { 4 }).await.unwrap() }), 4);
}

/// tokio, `spawn_from_blocking`, whose blocking threads have the runtime. Ours have none.
#[test]
fn a_blocking_closure_reaches_the_executor_by_a_spawner_alone() {
    let mut executor = builder().spawns_max(1).build().unwrap();
    let spawner = executor.spawner();
    executor.block_on(async {
        let bad = spawn_blocking(|| caught(|| drop(spawn(async {}))).is_err());
        assert!(bad.unwrap().await.unwrap(), "it panics");
        assert!(spawn_blocking(|| with_turn(|_| ()).is_none()).unwrap().await.unwrap());
        let in_task = Arc::new(AtomicBool::new(false));
        let (set, waker) = (Arc::clone(&in_task), own_waker().await);
        let spawn_there = move || {
            let task = async move {
                set.store(true, SeqCst);
                waker.wake();
            };
            spawner.spawn(task).map_err(|error| error.reason)
        };
        let spawned = spawn_blocking(spawn_there).unwrap().await.unwrap();
        assert_eq!(spawned, Ok(()));
        poll_fn(|_| if in_task.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending }).await;
    });
}

/// tokio #5162 and #6148: an executor in a thread-local variable, whose tasks use the executor when
/// they are dropped.
#[test]
fn an_executor_that_ends_with_its_thread_drops_tasks_that_use_it() {
    std::thread_local! {
        static EXECUTOR: RefCell<Option<Executor>> = const { RefCell::new(None) };
    }
    let ended = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ended);
    thread::spawn(move || {
        let mut executor = executor();
        for _ in 0..2 {
            let count = Arc::clone(&count);
            executor
                .spawn(async move {
                    let _end = OnDrop(move || {
                        assert!(with_turn(|turn| turn.stats().turns).is_some());
                        let count = Arc::clone(&count);
                        let end = OnDrop(move || {
                            count.fetch_add(1, SeqCst);
                        });
                        spawn(async move { drop(end) }).detach();
                    });
                    pending::<()>().await;
                })
                .detach();
        }
        executor.block_on(yield_now());
        EXECUTOR.set(Some(executor));
    })
    .join()
    .unwrap();
    assert_eq!(ended.load(SeqCst), 2);
}

/// A queue between two tasks of one executor.
#[derive(Clone, Default)]
struct Channel(Rc<ChannelState>);

#[derive(Default)]
struct ChannelState {
    numbers: RefCell<VecDeque<u32>>,
    receiver: Cell<Option<Waker>>,
}

impl Channel {
    fn send(&self, number: u32) {
        self.0.numbers.borrow_mut().push_back(number);
        if let Some(waker) = self.0.receiver.take() {
            waker.wake();
        }
    }

    async fn receive(&self) -> u32 {
        poll_fn(|context| match self.0.numbers.borrow_mut().pop_front() {
            Some(number) => Poll::Ready(number),
            None => {
                self.0.receiver.set(Some(context.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}

/// tokio, `ping_pong_saturation`: tasks that wake each other do not starve others.
#[test]
fn pairs_that_wake_each_other_forever_do_not_starve_others() {
    // More tasks than one turn polls.
    let pairs = if cfg!(miri) { 35 } else { 100 };
    block_on(async move {
        for _ in 0..pairs {
            let (there, back) = (Channel::default(), Channel::default());
            let (to_other, from_other) = (there.clone(), back.clone());
            spawn(async move {
                for number in 0.. {
                    to_other.send(number);
                    assert_eq!(from_other.receive().await, number);
                }
            })
            .detach();
            spawn(async move {
                loop {
                    let number = there.receive().await;
                    back.send(number);
                }
            })
            .detach();
        }
        let other = spawn(async {
            for _ in 0..5 {
                yield_now().await;
            }
        });
        other.await.unwrap();
        // The reactor has its turns too.
        let timer = Flag::default();
        let fired = timer.clone();
        with_turn(|mut turn| {
            turn.after_with(Duration::from_millis(1), move |_| fired.set()).map(drop).unwrap();
        });
        timer.wait().await;
    });
}

/// corosio's stress: timers under a flood of posts.
#[test]
#[cfg_attr(miri, ignore = "floods the interpreter")]
fn timers_fire_under_a_flood_of_futures_from_other_threads() {
    let mut executor = executor();
    let (spawner, stop) = (executor.spawner(), Arc::new(AtomicBool::new(false)));
    let (run, accepted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let floods: Vec<_> = (0..2)
        .map(|_| {
            let (spawner, stop) = (spawner.clone(), Arc::clone(&stop));
            let (run, accepted) = (Arc::clone(&run), Arc::clone(&accepted));
            thread::spawn(move || {
                while !stop.load(SeqCst) {
                    let run = Arc::clone(&run);
                    let future = async move {
                        run.fetch_add(1, SeqCst);
                    };
                    match spawner.spawn(future) {
                        Ok(()) => {
                            accepted.fetch_add(1, SeqCst);
                        }
                        Err(_) => thread::yield_now(),
                    }
                }
            })
        })
        .collect();
    executor.block_on(async {
        for _ in 0..20 {
            let timer = Flag::default();
            let fired = timer.clone();
            with_turn(|mut turn| {
                turn.after_with(Duration::from_micros(500), move |_| fired.set())
                    .map(drop)
                    .unwrap();
            });
            timer.wait().await;
        }
        // The flood goes on at the same time.
        let before = run.load(SeqCst);
        while run.load(SeqCst) == before {
            yield_now().await;
        }
        stop.store(true, SeqCst);
        floods.into_iter().for_each(|flood| flood.join().unwrap());
        while run.load(SeqCst) < accepted.load(SeqCst) {
            yield_now().await;
        }
    });
}

/// async-executor, `larger_tasks`.
#[test]
fn large_futures_are_tasks_too() {
    block_on(async {
        let large = [7_u8; 1 << 16];
        let task = spawn(async move {
            yield_now().await;
            large
        });
        assert!(task.await.unwrap() == [7; 1 << 16]);
    });
}
