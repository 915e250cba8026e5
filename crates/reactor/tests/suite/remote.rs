//! Calls and posts from other threads: answers, order, bounds, and the cases without an answer.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use windlass::{AddReason, CallError, PostReason, Reactor, Remote, RemoteAddError, Turn};

use crate::{
    Build,
    bed::{NOW, drain, panic_of, readable, ring, sendable, spinning_alone},
};

/// Longer than any test. A wait that lasts this long has missed its wake.
const LONG: Duration = Duration::from_secs(20);

/// Runs the reactor until the other thread has ended, and returns the thread's result.
pub(crate) fn serve<T: Send + 'static>(
    reactor: &mut Reactor,
    other: impl FnOnce(&Remote) -> T + Send + 'static,
) -> T {
    /// Stops the loop even if the thread panics.
    struct StopAtEnd(Remote);
    impl Drop for StopAtEnd {
        fn drop(&mut self) {
            self.0.stop();
        }
    }
    let remote = StopAtEnd(reactor.remote());
    let thread = thread::spawn(move || other(&remote.0));
    reactor.run().unwrap();
    thread.join().unwrap()
}

/// A reactor on a thread of its own that blocks in a call. The returned sender ends that call.
fn blocked(remote: &Remote) -> mpsc::Sender<()> {
    let (go, wait) = mpsc::channel::<()>();
    let (began, has_begun) = mpsc::channel();
    let closure = move |_: Turn<'_>| {
        began.send(()).unwrap();
        let _ = wait.recv();
    };
    assert!(remote.post(closure).is_ok());
    has_begun.recv().unwrap();
    go
}

fn a_call_brings_its_result(build: Build) {
    let mut reactor = build().build().unwrap();
    let own = thread::current().id();
    let there = serve(&mut reactor, |remote| {
        assert_eq!(remote.call(|turn| turn.stats().subscribers).unwrap(), 0);
        assert_eq!(remote.call_timeout(LONG, |_| String::from("text")).unwrap(), "text");
        assert_eq!(remote.call_timeout(Duration::MAX, |_| 5).unwrap(), 5);
        remote.call(|_| thread::current().id()).unwrap()
    });
    assert_eq!(there, own, "it runs on the loop's thread");
    assert_eq!(reactor.stats().calls, 4);
}

fn what_one_thread_queues_runs_in_its_order(build: Build) {
    let mut reactor = build().remote_max(8).calls_per_turn(3).build().unwrap();
    let seen: Arc<Mutex<Vec<u32>>> = Arc::default();
    let notes = seen.clone();
    serve(&mut reactor, move |remote| {
        for number in 0..1_000 {
            let notes = notes.clone();
            if number % 3 == 0 {
                assert!(remote.call(move |_| notes.lock().unwrap().push(number)).is_ok());
            } else {
                assert!(
                    remote
                        .clone()
                        .post(move |_: Turn<'_>| notes.lock().unwrap().push(number))
                        .is_ok()
                );
            }
        }
        remote.call(|_| ()).unwrap();
    });
    assert!(seen.lock().unwrap().iter().copied().eq(0..1_000));
}

// eventp: remote calls from 8 threads.
fn eight_threads_are_all_answered(build: Build) {
    const THREADS: u64 = 8;
    let rounds: u64 = if cfg!(miri) { 5 } else { 2_000 };
    let mut reactor = build().remote_max(4).build().unwrap();
    let sum = Arc::new(AtomicU64::new(0));
    let theirs = sum.clone();
    serve(&mut reactor, move |remote| {
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (remote, sum) = (remote.clone(), &theirs);
                scope.spawn(move || {
                    for round in 0..rounds {
                        let sum = sum.clone();
                        let answer = remote.call(move |_| {
                            sum.fetch_add(1, Ordering::Relaxed);
                            (thread, round)
                        });
                        assert_eq!(answer.unwrap(), (thread, round));
                    }
                });
            }
        });
    });
    assert_eq!(sum.load(Ordering::Relaxed), THREADS * rounds);
    assert_eq!(reactor.stats().calls, THREADS * rounds);
}

