//! A reactor inside tokio: `drive`.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    os::fd::OwnedFd,
    pin::pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Runtime},
    task::{LocalSet, spawn_local, yield_now},
};
use windlass::{Embedded, NextTurn, Reactor, Remote, Turn, drive, drive_with, interest};

use crate::{
    Build,
    bed::{Log, NOW, Shared, drain, panic_of, readable, ready, ring, sendable},
};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

fn embedded(build: Build) -> Embedded {
    build().build().unwrap().embed().unwrap()
}

fn tokio() -> Runtime {
    Builder::new_current_thread().enable_io().build().unwrap()
}

/// A descriptor whose handler counts.
fn counting(reactor: &mut Reactor, count: &Arc<AtomicU32>) -> Arc<OwnedFd> {
    let (fd, count) = (sendable(), Arc::clone(count));
    let handler = move |fd: &mut Arc<OwnedFd>| {
        drain(fd);
        count.fetch_add(1, Relaxed);
    };
    readable().with_fd(fd.clone()).with_handler(handler).register_into(reactor).unwrap();
    fd
}

/// Lets tokio run until the count is reached. The reactor's task is woken by its descriptor alone.
async fn reached(count: &AtomicU32, target: u32) {
    let start = Instant::now();
    while count.load(Relaxed) != target {
        assert!(start.elapsed() < Duration::from_secs(60), "a wake was lost");
        yield_now().await;
    }
}

/// All orders of the numbers below `count`.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let Some(last) = count.checked_sub(1) else { return vec![vec![]] };
    let longer = |order: Vec<usize>| {
        (0..count).map(move |place| {
            let mut order = order.clone();
            order.insert(place, last);
            order
        })
    };
    orders(last).into_iter().flat_map(longer).collect()
}

// Each source wakes a loop that sleeps, and one that is about to run for another source.
fn no_wake_is_lost_in_any_order(build: Build) {
    let mut guest = embedded(build);
    let count = Arc::new(AtomicU32::new(0));
    let (fds, remote) = guest
        .with(|reactor| ([counting(reactor, &count), counting(reactor, &count)], reactor.remote()));
    let counted = || {
        let count = Arc::clone(&count);
        move || _ = count.fetch_add(1, Relaxed)
    };
    let wake = |source: usize| match source {
        0 | 1 => ring(&fds[source]),
        2 => {
            let counted = counted();
            remote.try_post(move |_: Turn<'_>| counted()).unwrap();
        }
        _ => {
            let counted = counted();
            remote.try_post(move |mut turn| _ = turn.after(NOW, counted).unwrap()).unwrap();
        }
    };
    let tasks = LocalSet::new();
    tasks.block_on(&tokio(), async {
        let driven = spawn_local(async move { drive(&mut guest).await.unwrap() });
        let mut target = 0;
        for order in orders(4) {
            // Each bit tells whether tokio runs after a wake.
            for pauses in 0..16 {
                for (place, source) in order.iter().enumerate() {
                    wake(*source);
                    if pauses & (1 << place) != 0 {
                        yield_now().await;
                    }
                }
                target += 4;
                reached(&count, target).await;
            }
        }
        remote.stop();
        driven.await.unwrap();
    });
}

// Nothing else wakes tokio, so a lost wake hangs.
fn no_wake_of_another_thread_is_lost(build: Build) {
    const ROUNDS: u32 = 3000;
    let mut guest = embedded(build);
    let count = Arc::new(AtomicU32::new(0));
    let (fd, remote) = guest.with(|reactor| (counting(reactor, &count), reactor.remote()));
    let seen = Arc::clone(&count);
    let waker = thread::spawn(move || {
        for round in 0..ROUNDS {
            let count = Arc::clone(&seen);
            match round % 4 {
                0 => ring(&fd),
                1 => {
                    let late = move |mut turn: Turn<'_>| {
                        turn.after(NOW, move || _ = count.fetch_add(1, Relaxed)).unwrap();
                    };
                    remote.try_post(late).unwrap();
                }
                _ => remote.try_post(move |_| _ = count.fetch_add(1, Relaxed)).unwrap(),
            }
            while seen.load(Relaxed) <= round {
                thread::yield_now();
            }
        }
        remote.stop();
    });
    tokio().block_on(drive(&mut guest)).unwrap();
    waker.join().unwrap();
}

