//! Other threads write while this one waits and changes registrations. No event may be lost.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use windlass::{Event, Interest, Reactor, Turn, interest};

use crate::{
    Build,
    bed::{Log, NOW, drain, edge, has, ring, sendable, spinning_alone},
};

/// The number of writes in the long scenarios.
const ROUNDS: u64 = if cfg!(miri) { 20 } else { 100_000 };

/// A thread writes once, and waits until the reactor has read it. A lost event makes the test hang.
/// `between` is called before each turn.
fn ping_pong(
    build: Build,
    wanted: Interest,
    rounds: u64,
    mut between: impl FnMut(&mut Reactor, windlass::Key, u64),
) {
    let _alone = spinning_alone();
    let mut reactor = build().build().unwrap();
    let wanted = if has(&reactor, wanted) { wanted } else { wanted.without_edge_triggered() };
    let fd = sendable();
    let read = Arc::new(AtomicU64::new(0));
    let (theirs, seen) = (fd.clone(), read.clone());
    let writer = thread::spawn(move || {
        for round in 0..rounds {
            ring(&theirs);
            while seen.load(Ordering::Acquire) == round {
                std::hint::spin_loop();
                thread::yield_now();
            }
        }
    });
    let counted = read.clone();
    let handler = move |fd: &mut Arc<OwnedFd>| _ = counted.fetch_add(drain(fd), Ordering::Release);
    let key = wanted.with_fd(fd).with_handler(handler).register_into(&mut reactor).unwrap();
    let mut round = 0;
    while read.load(Ordering::Acquire) < rounds {
        between(&mut reactor, key, round);
        round += 1;
        // The write that arrived meanwhile may have been the last.
        if read.load(Ordering::Acquire) < rounds {
            reactor.run_once(None).unwrap();
        }
    }
    writer.join().unwrap();
    assert_eq!(read.load(Ordering::Acquire), rounds);
}

fn a_wait_beside_a_writer_loses_nothing(build: Build) {
    ping_pong(build, interest().read().edge_triggered(), ROUNDS / 10, |_, _, _| {});
}

// Linux selftests (epoll_wakeup_test): a change of the interest races with a wake.
fn changes_beside_a_writer_lose_nothing(build: Build) {
    let read = interest().read();
    ping_pong(build, read.edge_triggered(), ROUNDS, |reactor, key, round| {
        let wanted = edge(reactor, if round % 2 == 0 { read.read_hangup() } else { read });
        reactor.modify(key, wanted).unwrap();
    });
}

fn level_triggered_changes_beside_a_writer_lose_nothing(build: Build) {
    ping_pong(build, interest().read(), ROUNDS, |reactor, key, round| {
        let wanted = if round % 2 == 0 { interest().read().priority() } else { interest().read() };
        reactor.modify(key, wanted).unwrap();
    });
}

fn one_shots_rearmed_beside_a_writer_lose_nothing(build: Build) {
    ping_pong(build, interest().read().one_shot(), ROUNDS / 10, |reactor, key, _| {
        reactor.rearm(key).unwrap()
    });
}

fn timeouts_beside_a_writer_lose_nothing(build: Build) {
    ping_pong(build, interest().read().edge_triggered(), ROUNDS / 10, |reactor, _, round| {
        reactor
            .run_once(if round % 3 == 0 {
                NOW
            } else {
                std::time::Duration::from_nanos(round % 50)
            })
            .unwrap();
    });
}

// Linux selftests: 10 edge-triggered eventfds, 10 waiters, nothing lost.
fn ten_waiters_on_ten_descriptors_lose_nothing(build: Build) {
    const COUNT: usize = if cfg!(miri) { 3 } else { 10 };
    const EACH: u64 = if cfg!(miri) { 5 } else { 2000 };
    let fds: Vec<Arc<OwnedFd>> = (0..COUNT).map(|_| sendable()).collect();
    let sums: Arc<Vec<AtomicU64>> = Arc::new((0..COUNT).map(|_| AtomicU64::new(0)).collect());
    let stops = Arc::new(Mutex::new(Vec::new()));
    let begin = Arc::new(Barrier::new(COUNT + 1));
    // Every waiter watches every descriptor. One waiter reads, and the others find nothing.
    let waiters: Vec<_> = (0..COUNT)
        .map(|_| {
            let (fds, sums, stops, begin) =
                (fds.clone(), sums.clone(), stops.clone(), begin.clone());
            thread::spawn(move || {
                let mut reactor = build().build().unwrap();
                for (place, fd) in fds.into_iter().enumerate() {
                    let (sums, all_stops) = (sums.clone(), stops.clone());
                    let handler = move |fd: &mut Arc<OwnedFd>| {
                        sums[place].fetch_add(drain(fd), Ordering::AcqRel);
                        if sums.iter().all(|sum| sum.load(Ordering::Acquire) == EACH) {
                            all_stops.lock().unwrap().iter().for_each(windlass::Stop::stop);
                        }
                    };
                    let wanted = edge(&reactor, interest().read());
                    wanted.with_fd(fd).with_handler(handler).register_into(&mut reactor).unwrap();
                }
                stops.lock().unwrap().push(reactor.stop_handle());
                begin.wait();
                reactor.run().unwrap();
            })
        })
        .collect();
    begin.wait();
    for _ in 0..EACH {
        fds.iter().for_each(ring);
    }
    for waiter in waiters {
        waiter.join().unwrap();
    }
    assert!(sums.iter().all(|sum| sum.load(Ordering::Acquire) == EACH));
}