fn a_full_queue_refuses_and_gives_back(build: Build) {
    let mut reactor = build().remote_max(2).build().unwrap();
    let remote = reactor.remote();
    let ran: Arc<Mutex<Vec<&str>>> = Arc::default();
    let note = |what: &'static str| {
        let ran = ran.clone();
        move |_: Turn<'_>| ran.lock().unwrap().push(what)
    };
    assert!(remote.try_post(note("one")).is_ok());
    assert!(remote.post(note("two")).is_ok());
    let refused = remote.try_post(note("three")).unwrap_err();
    assert_eq!(refused.reason, PostReason::Full);
    assert_eq!(
        std::io::Error::from(remote.try_post(note("lost")).unwrap_err()).kind(),
        std::io::ErrorKind::WouldBlock
    );
    // This is the loop's thread, so waiting for room would be a deadlock.
    assert_eq!(remote.post(note("four")).unwrap_err().reason, PostReason::WouldDeadlock);
    assert_eq!(reactor.run_once(LONG).unwrap(), 0, "no event, and no wait");
    assert!(remote.try_post(refused.closure.into_inner()).is_ok(), "there is room again");
    reactor.run_once(LONG).unwrap();
    assert_eq!(*ran.lock().unwrap(), ["one", "two", "three"]);
}

fn what_waits_on_its_own_loop_is_told_so(build: Build) {
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    let Err(CallError::WouldDeadlock(closure)) = remote.call(|_| 7) else {
        panic!("it must not wait")
    };
    let Err(CallError::WouldDeadlock(_)) = remote.call_timeout(NOW, closure.into_inner()) else {
        panic!("it must not wait")
    };
    let subscriber = readable().with_fd(sendable()).with_handler(|_: &mut Arc<OwnedFd>| {});
    let Err(RemoteAddError::WouldDeadlock(_)) = subscriber.register_remotely(&remote) else {
        panic!("it must not wait")
    };
    // The same from a handler.
    let (from_handler, told) = (remote.clone(), Arc::new(AtomicBool::new(false)));
    let tell = told.clone();
    let ask = move |_: Turn<'_, _>| {
        tell.store(
            matches!(from_handler.call(|_| ()), Err(CallError::WouldDeadlock(_))),
            Ordering::Relaxed,
        );
    };
    reactor.defer(ask).unwrap();
    reactor.run_once(NOW).unwrap();
    assert!(told.load(Ordering::Relaxed));
}

