//! The ends of workers: stops, deadlines, panics.

use std::{
    future::pending,
    sync::{Arc, Mutex, mpsc},
    thread::{self, ThreadId},
    time::Duration,
};

use windlass::Builder;
use windlass_task::{
    Executor, ExecutorBuilder, JoinError, PushReason, WorkerContext, Workers, block_on, spawn,
    stats, time, with_turn, yield_now,
};

use crate::{builder, quiet_panic, reactor};

#[test]
fn a_panic_of_one_worker_is_in_its_result_and_the_others_go_on() {
    let workers = builder(3)
        .start(|worker: WorkerContext<Arc<str>>| async move {
            let mut inbox = worker.take_inbox().unwrap();
            let first = inbox.recv().await;
            if worker.index() == 1 {
                quiet_panic("of worker 1");
            }
            let second = inbox.recv().await;
            (first, second)
        })
        .unwrap();
    let handle = workers.handle();
    let text: Arc<str> = "text".into();
    let queued = Arc::clone(&text);
    handle.try_send(1, Arc::clone(&text)).unwrap();
    let rejected = block_on(async {
        // One of these finds the worker gone, and comes back.
        loop {
            if let Err(error) = handle.send(1, Arc::clone(&queued)).await {
                break error;
            }
        }
    });
    assert_eq!(rejected.reason, PushReason::Closed);
    for index in [0, 2] {
        handle.try_send(index, Arc::clone(&text)).unwrap();
        handle.try_send(index, Arc::clone(&text)).unwrap();
    }
    let mut ends = workers.join();
    let payload = ends.remove(1).unwrap_err().try_into_panic().unwrap();
    assert_eq!(*payload.downcast::<&str>().unwrap(), "of worker 1");
    for end in ends {
        assert_eq!(end.unwrap(), (Some("text".into()), Some("text".into())));
    }
    drop((rejected, queued));
    assert_eq!(Arc::strong_count(&text), 1, "what waited in its queue was dropped");
}

#[test]
fn a_panic_of_a_handler_ends_its_worker_alone() {
    let workers = builder(2)
        .start(|worker: WorkerContext| async move {
            if worker.index() == 0 {
                with_turn(|mut turn| turn.defer(|_| quiet_panic("handler")).unwrap()).unwrap();
            }
            worker.stopped().await;
        })
        .unwrap();
    let handle = workers.handle();
    while !handle.is_finished(0) {
        thread::yield_now();
    }
    assert!(!handle.is_finished(1));
    workers.stop();
    let ends = workers.join();
    assert!(ends[0].as_ref().is_err_and(JoinError::is_panic) && ends[1].is_ok());
}

/// Notes the thread on which it is dropped.
struct NotesThread(Arc<Mutex<Option<ThreadId>>>);

impl Drop for NotesThread {
    fn drop(&mut self) {
        *self.0.lock().unwrap() = Some(thread::current().id());
    }
}

#[test]
fn at_the_deadline_of_a_stop_futures_are_dropped_on_their_threads() {
    for time in [Duration::ZERO, Duration::from_millis(2)] {
        let dropped = Arc::new(Mutex::new(None));
        let (note, (started, is_started)) = (Arc::clone(&dropped), mpsc::channel());
        let workers = builder(1)
            .start(move |_: WorkerContext| {
                let (note, started) = (NotesThread(Arc::clone(&note)), started.clone());
                async move {
                    let _note = note;
                    started.send(thread::current().id()).unwrap();
                    pending::<()>().await;
                }
            })
            .unwrap();
        let thread = is_started.recv().unwrap();
        // The later deadline does not count.
        workers.stop_within(Duration::from_secs(3600));
        workers.stop_within(time);
        workers.stop_within(Duration::from_secs(3600));
        assert!(workers.join().remove(0).unwrap_err().is_cancelled());
        assert_eq!(*dropped.lock().unwrap(), Some(thread));
    }
}

/// As [`Workers::join`], for one worker. Fails if that takes far too long.
fn join_in_time<T: Send + 'static>(workers: Workers<T>) -> Result<T, JoinError> {
    let (ended, has_ended) = mpsc::channel();
    thread::spawn(move || ended.send(workers.join().remove(0)));
    has_ended.recv_timeout(Duration::from_secs(20)).expect("the worker does not end")
}

