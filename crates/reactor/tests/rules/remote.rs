//! Rules 8, 10 and 13 for the closures that other threads queue.
//!
//! These posts come from the loop's own thread, so the order is known. The loop treats them like
//! any other post.

use std::{
    cell::Cell,
    rc::Rc,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use windlass::{CallError, Key, PostReason, Reactor, Remote, Turn};

use crate::{
    Build,
    tools::{caught, counter, edge, on_ready, ready, turn, turn_panics},
};

/// A list that posted closures write to.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn say(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// A closure that writes a word to the list.
    fn saying(&self, what: &'static str) -> impl FnOnce(Turn<'_>) + Send + use<> {
        let notes = self.clone();
        move |_: Turn<'_>| notes.say(what)
    }
}

fn post(remote: &Remote, closure: impl FnOnce(Turn<'_>) + Send + 'static) {
    assert!(remote.try_post(closure).is_ok());
}

/// Regression: the latch's wake was taken before the handler panicked, and was lost with the turn.
/// So the post ran only after another post came.
fn rule_8_a_post_beside_a_panicking_handler_is_run_in_the_next_turn_which_does_not_wait(
    build: Build,
) {
    for timeout in [None, Some(Duration::ZERO), Some(Duration::from_secs(20))] {
        for has_timer in [false, true] {
            let mut reactor = build().build().unwrap();
            let remote = reactor.remote();
            let notes = Notes::default();
            on_ready(&mut reactor, ready(), |mut turn, event| {
                turn.delete(event.key()).unwrap();
                panic!("handler");
            });
            if has_timer {
                reactor.after(Duration::from_secs(100), || {}).unwrap();
            }
            post(&remote, notes.saying("post"));
            assert!(caught(|| reactor.run_once(timeout)).is_err());
            assert!(notes.take().is_empty());
            reactor.run_once(None).unwrap();
            assert_eq!(notes.take(), ["post"]);
        }
    }
}

fn rule_8_a_post_beside_a_panic_of_any_kind_comes_first_in_the_next_turn(build: Build) {
    type Arm = fn(&mut Reactor);
    let arms: [Arm; 4] = [
        |reactor| {
            on_ready(reactor, ready(), |mut turn, event| {
                turn.delete(event.key()).unwrap();
                panic!("armed");
            });
        },
        |reactor| _ = reactor.after(Duration::ZERO, || panic!("armed")).unwrap(),
        |reactor| reactor.defer(|_: Turn<'_, _>| panic!("armed")).unwrap(),
        |reactor| post(&reactor.remote(), |_| panic!("armed")),
    ];
    for arm in arms {
        let mut reactor = build().build().unwrap();
        let remote = reactor.remote();
        let notes = Notes::default();
        arm(&mut reactor);
        post(&remote, notes.saying("post"));
        assert!(caught(|| reactor.run_once(None)).is_err());
        assert!(notes.take().is_empty());
        let said = notes.clone();
        on_ready(&mut reactor, ready(), move |mut turn, event| {
            said.say("event");
            turn.delete(event.key()).unwrap();
        });
        assert_eq!(reactor.run_once(None).unwrap(), 1);
        assert_eq!(notes.take(), ["post", "event"]);
    }
}

fn rule_8_the_first_of_many_posts_that_panics_keeps_the_others_in_their_order(build: Build) {
    let mut reactor = build().calls_per_turn(3).build().unwrap();
    let remote = reactor.remote();
    let notes = Notes::default();
    for (name, panics) in [("1", true), ("2", false), ("3", true), ("4", true), ("5", false)] {
        let notes = notes.clone();
        post(&remote, move |_| {
            notes.say(name);
            assert!(!panics, "{name}");
        });
    }
    assert_eq!(turn_panics(&mut reactor), "1");
    assert_eq!(turn_panics(&mut reactor), "3");
    assert_eq!(turn_panics(&mut reactor), "4");
    // If nothing were kept, this would wait forever.
    assert_eq!(reactor.run_once(None).unwrap(), 0);
    assert_eq!(notes.take(), ["1", "2", "3", "4", "5"]);
    assert_eq!(turn(&mut reactor), 0);
}

fn rule_8_a_call_that_panics_is_its_callers_and_the_turn_goes_on(build: Build) {
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    let (count, seen) = counter();
    reactor.after_turn(move |_| count.set(count.get() + 1)).unwrap();
    let caller = thread::spawn(move || {
        let Err(CallError::Panicked(load)) = remote.call(|_| -> u8 { panic!("call") }) else {
            panic!("it panics")
        };
        remote.stop();
        crate::tools::message(&*load.into_inner())
    });
    reactor.run().unwrap();
    assert_eq!(caller.join().unwrap(), "call");
    assert_eq!(u64::try_from(seen.get()).unwrap(), reactor.stats().turns, "no turn was cut short");
}

fn rule_10_calls_of_one_turn_are_bounded_though_each_posts_two_more(build: Build) {
    fn breed(remote: Remote) -> impl FnOnce(Turn<'_>) + Send {
        move |_: Turn<'_>| {
            for _ in 0..2 {
                let _ = remote.try_post(breed(remote.clone()));
            }
        }
    }
    let mut reactor = build().calls_per_turn(7).remote_max(50).build().unwrap();
    let remote = reactor.remote();
    post(&remote, breed(remote.clone()));
    let mut before = 0;
    for round in 0..if cfg!(miri) { 30 } else { 100 } {
        reactor.run_once(None).unwrap();
        let calls = reactor.stats().calls;
        assert!(calls - before <= 7 && calls > before, "round {round}: {}", calls - before);
        before = calls;
    }
    let room = (0..).take_while(|_| remote.try_post(|_: Turn<'_>| {}).is_ok()).count();
    assert!(room <= 7, "they have bred until the queue was full");
}

fn rule_10_calls_left_over_come_before_the_events_and_both_get_their_turn(build: Build) {
    let mut reactor = build().calls_per_turn(1).events_per_turn(1).build().unwrap();
    let remote = reactor.remote();
    let notes = Notes::default();
    for _ in 0..2 {
        let said = notes.clone();
        on_ready(&mut reactor, ready(), move |mut turn, event| {
            said.say("event");
            turn.delete(event.key()).unwrap();
        });
    }
    for _ in 0..3 {
        post(&remote, notes.saying("call"));
    }
    for expected in [&["event", "call"][..], &["call", "event"], &["call"]] {
        reactor.run_once(None).unwrap();
        assert_eq!(notes.take(), expected);
    }
}

/// A post that deletes a subscriber whose event is in the batch: rules 2 and 9.
fn rule_9_what_a_call_that_was_left_over_deletes_does_not_fire_and_what_it_adds_waits(
    build: Build,
) {
    let mut reactor = build().calls_per_turn(1).build().unwrap();
    let remote = reactor.remote();
    let notes = Notes::default();
    let key: Arc<Mutex<Option<Key>>> = Arc::default();
    let (theirs, said) = (key.clone(), notes.clone());
    let wanted = edge(&reactor);
    post(&remote, notes.saying("first"));
    post(&remote, move |mut turn: Turn<'_>| {
        turn.delete(theirs.lock().unwrap().take().unwrap()).unwrap();
        let fresh = wanted.with_fd(ready());
        fresh.with_handler(move || said.say("fresh")).register_into(&mut turn).unwrap();
        said_timer(&mut turn);
    });
    turn(&mut reactor);
    let said = notes.clone();
    let victim = on_ready(&mut reactor, ready(), move |_, _| said.say("victim"));
    *key.lock().unwrap() = Some(victim);
    assert_eq!(turn(&mut reactor), 1, "its event was fetched");
    assert_eq!(notes.take(), ["first"]);
    assert_eq!(turn(&mut reactor), 1);
    assert_eq!(notes.take(), ["fresh"]);
    assert_eq!(reactor.stats().timers_fired, 1);
}

/// Starts a timer that is due.
fn said_timer(turn: &mut Turn<'_>) {
    turn.after(Duration::ZERO, || {}).unwrap();
}

/// Rule 13: a closure that is posted by a handler, a timer, a call or a destructor runs when that
/// has returned.
fn rule_13_a_post_from_the_loops_own_code_runs_after_it(build: Build) {
    struct PostsAtEnd(Remote, Notes);
    impl Drop for PostsAtEnd {
        fn drop(&mut self) {
            post(&self.0, self.1.saying("from the destructor"));
            self.1.say("destructor");
        }
    }
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    let notes = Notes::default();
    let (from, said) = (remote.clone(), notes.clone());
    let value = PostsAtEnd(remote.clone(), notes.clone());
    on_ready(&mut reactor, ready(), move |mut turn, event| {
        let _ = &value;
        post(&from, said.saying("from the handler"));
        said.say("handler");
        turn.delete(event.key()).unwrap();
    });
    let (from, said) = (remote.clone(), notes.clone());
    post(&remote, move |_| {
        post(&from, said.saying("from the call"));
        said.say("call");
    });
    while reactor.stats().calls < 4 {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(
        notes.take(),
        [
            "handler",
            "destructor",
            "call",
            "from the handler",
            "from the destructor",
            "from the call"
        ]
    );
}

/// Rule 13: no lock is held while a posted closure runs, or while it or a result is dropped.
fn rule_13_no_lock_is_held_while_what_was_queued_runs_or_is_dropped(build: Build) {
    /// Posts to and calls the remote when it is dropped.
    struct Uses(Remote, Arc<Mutex<Vec<bool>>>);
    impl Uses {
        fn all(&self) -> bool {
            let is_closed = match self.0.try_post(|_: Turn<'_>| {}) {
                Ok(()) => false,
                Err(refused) => refused.reason == PostReason::Closed,
            };
            let Err(CallError::WouldDeadlock(_) | CallError::Closed(_)) = self.0.call(|_| ())
            else {
                panic!("it is the loop's thread")
            };
            is_closed
        }
    }
    impl Drop for Uses {
        fn drop(&mut self) {
            let is_closed = self.all();
            self.1.lock().unwrap().push(is_closed);
        }
    }
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    let dropped = Arc::default();
    let uses = Uses(remote.clone(), Arc::clone(&dropped));
    post(&remote, move |_| {
        uses.all();
    });
    turn(&mut reactor);
    // A closure that never runs. It is dropped with the queue when the reactor is dropped.
    let uses = Uses(remote.clone(), Arc::clone(&dropped));
    post(&remote, move |_| drop(uses));
    drop(reactor);
    assert_eq!(*dropped.lock().unwrap(), [false, true]);
}

/// The reactor does not keep its remote's queue alive, and a queued closure does not keep the
/// reactor's queue alive.
fn closures_that_own_the_remote_they_are_queued_in_are_dropped_with_the_reactor(build: Build) {
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    let witness = Arc::new(());
    for _ in 0..5 {
        let (own, witness) = (remote.clone(), witness.clone());
        post(&remote, move |_| drop((own, witness)));
    }
    let kept = Rc::new(Cell::new(Some(remote)));
    let own = kept.clone();
    on_ready(&mut reactor, ready(), move |_, _| drop(own.take()));
    drop(reactor);
    assert_eq!(Arc::strong_count(&witness), 1);
    assert!(kept.take().unwrap().try_post(|_: Turn<'_>| {}).is_err());
}

scenarios! {
    rule_8_a_post_beside_a_panicking_handler_is_run_in_the_next_turn_which_does_not_wait,
    rule_8_a_post_beside_a_panic_of_any_kind_comes_first_in_the_next_turn,
    rule_8_the_first_of_many_posts_that_panics_keeps_the_others_in_their_order,
    rule_8_a_call_that_panics_is_its_callers_and_the_turn_goes_on,
    rule_10_calls_of_one_turn_are_bounded_though_each_posts_two_more,
    rule_10_calls_left_over_come_before_the_events_and_both_get_their_turn,
    rule_9_what_a_call_that_was_left_over_deletes_does_not_fire_and_what_it_adds_waits,
    rule_13_a_post_from_the_loops_own_code_runs_after_it,
    rule_13_no_lock_is_held_while_what_was_queued_runs_or_is_dropped,
    closures_that_own_the_remote_they_are_queued_in_are_dropped_with_the_reactor,
}