fn a_turn_runs_so_many_calls_and_the_rest_goes_first(build: Build) {
    let mut reactor = build().calls_per_turn(2).remote_max(16).build().unwrap();
    let remote = reactor.remote();
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let fd = sendable();
    let notes = order.clone();
    let event = move |fd: &mut Arc<OwnedFd>| {
        drain(fd);
        notes.lock().unwrap().push("event".into());
    };
    readable().with_fd(fd.clone()).with_handler(event).register_into(&mut reactor).unwrap();
    for number in 0..5 {
        let notes = order.clone();
        assert!(
            remote
                .try_post(move |_: Turn<'_>| notes.lock().unwrap().push(format!("call {number}")))
                .is_ok()
        );
    }
    for expected in [
        &["event", "call 0", "call 1"][..],
        &["call 2", "call 3", "event"],
        &["call 4", "event"],
        &[],
    ] {
        if !expected.is_empty() {
            ring(&fd);
        }
        let timeout = if expected.is_empty() { NOW } else { LONG };
        reactor.run_once(timeout).unwrap();
        assert_eq!(core::mem::take(&mut *order.lock().unwrap()), expected);
    }
}

// Rule 10: a call that keeps posting does not starve others.
fn a_call_that_posts_itself_again_starves_nothing(build: Build) {
    fn again(remote: Remote, runs: Arc<AtomicU64>) {
        let next = remote.clone();
        let closure = move |_: Turn<'_>| {
            runs.fetch_add(1, Ordering::Relaxed);
            again(next, runs);
        };
        assert!(remote.try_post(closure).is_ok());
    }
    let mut reactor = build().calls_per_turn(4).build().unwrap();
    let runs = Arc::new(AtomicU64::new(0));
    again(reactor.remote(), runs.clone());
    reactor.after(Duration::from_millis(1), |mut turn: Turn<'_, _>| turn.stop()).unwrap();
    reactor.run().unwrap();
    let (runs, turns) = (runs.load(Ordering::Relaxed), reactor.stats().turns);
    assert!(runs > 0 && runs <= 4 * turns, "{runs} in {turns} turns");
}

fn a_call_whose_time_is_over_never_runs(build: Build) {
    let mut reactor = build().remote_max(2).build().unwrap();
    serve(&mut reactor, |remote| {
        let go = blocked(remote);
        let ran = Arc::new(AtomicBool::new(false));
        let theirs = ran.clone();
        let Err(CallError::TimedOut(Some(closure))) = remote
            .call_timeout(Duration::from_millis(1), move |_| theirs.store(true, Ordering::Relaxed))
        else {
            panic!("the loop is blocked");
        };
        // The withdrawn call keeps its slot until the loop reaches it. The blocking call has the
        // other slot.
        let Err(CallError::TimedOut(Some(closure))) =
            remote.call_timeout(Duration::from_millis(1), closure.into_inner())
        else {
            panic!("the queue is full");
        };
        go.send(()).unwrap();
        remote.call(|_| ()).unwrap();
        assert!(!ran.load(Ordering::Relaxed), "it was withdrawn");
        assert!(remote.call(closure.into_inner()).is_ok());
        assert!(ran.load(Ordering::Relaxed));
    });
}

fn a_call_that_runs_when_its_time_is_over_is_let_go(build: Build) {
    struct Told(mpsc::Sender<thread::ThreadId>);
    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().id());
        }
    }
    let mut reactor = build().build().unwrap();
    let own = thread::current().id();
    serve(&mut reactor, move |remote| {
        let (go, wait) = mpsc::channel::<()>();
        let (dropped, where_dropped) = mpsc::channel();
        let result = remote.call_timeout(Duration::from_millis(20), move |_| {
            let _ = wait.recv();
            Told(dropped)
        });
        match result {
            Err(CallError::TimedOut(None)) => {
                go.send(()).unwrap();
                assert_eq!(
                    where_dropped.recv().unwrap(),
                    own,
                    "the result is dropped on the loop's thread"
                );
            }
            // The loop's thread was not scheduled for that long.
            Err(CallError::TimedOut(Some(_))) => {}
            Ok(_) | Err(_) => panic!("it waits for us"),
        }
    });
}

fn a_panicking_call_harms_its_caller_alone(build: Build) {
    let mut reactor = build().build().unwrap();
    serve(&mut reactor, |remote| {
        for _ in 0..3 {
            let Err(CallError::Panicked(load)) = remote.call(|_| -> u32 { panic!("mine") }) else {
                panic!("it has panicked")
            };
            assert_eq!(load.into_inner().downcast_ref::<&str>(), Some(&"mine"));
            assert_eq!(remote.call(|_| 1).unwrap(), 1, "the loop goes on");
        }
    });
    assert_eq!(reactor.stats().calls, 6);
}