#[test]
fn the_deadline_of_a_stop_is_by_the_systems_clock() {
    let now = std::time::Instant::now();
    let executors: [fn(Builder, std::time::Instant) -> ExecutorBuilder; 2] = [
        |reactor, _| Executor::builder().reactor(reactor).paused_clock(true),
        |reactor, now| Executor::builder().reactor(reactor.clock(move || now)),
    ];
    for executor in executors {
        for sleeps in [false, true] {
            let workers = builder(1)
                .executor(move || executor(reactor(), now))
                .start(move |_: WorkerContext| async move {
                    if sleeps {
                        loop {
                            time::sleep(Duration::from_secs(1)).await;
                        }
                    }
                    pending::<()>().await;
                })
                .unwrap();
            workers.stop_within(Duration::from_millis(2));
            assert!(join_in_time(workers).unwrap_err().is_cancelled());
        }
    }
}

#[test]
fn a_stop_without_a_deadline_waits_for_the_futures() {
    let (started, is_started) = mpsc::channel();
    let workers = builder(2)
        .start(move |worker: WorkerContext| {
            started.send(worker.is_stopping()).unwrap();
            run_until_stopped(worker)
        })
        .unwrap();
    assert!(!is_started.recv().unwrap() && !is_started.recv().unwrap());
    workers.stop();
    workers.stop();
    let ends: Vec<_> = workers.join().into_iter().map(Result::unwrap).collect();
    assert_eq!(ends, [0, 1]);
}

async fn run_until_stopped(worker: WorkerContext) -> usize {
    let others: Vec<_> = (0..3)
        .map(|_| {
            let worker = worker.clone();
            spawn(async move { worker.stopped().await })
        })
        .collect();
    worker.stopped().await;
    assert!(worker.is_stopping());
    for other in others {
        other.await.unwrap();
    }
    for _ in 0..500 {
        yield_now().await;
    }
    worker.stopped().await;
    worker.index()
}

#[test]
fn dropping_the_workers_stops_them_and_waits() {
    let token = Arc::new(());
    let held = Arc::clone(&token);
    let workers = builder(2)
        .start(move |_: WorkerContext| {
            let held = Arc::clone(&held);
            async move {
                let _held = held;
                pending::<()>().await;
            }
        })
        .unwrap();
    drop(workers);
    assert_eq!(Arc::strong_count(&token), 1, "the threads have ended");
}

#[test]
fn workers_that_are_dropped_by_one_of_them_do_not_wait_for_themselves() {
    type Own = Box<dyn std::any::Any + Send>;
    let (ended, has_ended) = mpsc::channel();
    let workers = builder(2)
        .start(move |worker: WorkerContext<Own>| {
            let ended = ended.clone();
            async move {
                if worker.index() == 0 {
                    let own = worker.take_inbox().unwrap().recv().await;
                    drop(own);
                    ended.send(()).unwrap();
                }
                worker.stopped().await;
            }
        })
        .unwrap();
    let handle = workers.handle();
    let own: Workers<(), Own> = workers;
    handle.try_send(0, Box::new(own)).unwrap();
    has_ended.recv().unwrap();
    while !(handle.is_finished(0) && handle.is_finished(1)) {
        thread::yield_now();
    }
}

#[test]
fn outputs_that_end_at_different_times_are_in_the_order_of_the_workers() {
    let workers = builder(4)
        .start(|worker: WorkerContext| async move {
            for _ in 0..(4 - worker.index()) * 100 {
                yield_now().await;
            }
            worker.index() * 10
        })
        .unwrap();
    let ends: Vec<_> = workers.join().into_iter().map(Result::unwrap).collect();
    assert_eq!(ends, [0, 10, 20, 30]);
}

#[test]
fn counters_are_those_of_each_worker_and_outlive_it() {
    let workers = builder(2)
        .start(|worker: WorkerContext| async move {
            for _ in 0..worker.index() + 3 {
                spawn(async {}).await.unwrap();
            }
            if worker.index() == 0 {
                worker.stopped().await;
            }
            stats().unwrap().polls
        })
        .unwrap();
    let handle = workers.handle();
    while !handle.is_finished(1) {
        thread::yield_now();
    }
    let before = block_on(handle.stats());
    assert_eq!((before[0].index, before[0].is_finished), (0, false));
    assert_eq!((before[1].index, before[1].is_finished), (1, true));
    // The worker's task, its supervisor, and those that it has spawned.
    assert_eq!(before[1].executor.spawned, 2 + 4);
    assert!(before[0].reactor.turns > 0);
    workers.stop();
    let polls: Vec<u64> = workers.join().into_iter().map(Result::unwrap).collect();
    let after = block_on(handle.stats());
    assert_eq!(after[0].executor.spawned, 2 + 3);
    assert!(after.iter().all(|stats| stats.is_finished));
    assert!(after.iter().zip(polls).all(|(stats, polls)| stats.executor.polls >= polls));
}