// The descriptors stay readable, so the kernel reports no other edge.
fn work_left_over_by_a_turn_is_done_without_an_edge(build: Build) {
    let start: [fn(&mut Reactor, Rc<Cell<u32>>); 3] = [
        |reactor, left| {
            let handler = move |fd: &mut Shared, turn: Turn<'_>| {
                drain(fd);
                done(turn, &left);
            };
            readable().with_fd(ready()).with_handler(handler).register_into(reactor).unwrap();
        },
        |reactor, left| _ = reactor.after_with(NOW, move |turn| done(turn, &left)).unwrap(),
        |reactor, left| reactor.defer(move |turn| done(turn, &left)).unwrap(),
    ];
    fn done(mut turn: Turn<'_>, left: &Cell<u32>) {
        left.set(left.get() - 1);
        if left.get() == 0 {
            turn.stop();
        }
    }
    for start in start {
        let builder = build().events_per_turn(1).deferred_per_turn(1).timers_per_turn(1);
        let mut guest = builder.build().unwrap().embed().unwrap();
        let left = Rc::new(Cell::new(8));
        guest.with(|reactor| (0..8).for_each(|_| start(reactor, Rc::clone(&left))));
        tokio().block_on(drive(&mut guest)).unwrap();
        assert_eq!(left.get(), 0);
    }
}

fn a_reactor_with_endless_work_is_fair_to_other_tasks(build: Build) {
    fn again(mut turn: Turn<'_>) {
        turn.defer(again).unwrap();
    }
    let mut guest = embedded(build);
    let stop = guest.with(|reactor| {
        reactor.defer(again).unwrap();
        reactor.stop_handle()
    });
    let tasks = LocalSet::new();
    let turns = tasks.block_on(&tokio(), async {
        let driven = spawn_local(async move {
            drive(&mut guest).await.unwrap();
            guest.with(|reactor| reactor.stats().turns)
        });
        for _ in 0..1000 {
            yield_now().await;
        }
        stop.stop();
        driven.await.unwrap()
    });
    assert!((500..=2000).contains(&turns), "the others got a thousand turns: {turns}");
}

fn a_stop_ends_it_and_is_consumed(build: Build) {
    let mut guest = embedded(build);
    let (remote, runtime) = (guest.with(Reactor::remote), tokio());
    remote.stop();
    remote.try_post(|_| panic!("a stop from before ends it at once")).unwrap();
    runtime.block_on(drive(&mut guest)).unwrap();
    assert_eq!(guest.with(|reactor| reactor.stats().calls), 0);
    let mut guest = embedded(build);
    for how in 0..3 {
        let remote = guest.with(Reactor::remote);
        let other = match how {
            // A handler stops, and nothing is due afterwards.
            0 => guest.with(|reactor| {
                reactor.after_with(MS, |mut turn| turn.stop()).unwrap();
                None
            }),
            1 => Some(thread::spawn(move || remote.stop())),
            // What was posted before a stop that wakes runs before the end.
            _ => Some(thread::spawn(move || {
                remote.call(|_| ()).unwrap();
                remote.stop();
            })),
        };
        runtime.block_on(drive(&mut guest)).unwrap();
        assert!(!guest.with(|reactor| reactor.stop_requested()));
        if let Some(other) = other {
            other.join().unwrap();
        }
    }
}

// The future is dropped each time it waits, and each time it yields.
fn dropping_the_future_loses_nothing(build: Build) {
    const POSTS: u32 = 500;
    let mut guest = build().calls_per_turn(2).build().unwrap().embed().unwrap();
    let count = Arc::new(AtomicU32::new(0));
    let (fd, remote) = guest.with(|reactor| (counting(reactor, &count), reactor.remote()));
    let poster = thread::spawn(move || {
        ring(&fd);
        for number in 0..POSTS {
            let count = Arc::clone(&count);
            let post = move |mut turn: Turn<'_>| {
                // The event may come last.
                if number + 1 == POSTS {
                    turn.after_with(MS, |mut turn| turn.stop()).unwrap();
                }
                count.fetch_add(1, Relaxed);
            };
            remote.post(post).unwrap();
        }
        count
    });
    let mut dropped = 0;
    tokio().block_on(async {
        loop {
            {
                let mut driven = pin!(drive(&mut guest));
                let once = poll_fn(|context| Poll::Ready(driven.as_mut().poll(context))).await;
                if once.map(Result::unwrap).is_ready() {
                    break;
                }
            }
            dropped += 1;
            yield_now().await;
        }
    });
    let count = poster.join().unwrap();
    assert!(dropped > 0);
    assert_eq!(count.load(Relaxed), POSTS + 1);
}