// Rule 8: a post has no caller to report to, so its panic propagates like a handler's.
fn a_panicking_post_unwinds_and_the_rest_comes_first_in_the_next_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    let ran = Arc::new(AtomicU64::new(0));
    assert!(remote.try_post(|_: Turn<'_>| panic!("posted")).is_ok());
    let theirs = ran.clone();
    assert!(remote.try_post(move |_: Turn<'_>| _ = theirs.fetch_add(1, Ordering::Relaxed)).is_ok());
    assert_eq!(panic_of(|| reactor.run_once(LONG)), "posted");
    assert_eq!(ran.load(Ordering::Relaxed), 0);
    reactor.run_once(LONG).unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), 1, "without a wait");
}

fn the_end_of_the_loop_answers_all_who_wait(build: Build) {
    let mut reactor = build().remote_max(2).build().unwrap();
    let remote = reactor.remote();
    let (ready, is_ready) = mpsc::channel();
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let (remote, ready) = (remote.clone(), ready.clone());
            thread::spawn(move || {
                ready.send(()).unwrap();
                // Two are queued. The others wait for room, or come after the end.
                match remote.call(move |_| number) {
                    Err(CallError::Closed(closure)) => {
                        matches!(remote.call(closure.into_inner()), Err(CallError::Closed(_)))
                    }
                    _ => false,
                }
            })
        })
        .collect();
    for _ in 0..4 {
        is_ready.recv().unwrap();
    }
    drop(reactor);
    assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    assert_eq!(remote.try_post(|_: Turn<'_>| {}).unwrap_err().reason, PostReason::Closed);
    assert_eq!(remote.post(|_: Turn<'_>| {}).unwrap_err().reason, PostReason::Closed);
    remote.stop();
}

// Callers get their answers before the reactor runs its destructors, which may take long.
fn waiters_are_answered_before_any_destructor_runs(build: Build) {
    struct Slow(mpsc::Receiver<()>);
    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.recv_timeout(LONG).expect("the caller is answered first");
        }
    }
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    let (answered, wait) = mpsc::channel();
    let slow = Slow(wait);
    assert!(remote.try_post(move |_: Turn<'_>| drop(slow)).is_ok());
    let (queued, is_queued) = mpsc::channel();
    let caller = thread::spawn(move || {
        queued.send(()).unwrap();
        assert!(matches!(remote.call(|_| ()), Err(CallError::Closed(_))));
        answered.send(()).unwrap();
    });
    is_queued.recv().unwrap();
    drop(reactor);
    caller.join().unwrap();
}

fn a_subscriber_is_registered_from_another_thread(build: Build) {
    let mut reactor = build().build().unwrap();
    let fd = sendable();
    let (theirs, hits) = (fd.clone(), Arc::new(AtomicU64::new(0)));
    let counted = hits.clone();
    let key = serve(&mut reactor, move |remote| {
        let handler = move |fd: &mut Arc<OwnedFd>, mut turn: Turn<'_>| {
            counted.fetch_add(drain(fd), Ordering::Relaxed);
            turn.stop();
        };
        let key = readable()
            .with_fd(theirs.clone())
            .with_handler(handler)
            .register_remotely(remote)
            .unwrap();
        let again = readable()
            .with_fd(theirs)
            .with_handler(|_: &mut Arc<OwnedFd>| {})
            .register_remotely(remote);
        let Err(RemoteAddError::Refused(refused)) = again else { panic!("its number is taken") };
        assert_eq!(refused.reason, AddReason::AlreadyExists);
        key
    });
    ring(&fd);
    reactor.run().unwrap();
    assert_eq!(hits.load(Ordering::Relaxed), 1);
    reactor.delete(key).unwrap();
    let remote = reactor.remote();
    drop(reactor);
    let late = readable().with_fd(fd).with_handler(|_: &mut Arc<OwnedFd>| {});
    let closed = thread::spawn(move || {
        matches!(late.register_remotely(&remote), Err(RemoteAddError::Closed(_)))
    })
    .join();
    assert!(closed.unwrap());
}

fn a_call_does_what_a_handler_may(build: Build) {
    let mut reactor = build().build().unwrap();
    let order: Arc<Mutex<Vec<&str>>> = Arc::default();
    let notes = order.clone();
    serve(&mut reactor, move |remote| {
        let (deferred, timed) = (notes.clone(), notes.clone());
        remote
            .call(move |mut turn| {
                turn.after(NOW, move |_: Turn<'_, _>| timed.lock().unwrap().push("timer")).unwrap();
                turn.defer(move |_| deferred.lock().unwrap().push("deferred")).unwrap();
                notes.lock().unwrap().push("call");
            })
            .unwrap();
        // The timer is due in the next turn, and this call belongs to that turn.
        remote.call(|_| ()).unwrap();
        remote.call(|_| ()).unwrap();
    });
    assert_eq!(*order.lock().unwrap(), ["call", "deferred", "timer"]);
}

// io-event: a wake while the loop is idle or before it waits is not lost. Two wakes count as one.
fn a_post_before_the_wait_ends_it(build: Build) {
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    let runs = Arc::new(AtomicU64::new(0));
    for _ in 0..3 {
        for _ in 0..2 {
            let runs = runs.clone();
            assert!(
                remote
                    .try_post(move |_: Turn<'_>| _ = runs.fetch_add(1, Ordering::Relaxed))
                    .is_ok()
            );
        }
        assert_eq!(reactor.run_once(None).unwrap(), 0);
    }
    assert_eq!(runs.load(Ordering::Relaxed), 6);
    assert_eq!(reactor.stats().wakes, 0, "the loop has not slept");
}

// mio's waker: a program with its own queue checks it after each turn.
fn a_wake_ends_the_wait_now_or_the_next(build: Build) {
    let _alone = spinning_alone();
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    remote.wake();
    remote.wake();
    assert_eq!(reactor.run_once(None).unwrap(), 0, "it came before the wait");
    let rounds: u64 = if cfg!(miri) { 10 } else { 20_000 };
    let (sent, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (theirs, answered) = (sent.clone(), seen.clone());
    let waker = thread::spawn(move || {
        for round in 1..=rounds {
            theirs.store(round, Ordering::Relaxed);
            remote.wake();
            while answered.load(Ordering::Relaxed) < round {
                thread::yield_now();
            }
        }
    });
    while seen.load(Ordering::Relaxed) < rounds {
        assert_eq!(reactor.run_once(None).unwrap(), 0);
        seen.store(sent.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    waker.join().unwrap();
    let stats = reactor.stats();
    assert_eq!((stats.calls, stats.events), (0, stats.wakes), "nothing but wakes came");
}

fn a_busy_poll_sees_a_post(build: Build) {
    let mut reactor = build().busy_poll(LONG).build().unwrap();
    let runs = serve(&mut reactor, |remote| {
        let mut sum = 0;
        for number in 0..100 {
            sum += remote.call(move |_| number).unwrap();
        }
        sum
    });
    assert_eq!(runs, 4_950);
    assert_eq!(reactor.stats().wakes, 0, "the latch never slept");
}

fn nothing_is_lost_between_sleep_and_wake(build: Build) {
    let _alone = spinning_alone();
    let rounds: u64 = if cfg!(miri) { 20 } else { 100_000 };
    let mut reactor = build().build().unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let theirs = count.clone();
    serve(&mut reactor, move |remote| {
        // One at a time, each awaited by spinning. So the loop is asleep or about to sleep when the
        // next comes.
        for round in 0..rounds {
            let counter = theirs.clone();
            assert!(
                remote.post(move |_: Turn<'_>| _ = counter.fetch_add(1, Ordering::Release)).is_ok()
            );
            while theirs.load(Ordering::Acquire) == round {
                thread::yield_now();
            }
        }
    });
    assert_eq!(count.load(Ordering::Relaxed), rounds);
}

scenarios! {
    a_call_brings_its_result,
    what_one_thread_queues_runs_in_its_order,
    eight_threads_are_all_answered,
    a_full_queue_refuses_and_gives_back,
    what_waits_on_its_own_loop_is_told_so,
    a_turn_runs_so_many_calls_and_the_rest_goes_first,
    a_call_that_posts_itself_again_starves_nothing,
    a_call_whose_time_is_over_never_runs,
    a_call_that_runs_when_its_time_is_over_is_let_go,
    a_panicking_call_harms_its_caller_alone,
    a_panicking_post_unwinds_and_the_rest_comes_first_in_the_next_turn,
    the_end_of_the_loop_answers_all_who_wait,
    waiters_are_answered_before_any_destructor_runs,
    a_subscriber_is_registered_from_another_thread,
    a_call_does_what_a_handler_may,
    a_post_before_the_wait_ends_it,
    a_wake_ends_the_wait_now_or_the_next,
    a_busy_poll_sees_a_post,
    nothing_is_lost_between_sleep_and_wake,
}
