//! Other threads that queue panicking values, and that use the loop while it is dropped.

use std::{
    future::Future,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll},
    thread,
    time::Duration,
};

use windlass::{CallError, PostReason, Reactor, Remote, Turn, interest};

use crate::{
    child::survives,
    tools::{on_ready, ready, turn, turn_panics},
    wakers::Rude,
};

/// Panics when it is dropped, and counts the drop.
struct Bomb(Arc<AtomicUsize>);

impl Bomb {
    fn touch(&self) {}
}

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("bomb");
    }
}

fn count() -> Arc<AtomicUsize> {
    Arc::default()
}

/// Polls a future with a rude waker. Only its clones do what they were told. The waker in the
/// context itself is dropped without a panic.
fn poll<F: Future + Unpin>(future: &mut F, rude: &Arc<Rude>) -> thread::Result<Poll<F::Output>> {
    let waker = rude.waker();
    let polled =
        catch_unwind(AssertUnwindSafe(|| Pin::new(future).poll(&mut Context::from_waker(&waker))));
    let told = rude.in_drop.swap(false, Ordering::Relaxed);
    drop(waker);
    rude.in_drop.store(told, Ordering::Relaxed);
    polled
}

fn rude(clone: bool, wake: bool, drop: bool) -> Arc<Rude> {
    let rude = Rude::default();
    rude.in_clone.store(clone, Ordering::Relaxed);
    rude.in_wake.store(wake, Ordering::Relaxed);
    rude.in_drop.store(drop, Ordering::Relaxed);
    Arc::new(rude)
}

