//! Panics of handlers (rule 8): they propagate out of `run_once`, and the other events are kept.
//! `rules/panics.rs` tests batches, timers and deferred closures.

use std::rc::Rc;

use windlass::{Event, Reactor, Turn};

use crate::{
    Build,
    bed::{Log, NOW, Noted, Shared, drain, idle, noting, panic_of, readable, ready, run_dry},
};

/// Registers ready eventfds that record their index. The first one that is called panics.
fn one_of_them_panics(reactor: &mut Reactor, count: usize, log: &Log<usize>) -> Vec<Shared> {
    let fds: Vec<Shared> = (0..count).map(|_| ready()).collect();
    for (place, fd) in fds.iter().enumerate() {
        let log = log.clone();
        let handler = move |fd: &mut Shared| {
            drain(fd);
            let first = log.len() == 0;
            log.note(place);
            assert!(!first, "the first");
        };
        readable().with_fd(fd.clone()).with_handler(handler).register_into(reactor).unwrap();
    }
    fds
}

fn a_handler_that_panicked_is_called_again(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let handler = {
        let log = log.clone();
        move || {
            log.note(());
            assert!(log.len() > 2, "not yet");
        }
    };
    readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    for _ in 0..2 {
        assert_eq!(panic_of(|| reactor.run_once(None)), "not yet");
    }
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.len(), 3);
}

fn each_handler_of_a_batch_may_panic(build: Build) {
    let mut reactor = build().build().unwrap();
    for _ in 0..3 {
        let handler = |fd: &mut Shared| {
            drain(fd);
            panic!("each");
        };
        readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(panic_of(|| reactor.run_once(None)), "each");
    }
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    assert_eq!((reactor.stats().events, reactor.stats().subscribers), (3, 3));
}

fn a_kept_event_of_one_that_was_taken_out_since_is_silent(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    one_of_them_panics(&mut reactor, 3, &log);
    panic_of(|| reactor.run_once(None));
    let subscribers = reactor.into_subscribers();
    assert_eq!((subscribers.len(), log.len()), (3, 1));
}

fn an_added_subscriber_does_not_get_kept_events(build: Build) {
    let mut reactor = build().build().unwrap();
    let (log, added) = (Log::new(), Log::new());
    let fds = one_of_them_panics(&mut reactor, 2, &log);
    panic_of(|| reactor.run_once(None));
    noting(&mut reactor, &ready(), &added, ());
    reactor.run_once(None).unwrap();
    assert_eq!(
        (log.len(), added.len()),
        (2, 0),
        "kept events go first, and nothing is fetched beside them"
    );
    reactor.run_once(None).unwrap();
    assert_eq!(added.len(), 1);
    drop(fds);
}

fn a_hook_that_panics_stays_and_loses_no_event(build: Build) {
    let mut reactor = build().build().unwrap();
    let (hooks, log) = (Log::new(), Log::new());
    let hook = |name: &'static str| {
        let hooks = hooks.clone();
        move |_: Turn<'_, _>| {
            hooks.note(name);
            assert!(hooks.len() != 1, "hook");
        }
    };
    reactor.before_wait(hook("before")).unwrap();
    reactor.after_turn(hook("after")).unwrap();
    noting(&mut reactor, &ready(), &log, ());
    assert_eq!(panic_of(|| reactor.run_once(None)), "hook");
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!((hooks.take(), log.len()), (vec!["before", "before", "after"], 1));
}

// A value that deletes itself and then panics is dropped later, because two panics at once would
// abort.
fn one_that_deletes_itself_and_panics_is_dropped_in_the_next_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let fd = ready();
    let noted = Noted(log.clone(), "dropped");
    let handler = move |event: Event, mut turn: Turn<'_, Reactor>| {
        turn.delete(event.key()).unwrap();
        let _ = &noted;
        panic!("handler");
    };
    let key =
        readable().with_fd(fd.clone()).with_handler(handler).register_into(&mut reactor).unwrap();
    assert_eq!(panic_of(|| reactor.run_once(None)), "handler");
    assert_eq!(log.len(), 0);
    assert_eq!(reactor.delete(key), Err(windlass::NotFound));
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    assert_eq!(log.take(), ["dropped"]);
    assert_eq!(Rc::strong_count(&fd), 1);
    let again = Log::new();
    noting(&mut reactor, &fd, &again, ());
    assert_eq!((run_dry(&mut reactor), again.len()), (1, 1), "the number is free again");
}

fn a_panic_in_one_reactor_is_nothing_to_another(build: Build) {
    let (mut ours, mut theirs) = (build().build().unwrap(), build().build().unwrap());
    let (log, theirs_log) = (Log::new(), Log::new());
    one_of_them_panics(&mut ours, 2, &log);
    noting(&mut theirs, &ready(), &theirs_log, ());
    panic_of(|| ours.run_once(None));
    assert_eq!(theirs.run_once(None).unwrap(), 1);
    assert_eq!(ours.run_once(None).unwrap(), 1);
}

fn the_rest_of_the_batch_is_safe_when_the_panicking_reactor_is_dropped(build: Build) {
    let log = Log::new();
    let kept = idle();
    {
        let mut reactor = build().build().unwrap();
        let places = Log::new();
        one_of_them_panics(&mut reactor, 3, &places);
        let noted = Noted(log.clone(), ());
        readable()
            .with_fd(kept.clone())
            .with_handler(move || noted.0.note(()))
            .register_into(&mut reactor)
            .unwrap();
        panic_of(|| reactor.run_once(None));
    }
    assert_eq!((log.len(), Rc::strong_count(&kept)), (1, 1), "dropped, and never called");
}

scenarios! {
    a_handler_that_panicked_is_called_again,
    each_handler_of_a_batch_may_panic,
    a_kept_event_of_one_that_was_taken_out_since_is_silent,
    an_added_subscriber_does_not_get_kept_events,
    a_hook_that_panics_stays_and_loses_no_event,
    one_that_deletes_itself_and_panics_is_dropped_in_the_next_turn,
    a_panic_in_one_reactor_is_nothing_to_another,
    the_rest_of_the_batch_is_safe_when_the_panicking_reactor_is_dropped,
}