fn exclusive_waiters_lose_nothing(build: Build) {
    const WAITERS: usize = 4;
    const WRITES: u64 = 2000;
    let fd = sendable();
    let sum = Arc::new(AtomicU64::new(0));
    let stops = Arc::new(Mutex::new(Vec::new()));
    let begin = Arc::new(Barrier::new(WAITERS + 1));
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| {
            let (fd, sum, stops, begin) = (fd.clone(), sum.clone(), stops.clone(), begin.clone());
            thread::spawn(move || {
                let mut reactor = build().build().unwrap();
                let all_stops = stops.clone();
                let handler = move |fd: &mut Arc<OwnedFd>| {
                    let read = drain(fd);
                    if sum.fetch_add(read, Ordering::AcqRel) + read == WRITES {
                        all_stops.lock().unwrap().iter().for_each(windlass::Stop::stop);
                    }
                };
                interest()
                    .read()
                    .exclusive()
                    .with_fd(fd)
                    .with_handler(handler)
                    .register_into(&mut reactor)
                    .unwrap();
                stops.lock().unwrap().push(reactor.stop_handle());
                begin.wait();
                reactor.run().unwrap();
            })
        })
        .collect();
    begin.wait();
    for _ in 0..WRITES {
        ring(&fd);
    }
    for waiter in waiters {
        waiter.join().unwrap();
    }
    assert_eq!(sum.load(Ordering::Acquire), WRITES);
}

// A handler deletes and registers again while the other thread writes.
fn registering_again_beside_a_writer_loses_nothing(build: Build) {
    let _alone = spinning_alone();
    let rounds = ROUNDS / 10;
    let mut reactor = build().build().unwrap();
    let fd = sendable();
    let read = Arc::new(AtomicU64::new(0));
    let (theirs, seen) = (fd.clone(), read.clone());
    let writer = thread::spawn(move || {
        for round in 0..rounds {
            ring(&theirs);
            while seen.load(Ordering::Acquire) == round {
                thread::yield_now();
            }
        }
    });
    fn watch(
        wanted: Interest,
        fd: Arc<OwnedFd>,
        read: Arc<AtomicU64>,
        rounds: u64,
        turn: &mut impl windlass::Registrar<Ops = Reactor>,
    ) {
        let handler = move |fd: &mut Arc<OwnedFd>, event: Event, mut turn: Turn<'_, Reactor>| {
            if read.fetch_add(drain(&*fd), Ordering::AcqRel) + 1 >= rounds {
                turn.stop();
            }
            turn.delete(event.key()).unwrap();
            let (fd, read) = (fd.clone(), read.clone());
            turn.defer(move |mut turn: Turn<'_, Reactor>| {
                watch(wanted, fd, read, rounds, &mut turn)
            })
            .unwrap();
        };
        wanted.with_fd(fd).with_handler(handler).register_into(turn).unwrap();
    }
    let wanted = edge(&reactor, interest().read());
    watch(wanted, fd, read.clone(), rounds, &mut reactor);
    reactor.run().unwrap();
    writer.join().unwrap();
    assert_eq!(read.load(Ordering::Acquire), rounds);
}

// Reactors on several threads are independent.
fn reactors_on_several_threads_keep_to_themselves(build: Build) {
    let threads: Vec<_> = (0..4u64)
        .map(|number| {
            thread::spawn(move || {
                let mut reactor = build().build().unwrap();
                let log = Log::new();
                let fd = crate::bed::idle();
                let key = crate::bed::noting(&mut reactor, &fd, &log, number);
                for _ in 0..if cfg!(miri) { 3 } else { 500 } {
                    ring(&fd);
                    assert_eq!(reactor.run_once(None).unwrap(), 1);
                    assert_eq!(log.take(), [number]);
                }
                (key, reactor.stats().events)
            })
        })
        .collect();
    let mut keys: Vec<_> =
        threads.into_iter().map(|thread| thread.join().unwrap().0.to_bits()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 4, "not even their keys are equal");
}

scenarios! {
    a_wait_beside_a_writer_loses_nothing,
    changes_beside_a_writer_lose_nothing,
    level_triggered_changes_beside_a_writer_lose_nothing,
    one_shots_rearmed_beside_a_writer_lose_nothing,
    timeouts_beside_a_writer_lose_nothing,
    ten_waiters_on_ten_descriptors_lose_nothing,
    #[cfg_attr(miri, ignore = "Miri's epoll knows no exclusive")]
    exclusive_waiters_lose_nothing except [poll "all waiters of poll(2) are woken"],
    registering_again_beside_a_writer_loses_nothing,
    reactors_on_several_threads_keep_to_themselves,
}
