//! Workers of a process without descriptors.

use std::{fs::File, future::pending, os::fd::AsRawFd, sync::mpsc, time::Duration};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use windlass::{Backend, Reactor};
use windlass_task::{Executor, WorkerContext, Workers, block_on};

pub(crate) fn a_worker_without_descriptors_sleeps_until_its_deadline(backend: Backend) {
    let (started, is_started) = mpsc::channel();
    let workers = Workers::builder()
        .count(1)
        .executor(move || Executor::builder().reactor(Reactor::builder().backend(backend)))
        .start(move |_: WorkerContext| {
            let started = started.clone();
            async move {
                started.send(()).unwrap();
                pending::<()>().await;
            }
        })
        .unwrap();
    is_started.recv().unwrap();
    let limit = getrlimit(Resource::Nofile);
    // The lowest number that is free. poll(2) rejects more descriptors than the limit.
    let free = File::open("/dev/null").unwrap().as_raw_fd();
    setrlimit(Resource::Nofile, Rlimit { current: Some(free.try_into().unwrap()), ..limit })
        .unwrap();
    assert!(File::open("/dev/null").is_err());
    let handle = workers.handle();
    workers.stop_within(Duration::from_millis(200));
    let end = workers.join().remove(0);
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(end.unwrap_err().is_cancelled());
    let turns = block_on(handle.stats())[0].reactor.turns;
    assert!(turns < 100, "it has looked at the clock in each of {turns} turns");
}