fn fill(remote: &Remote) {
    assert!(remote.try_post(|_: Turn<'_>| {}).is_ok());
}

/// Regression: the answer was taken out and lost when an unneeded waker panicked. The task waited
/// forever.
#[test]
fn a_waker_that_panics_when_it_is_dropped_takes_no_answer_along() {
    let mut reactor = crate::builder().build().unwrap();
    let remote = reactor.remote();
    let (polite, bad) = (rude(false, false, false), rude(false, false, true));
    let mut future = remote.call_async(|_| 7);
    assert!(poll(&mut future, &polite).unwrap().is_pending());
    turn(&mut reactor);
    let Ok(Poll::Ready(Ok(7))) = poll(&mut future, &bad) else {
        panic!("its answer is there, and no waker is needed")
    };
}

/// The same regression, with an answer that arrives while the waker is cloned.
#[test]
fn an_answer_that_comes_while_the_waker_is_cloned_is_not_lost() {
    for drops in [false, true] {
        let mut reactor = crate::builder().build().unwrap();
        let remote = reactor.remote();
        let (polite, bad) = (rude(false, false, false), rude(false, false, drops));
        let mut future = remote.call_async(|_| 7);
        assert!(poll(&mut future, &polite).unwrap().is_pending());
        Rude::in_next_clone(move || _ = turn(&mut reactor));
        let polled = poll(&mut future, &bad);
        let answer = if drops {
            assert!(polled.is_err(), "the waker's panic comes out");
            poll(&mut future, &polite).unwrap()
        } else {
            polled.unwrap()
        };
        assert!(matches!(answer, Poll::Ready(Ok(7))));
    }
}

#[test]
fn a_waker_that_panics_when_it_is_cloned_leaves_the_future_as_it_was() {
    let mut reactor = crate::builder().remote_max(1).build().unwrap();
    let remote = reactor.remote();
    fill(&remote);
    let (polite, bad) = (rude(false, false, false), rude(true, false, false));
    let mut future = remote.call_async(|_| 7);
    for _ in 0..2 {
        // In the first round it waits for room, in the second for the answer.
        assert!(poll(&mut future, &bad).is_err());
        assert!(poll(&mut future, &polite).unwrap().is_pending());
        assert!(poll(&mut future, &bad).is_err());
        turn(&mut reactor);
    }
    let Ok(Poll::Ready(Ok(7))) = poll(&mut future, &bad) else { panic!("no waker is needed") };
}

/// Regression: the panic of a waker propagated out of the loop if its task waited for room. For a
/// task that waited for its answer it did not.
#[test]
fn a_waker_that_panics_when_it_wakes_harms_neither_the_loop_nor_other_tasks() {
    let mut reactor = crate::builder().remote_max(1).build().unwrap();
    let remote = reactor.remote();
    let bad = rude(false, true, true);
    let mut futures: Vec<_> = (0..3).map(|number| remote.call_async(move |_| number)).collect();
    for future in &mut futures {
        assert!(poll(future, &bad).unwrap().is_pending());
    }
    turn(&mut reactor);
    assert_eq!(bad.wakes(), 3, "one has its answer, two have room");
    let polite = rude(false, false, false);
    assert!(matches!(poll(&mut futures[0], &polite), Ok(Poll::Ready(Ok(0)))));
    assert!(poll(&mut futures[1], &bad).unwrap().is_pending());
    assert!(poll(&mut futures[2], &bad).unwrap().is_pending());
    // One call is queued, one waits for room.
    drop(reactor);
    assert_eq!(bad.wakes(), 5);
    for future in &mut futures[1..] {
        assert!(matches!(poll(future, &polite), Ok(Poll::Ready(Err(CallError::Closed(_))))));
    }
    assert_eq!(Arc::strong_count(&bad), 1);
}

/// Regression: the closure's panic met the waker's panic and aborted.
#[test]
fn a_future_whose_closure_and_wakers_panic_when_they_are_dropped_can_be_dropped() {
    survives(
        "remote::a_future_whose_closure_and_wakers_panic_when_they_are_dropped_can_be_dropped",
        || {
            for waits_for_room in [true, false] {
                let mut reactor = crate::builder().remote_max(1).build().unwrap();
                let remote = reactor.remote();
                if waits_for_room {
                    fill(&remote);
                }
                let (dropped, bad) = (count(), rude(false, false, true));
                let bomb = Bomb(dropped.clone());
                let mut future = remote.call_async(move |_| bomb.touch());
                assert!(poll(&mut future, &bad).unwrap().is_pending());
                assert!(catch_unwind(AssertUnwindSafe(|| drop(future))).is_err());
                assert_eq!((dropped.load(Ordering::Relaxed), Arc::strong_count(&bad)), (1, 1));
                turn(&mut reactor);
                assert_eq!(reactor.stats().calls, 1);
            }
        },
    );
}

/// This attack found no bug.
#[test]
fn results_and_loads_that_panic_when_they_are_dropped_do_not_reach_the_loop() {
    survives(
        "remote::results_and_loads_that_panic_when_they_are_dropped_do_not_reach_the_loop",
        || {
            let mut reactor = crate::builder().build().unwrap();
            let remote = reactor.remote();
            let dropped = count();
            let polite = rude(false, false, false);
            for panics in [false, true] {
                let slot: Arc<Mutex<Option<Box<dyn Send>>>> = Arc::default();
                let (own, told) = (slot.clone(), dropped.clone());
                let mut future = remote.call_async(move |_| {
                    // The call drops its own future while it runs.
                    drop(own.lock().unwrap().take());
                    if panics {
                        panic_any(Bomb(told));
                    }
                    Bomb(told)
                });
                assert!(poll(&mut future, &polite).unwrap().is_pending());
                *slot.lock().unwrap() = Some(Box::new(future));
                turn(&mut reactor);
            }
            assert_eq!(dropped.load(Ordering::Relaxed), 2);
            // A panic payload without a receiver is dropped by its owner, here the future.
            let told = dropped.clone();
            let mut future = remote.call_async(move |_| panic_any(Bomb(told)));
            assert!(poll::<_>(&mut future, &polite).unwrap().is_pending());
            turn(&mut reactor);
            assert!(catch_unwind(AssertUnwindSafe(|| drop(future))).is_err());
            assert_eq!(dropped.load(Ordering::Relaxed), 3);
        },
    );
}

/// This attack found no bug. Every closure is dropped, and waiting callers are answered before the
/// first panic.
#[test]
fn posts_that_panic_when_they_are_dropped_do_not_keep_a_caller_waiting() {
    survives("remote::posts_that_panic_when_they_are_dropped_do_not_keep_a_caller_waiting", || {
        for unwinding in [false, true] {
            let mut reactor = crate::builder().remote_max(4).build().unwrap();
            let remote = reactor.remote();
            let dropped = count();
            for _ in 0..3 {
                let bomb = Bomb(dropped.clone());
                assert!(remote.try_post(move |_: Turn<'_>| bomb.touch()).is_ok());
            }
            let bad = rude(false, true, true);
            let mut future = remote.call_async(|_| ());
            let mut for_room = remote.call_async(|_| ());
            assert!(poll(&mut future, &bad).unwrap().is_pending());
            assert!(poll(&mut for_room, &bad).unwrap().is_pending());
            let ended = catch_unwind(AssertUnwindSafe(move || {
                let reactor = reactor;
                assert!(!unwinding, "while it unwinds");
                drop(reactor);
            }));
            let load = ended.unwrap_err();
            assert_eq!(
                crate::tools::message(&*load),
                if unwinding { "while it unwinds" } else { "bomb" }
            );
            assert_eq!((dropped.load(Ordering::Relaxed), bad.wakes()), (3, 2));
            let polite = rude(false, false, false);
            assert!(matches!(
                poll(&mut future, &polite),
                Ok(Poll::Ready(Err(CallError::Closed(_))))
            ));
        }
    });
}

/// Regression: a call from the loop's own thread, after the loop's end, reported that it would
/// deadlock.
#[test]
fn who_uses_a_remote_where_its_reactor_ends_is_told_that_it_is_gone() {
    struct Late(Remote, Arc<AtomicUsize>);
    impl Drop for Late {
        fn drop(&mut self) {
            assert_eq!(self.0.try_post(|_: Turn<'_>| {}).unwrap_err().reason, PostReason::Closed);
            assert_eq!(self.0.post(|_: Turn<'_>| {}).unwrap_err().reason, PostReason::Closed);
            assert!(matches!(self.0.call(|_| ()), Err(CallError::Closed(_))));
            assert!(matches!(
                self.0.call_timeout(Duration::MAX, |_| ()),
                Err(CallError::Closed(_))
            ));
            let subscriber = interest().with_fd(ready()).with_handler(|_: &mut OwnedFd| {});
            assert!(subscriber.register_remotely(&self.0).is_err());
            self.0.stop();
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    let mut reactor = crate::builder().build().unwrap();
    let remote = reactor.remote();
    let told = count();
    let late = || Late(remote.clone(), told.clone());
    let value = late();
    on_ready(&mut reactor, ready(), move |_, _| _ = &value);
    let value = late();
    reactor.after(Duration::from_secs(100), move || _ = &value).unwrap();
    let value = late();
    reactor.defer(move |_: Turn<'_, _>| drop(value)).unwrap();
    let value = late();
    reactor.after_turn(move |_| _ = &value).unwrap();
    let value = late();
    assert!(remote.try_post(move |_: Turn<'_>| drop(value)).is_ok());
    let value = late();
    let mut future = remote.call_async(move |_| drop(value));
    assert!(poll(&mut future, &rude(false, false, false)).unwrap().is_pending());
    let last = late();
    drop(reactor);
    assert_eq!(told.load(Ordering::Relaxed), 5, "the call's closure is its caller's");
    drop((future, last));
    assert_eq!(told.load(Ordering::Relaxed), 7);
}

/// Callers see no difference between a reactor that does not run and one that was leaked.
#[test]
fn callers_with_a_time_come_back_from_a_reactor_that_nobody_runs() {
    let mut reactor = crate::builder().remote_max(2).build().unwrap();
    let remote = reactor.remote();
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let remote = remote.clone();
            // Two calls are queued, the others find no room.
            thread::spawn(move || {
                let ran = count();
                let told = ran.clone();
                let call = move |_: Turn<'_>| told.fetch_add(1, Ordering::Relaxed);
                let Err(CallError::TimedOut(Some(closure))) =
                    remote.call_timeout(Duration::from_millis(1), call)
                else {
                    panic!("nobody has answered")
                };
                drop(closure);
                (Arc::strong_count(&ran), ran.load(Ordering::Relaxed))
            })
        })
        .collect();
    for caller in callers {
        assert_eq!(caller.join().unwrap(), (1, 0));
    }
    turn(&mut reactor);
    assert_eq!(reactor.stats().calls, 2, "their places were in the queue still");
}

/// This attack found no bug. Hooks and destructors that post in every turn keep the loop awake only
/// while they post.
#[test]
fn a_hook_that_posts_before_the_wait_keeps_the_turn_from_waiting() {
    let mut reactor = crate::builder().build().unwrap();
    let remote = reactor.remote();
    let hook = reactor.before_wait(move |_| fill(&remote)).unwrap();
    for round in 1..4 {
        assert_eq!(reactor.run_once(None).unwrap(), 0);
        assert_eq!(reactor.stats().calls, round);
    }
    reactor.remove_hook(hook).unwrap();
    turn(&mut reactor);
    assert_eq!(reactor.stats().calls, 3);
}

/// This attack found no bug. The panic of a post propagates. A panic of a hook or handler in the
/// same turn leaves the queue unchanged.
#[test]
fn a_turn_in_which_all_panic_at_once_loses_no_post() {
    survives("remote::a_turn_in_which_all_panic_at_once_loses_no_post", || {
        let mut reactor = crate::builder().calls_per_turn(2).events_per_turn(1).build().unwrap();
        let remote = reactor.remote();
        let (ran, bad) = (count(), rude(false, true, true));
        let mut callers = Vec::new();
        for number in 0..6 {
            let ran = ran.clone();
            let post = move |_: Turn<'_>| {
                ran.fetch_add(1, Ordering::Relaxed);
                assert_eq!(number % 2, 0, "post");
            };
            assert!(remote.try_post(post).is_ok());
            on_ready(&mut reactor, ready(), |mut turn, event| {
                turn.delete(event.key()).unwrap();
                panic!("handler");
            });
            let mut future = remote.call_async(|_| panic!("call"));
            assert!(poll::<_>(&mut future, &bad).unwrap().is_pending());
            callers.push(future);
        }
        let hook = reactor.after_turn(|_| panic!("hook")).unwrap();
        for _ in 0..30 {
            let _ = catch_unwind(AssertUnwindSafe(|| reactor.run_once(Duration::ZERO)));
        }
        reactor.remove_hook(hook).unwrap();
        assert_eq!((ran.load(Ordering::Relaxed), reactor.stats().calls, bad.wakes()), (6, 12, 6));
        assert_eq!((turn(&mut reactor), reactor.stats().subscribers), (0, 0));
    });
}

/// A caller waits while its own subscriber panics during registration.
#[test]
fn a_subscriber_that_panics_when_it_is_asked_is_its_senders_trouble() {
    struct Rogue(OwnedFd);
    impl windlass::Subscriber for Rogue {
        fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
            panic!("{:?} is not told", self.0)
        }
        fn interest(&self) -> windlass::Interest {
            interest()
        }
        fn handle(&mut self, _: windlass::Event, _: Turn<'_, Reactor>) {}
    }
    let mut reactor = crate::builder().build().unwrap();
    let remote = reactor.remote();
    let (done, is_done) = mpsc::channel();
    let sender = thread::spawn(move || {
        let panicked =
            matches!(remote.add(Rogue(ready())), Err(windlass::RemoteAddError::Panicked(_)));
        done.send(panicked).unwrap();
        remote.stop();
    });
    reactor.run().unwrap();
    assert!(is_done.recv().unwrap());
    sender.join().unwrap();
    assert_eq!(reactor.stats().subscribers, 0);
    // A panic of a post has no other receiver, so it propagates unchanged.
    assert!(reactor.remote().try_post(|_: Turn<'_>| panic!("nobody's")).is_ok());
    assert_eq!(turn_panics(&mut reactor), "nobody's");
}
