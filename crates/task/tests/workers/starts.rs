//! The start of workers, and what may go wrong.

use std::{
    io,
    net::TcpListener,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use rustix::thread::{CpuSet, sched_getaffinity};
use windlass::Reactor;
use windlass_task::{Executor, WorkerContext, Workers, spawn};

use crate::{builder, panics::caught, quiet_panic};

#[test]
fn each_worker_runs_on_a_thread_of_its_own_with_an_executor() {
    let workers = builder(3)
        .name("own")
        .start(|worker: WorkerContext| async move {
            assert_eq!((worker.count(), worker.cpu()), (3, None));
            // Neither the future nor its tasks need be `Send`.
            let number = Rc::new(worker.index());
            let name = thread::current().name().unwrap().to_owned();
            (name, spawn(async move { *number }).await.unwrap())
        })
        .unwrap();
    let ends = workers.join().into_iter().map(Result::unwrap);
    assert!(ends.eq((0..3).map(|index| (format!("own-{index}"), index))));
}

#[test]
fn pinned_threads_may_use_one_processor() {
    let workers = builder(2)
        .pinned(true)
        .start(|worker: WorkerContext| async move {
            let allowed: CpuSet = sched_getaffinity(None).unwrap();
            assert_eq!(allowed.count(), 1);
            assert!(allowed.is_set(worker.cpu().unwrap()));
        })
        .unwrap();
    assert!(workers.join().iter().all(Result::is_ok));
}

#[test]
fn an_executor_that_cannot_be_built_fails_the_start_and_no_future_is_made() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let made = Arc::new(AtomicUsize::new(0));
    let makes = Arc::clone(&made);
    let error = Workers::builder()
        .count(3)
        .executor(move || {
            // The second thread to come gets a setting that the reactor rejects.
            let events = if count.fetch_add(1, SeqCst) == 1 { 0 } else { 64 };
            Executor::builder().reactor(Reactor::builder().events_per_turn(events))
        })
        .start(move |_: WorkerContext| {
            makes.fetch_add(1, SeqCst);
            async {}
        })
        .unwrap_err();
    assert!(error.to_string().contains("events_per_turn"), "{error}");
    assert_eq!((calls.load(SeqCst), made.load(SeqCst)), (3, 0));
}

#[test]
fn a_panic_of_the_settings_comes_out_of_start() {
    let start = || {
        Workers::builder()
            .count(2)
            .executor(|| quiet_panic("settings"))
            .start(|_: WorkerContext| async {})
            .map(drop)
    };
    assert_eq!(*caught(start).unwrap_err().downcast::<&str>().unwrap(), "settings");
}

#[test]
fn a_panic_of_the_closure_that_makes_the_future_is_that_of_its_worker() {
    let workers = builder(2)
        .start(|worker: WorkerContext| {
            if worker.index() == 0 {
                quiet_panic("make");
            }
            async { 1 }
        })
        .unwrap();
    let ends = workers.join();
    assert!(ends[0].as_ref().unwrap_err().is_panic());
    assert_eq!(*ends[1].as_ref().unwrap(), 1);
}

#[test]
fn an_address_that_is_in_use_fails_the_start() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = builder(2)
        .listen(other.local_addr().unwrap())
        .start(|_: WorkerContext| async {})
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn counts_that_make_no_sense_panic_with_the_limits() {
    for count in [0, 1025] {
        let start = || builder(count).start(|_: WorkerContext| async {}).map(drop);
        let payload = caught(start).unwrap_err();
        let message = payload.downcast_ref::<String>().unwrap();
        assert_eq!(*message, format!("there are 1 to 1024 workers, not {count}"));
    }
    let workers = builder(1).start(|worker: WorkerContext| async move { worker.stopped().await });
    let workers = workers.unwrap();
    let payload = caught(|| workers.handle().try_send(1, ())).unwrap_err();
    let message = payload.downcast_ref::<String>().unwrap();
    assert_eq!(*message, "there is no worker 1: the last of 1 is 0");
}
