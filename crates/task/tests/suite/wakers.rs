//! Wakers: from any thread, after the executor, and during the end of a thread.

use std::{
    cell::RefCell,
    future::{pending, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
        mpsc,
    },
    task::{Poll, Waker},
    thread,
};

use windlass_task::{Executor, spawn, stats, yield_now};

use crate::tools::{Drops, block_on, executor, own_waker};

#[test]
fn a_wake_from_another_thread_ends_the_wait() {
    let rounds = if cfg!(miri) { 20 } else { 2000 };
    let (sender, receiver) = mpsc::channel::<Waker>();
    let count = Arc::new(AtomicU32::new(0));
    let written = Arc::clone(&count);
    let thread = thread::spawn(move || {
        for (number, waker) in receiver.iter().enumerate() {
            written.store(number as u32 + 1, SeqCst);
            if number % 2 == 0 { waker.wake() } else { waker.wake_by_ref() }
        }
    });
    block_on(async {
        for round in 0..rounds {
            let mut is_sent = false;
            poll_fn(|context| {
                if !std::mem::replace(&mut is_sent, true) {
                    sender.send(context.waker().clone()).unwrap();
                }
                if count.load(SeqCst) > round { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    });
    drop(sender);
    thread.join().unwrap();
}

#[test]
fn many_threads_wake_many_tasks_and_no_wake_is_lost() {
    let (threads, rounds) = if cfg!(miri) { (2, 5) } else { (4, 500) };
    block_on(async {
        let mut tasks = Vec::new();
        let mut wakers = Vec::new();
        for _ in 0..8 {
            let state = Arc::new(AtomicU32::new(0));
            let slot = Arc::new(std::sync::Mutex::new(None::<Waker>));
            wakers.push((Arc::clone(&state), Arc::clone(&slot)));
            tasks.push(spawn(poll_fn(move |context| {
                *slot.lock().unwrap() = Some(context.waker().clone());
                if state.load(SeqCst) == threads * rounds { Poll::Ready(()) } else { Poll::Pending }
            })));
        }
        let threads: Vec<_> = (0..threads)
            .map(|_| {
                let wakers = wakers.clone();
                thread::spawn(move || {
                    for _ in 0..rounds {
                        for (state, slot) in &wakers {
                            state.fetch_add(1, SeqCst);
                            let waker = slot.lock().unwrap().clone();
                            waker.into_iter().for_each(Waker::wake);
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_waker_outlives_its_executor_and_its_thread() {
    let (waker, count) = thread::spawn(|| {
        let mut executor = executor();
        let drops = Drops::default();
        let token = drops.token();
        let waker = executor.block_on(async {
            let task = spawn(async move {
                let _token = token;
                let waker = own_waker().await;
                (waker, pending::<()>().await).0
            });
            drop(task);
            let waker = own_waker().await;
            yield_now().await;
            waker
        });
        drop(executor);
        (waker, drops.count())
    })
    .join()
    .unwrap();
    assert_eq!(count, 1, "the future was dropped with the executor");
    waker.wake_by_ref();
    let clone = waker.clone();
    assert!(clone.will_wake(&waker));
    clone.wake();
    thread::spawn(move || drop(waker)).join().unwrap();
}

#[test]
fn the_last_waker_on_another_thread_drops_no_future() {
    let drops = Drops::default();
    let token = drops.token();
    let mut executor = executor();
    let waker = executor.block_on(async {
        let (sender, receiver) = mpsc::channel();
        drop(spawn(async move {
            let _token = token;
            sender.send(own_waker().await).unwrap();
        }));
        yield_now().await;
        receiver.recv().unwrap()
    });
    assert_eq!(drops.count(), 1);
    assert_eq!(drops.thread(), Some(thread::current().id()));
    thread::spawn(move || waker.wake()).join().unwrap();
    executor.block_on(yield_now());
    assert_eq!(executor.stats().tasks, 0);
}

#[test]
fn wakers_work_while_thread_locals_are_destroyed() {
    struct AtEnd(RefCell<Option<Waker>>);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            let waker = self.0.take().unwrap();
            waker.wake_by_ref();
            let clone = waker.clone();
            clone.wake();
        }
    }
    std::thread_local! {
        static AT_END: AtEnd = const { AtEnd(RefCell::new(None)) };
    }
    // The waker's own thread, with an executor in a thread-local variable that ends too.
    thread::spawn(|| {
        std::thread_local! {
            static EXECUTOR: RefCell<Option<Executor>> = const { RefCell::new(None) };
        }
        let mut executor = executor();
        let (sender, receiver) = mpsc::channel();
        executor
            .spawn(async move {
                sender.send(own_waker().await).unwrap();
                pending::<()>().await;
            })
            .detach();
        executor.block_on(yield_now());
        AT_END.with(|at_end| at_end.0.replace(receiver.recv().ok()));
        EXECUTOR.set(Some(executor));
    })
    .join()
    .unwrap();
    // Another thread, which wakes a running executor at its end.
    block_on(async {
        let waker = own_waker().await;
        let thread = thread::spawn(move || AT_END.with(|at_end| at_end.0.replace(Some(waker))));
        let mut is_first = true;
        poll_fn(|_| if std::mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) })
            .await;
        thread.join().unwrap();
    });
}

#[test]
fn a_wake_of_another_executors_task_on_the_same_thread_is_not_lost() {
    let mut first = executor();
    let mut second = executor();
    let (sender, receiver) = mpsc::channel();
    let task = first.spawn(async move {
        let mut is_first = true;
        poll_fn(|context| {
            if std::mem::take(&mut is_first) {
                sender.send(context.waker().clone()).unwrap();
                return Poll::Pending;
            }
            Poll::Ready(3)
        })
        .await
    });
    first.block_on(yield_now());
    let waker = receiver.recv().unwrap();
    second.block_on(async { waker.wake() });
    assert_eq!(first.block_on(task).unwrap(), 3);
}

#[test]
fn wakers_of_one_task_are_equal_and_of_two_are_not() {
    block_on(async {
        let one = own_waker().await;
        yield_now().await;
        assert!(one.will_wake(&own_waker().await));
        let other = spawn(own_waker()).await.unwrap();
        assert!(!one.will_wake(&other));
        assert_eq!(stats().unwrap().tasks, 1);
    });
}