fn a_panic_comes_out_and_leaves_the_rest_for_later(build: Build) {
    let mut guest = embedded(build);
    let log = Log::new();
    for _ in 0..2 {
        let log = log.clone();
        let handler = move |fd: &mut Shared, mut turn: Turn<'_>| {
            drain(fd);
            log.note(());
            assert!(log.len() > 1, "first");
            turn.stop();
        };
        // Edge-triggered: both edges are fetched when the panic comes.
        let wanted = interest().read().edge_triggered();
        wanted.with_fd(ready()).with_handler(handler).register_into(&mut guest).unwrap();
    }
    let runtime = tokio();
    assert_eq!(panic_of(|| runtime.block_on(drive(&mut guest))), "first");
    runtime.block_on(drive(&mut guest)).unwrap();
    assert_eq!(log.len(), 2);
}

fn an_error_comes_out(build: Build) {
    let mut guest = embedded(build);
    guest.with(|reactor| {
        *reactor = Reactor::builder().backend(windlass::Backend::Poll).build().unwrap()
    });
    let error = tokio().block_on(drive(&mut guest)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
}

fn a_driver_is_called_before_the_first_wait_and_after_every_turn(build: Build) {
    let mut guest = embedded(build);
    let runtime = tokio();
    let (remote, start): (Remote, _) = (guest.with(Reactor::remote), Instant::now());
    let mut answers = vec![NextTurn::Stop, NextTurn::Until(start + 2 * MS), NextTurn::Again];
    let mut driver = |_: Turn<'_>| answers.pop().unwrap();
    runtime.block_on(drive_with(&mut guest, &mut driver)).unwrap();
    assert!(start.elapsed() >= 2 * MS);
    // It sleeps until another thread has something for the driver.
    let jobs = Arc::new(AtomicU32::new(0));
    let (made, calls) = (Arc::clone(&jobs), Rc::new(Cell::new(0)));
    let called = Rc::clone(&calls);
    let (begin, begun) = mpsc::channel();
    let mut driver = |_: Turn<'_>| {
        called.set(called.get() + 1);
        // The thread's call needs another turn.
        let _ = begin.send(());
        if jobs.load(Relaxed) > 0 { NextTurn::Stop } else { NextTurn::Until(Instant::now() + HOUR) }
    };
    let other = thread::spawn(move || {
        begun.recv().unwrap();
        remote.call(|_| ()).unwrap();
        made.store(1, Relaxed);
        remote.wake();
    });
    runtime.block_on(drive_with(&mut guest, &mut driver)).unwrap();
    other.join().unwrap();
    assert!((2..=4).contains(&calls.get()), "{}", calls.get());
}

scenarios! {
    no_wake_is_lost_in_any_order except [poll "a wait of poll(2) has no descriptor"],
    no_wake_of_another_thread_is_lost except [poll "a wait of poll(2) has no descriptor"],
    work_left_over_by_a_turn_is_done_without_an_edge
        except [poll "a wait of poll(2) has no descriptor"],
    a_reactor_with_endless_work_is_fair_to_other_tasks
        except [poll "a wait of poll(2) has no descriptor"],
    a_stop_ends_it_and_is_consumed except [poll "a wait of poll(2) has no descriptor"],
    dropping_the_future_loses_nothing except [poll "a wait of poll(2) has no descriptor"],
    a_panic_comes_out_and_leaves_the_rest_for_later
        except [poll "a wait of poll(2) has no descriptor"],
    an_error_comes_out except [poll "a wait of poll(2) has no descriptor"],
    a_driver_is_called_before_the_first_wait_and_after_every_turn
        except [poll "a wait of poll(2) has no descriptor"],
}
