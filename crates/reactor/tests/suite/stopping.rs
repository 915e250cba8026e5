//! The end of `run`: requested by a handler, by another thread, before it begins, and twice.

use std::{sync::mpsc, thread, time::Duration};

use windlass::{Reactor, Stop, Turn};

use crate::{
    Build,
    bed::{Log, NOW, Shared, drain, noting, readable, ready, ring, sendable},
};

/// Longer than any test. A loop that waits this long has missed its stop.
const LONG: Duration = Duration::from_secs(20);

fn a_handler_ends_the_run_after_its_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    for name in ["a", "b"] {
        let log = log.clone();
        let handler = move |fd: &mut Shared, mut turn: Turn<'_, _>| {
            drain(fd);
            log.note(name);
            turn.stop();
            let log = log.clone();
            turn.defer(move |_: Turn<'_, _>| log.note("closure")).unwrap();
        };
        readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    }
    reactor.run().unwrap();
    let mut notes = log.take();
    notes.sort_unstable();
    assert_eq!(notes, ["a", "b", "closure", "closure"], "the turn is finished first");
    assert!(!reactor.stop_requested(), "the run has consumed it");
}

fn a_timer_and_a_closure_end_the_run(build: Build) {
    let mut reactor = build().build().unwrap();
    reactor.after(NOW, |mut turn: Turn<'_, _>| turn.stop()).unwrap();
    reactor.run().unwrap();
    reactor.defer(|mut turn: Turn<'_, _>| turn.stop()).unwrap();
    reactor.run().unwrap();
    let hook = reactor.after_turn(|mut turn: Turn<'_, _>| turn.stop()).unwrap();
    reactor.defer(|_: Turn<'_, _>| {}).unwrap();
    reactor.run().unwrap();
    reactor.remove_hook(hook).unwrap();
}

// The wait after the hook must not miss the stop.
fn a_hook_before_the_wait_ends_the_run(build: Build) {
    let mut reactor = build().build().unwrap();
    reactor.before_wait(|mut turn: Turn<'_, _>| turn.stop()).unwrap();
    reactor.after(LONG, || {}).unwrap();
    reactor.run().unwrap();
    assert_eq!(reactor.stats().timers_fired, 0, "the wait ended by the stop, not by the timer");
}

// Once a remote exists, a stop writes to the descriptor only if the loop is asleep.
fn a_stop_beside_a_remote_is_not_lost(build: Build) {
    let rounds = if cfg!(miri) { 5 } else { 3_000 };
    let mut reactor = build().build().unwrap();
    let stop = reactor.stop_handle();
    stop.stop();
    let remote = reactor.remote();
    reactor.run().unwrap();
    for round in 0..rounds {
        let (stop, remote) = (stop.clone(), remote.clone());
        let stopper =
            thread::spawn(move || if round % 2 == 0 { stop.stop() } else { remote.stop() });
        reactor.run().unwrap();
        stopper.join().unwrap();
    }
    remote.stop();
    assert_eq!(reactor.run_once(LONG).unwrap(), 0, "it does not wait");
    assert!(reactor.stop_requested());
}

fn a_stop_before_the_run_is_not_lost(build: Build) {
    let mut reactor = build().build().unwrap();
    reactor.stop_handle().stop();
    assert!(reactor.stop_requested());
    reactor.run().unwrap();
    assert!(!reactor.stop_requested());
    assert_eq!(reactor.stats().turns, 0, "it returned at once");
    // Two stops before a run count as one.
    let stop = reactor.stop_handle();
    stop.stop();
    stop.stop();
    reactor.run().unwrap();
    reactor.defer(|mut turn: Turn<'_, _>| turn.stop()).unwrap();
    reactor.run().unwrap();
    assert_eq!(reactor.stats().turns, 1, "the second run was not ended by an old stop");
}

fn a_stop_in_a_turn_of_ones_own_is_seen_by_the_next_run(build: Build) {
    let mut reactor = build().build().unwrap();
    reactor.defer(|mut turn: Turn<'_, _>| turn.stop()).unwrap();
    reactor.run_once(None).unwrap();
    assert!(reactor.stop_requested());
    reactor.run().unwrap();
    assert!(!reactor.stop_requested());
}

// libuv: stop from another thread. vmm-reference #50.
fn another_thread_ends_a_run_that_waits(build: Build) {
    const ROUNDS: usize = if cfg!(miri) { 3 } else { 200 };
    let mut reactor = build().build().unwrap();
    let stop = reactor.stop_handle();
    let (begin, begun) = mpsc::channel::<()>();
    let stopper = thread::spawn(move || {
        for () in begun {
            stop.stop();
        }
    });
    for _ in 0..ROUNDS {
        begin.send(()).unwrap();
        reactor.run().unwrap();
    }
    drop(begin);
    stopper.join().unwrap();
    assert!(reactor.stats().turns >= reactor.stats().wakes);
}

fn a_stop_wakes_a_turn_of_ones_own(build: Build) {
    let mut reactor = build().build().unwrap();
    let stop = reactor.stop_handle();
    let stopper = thread::spawn(move || stop.stop());
    while !reactor.stop_requested() {
        assert_eq!(reactor.run_once(None).unwrap(), 0, "a wake is no event");
    }
    stopper.join().unwrap();
}

// mio: register while waiting, with a descriptor that another thread makes ready.
fn a_descriptor_made_ready_by_another_thread_ends_the_wait(build: Build) {
    let mut reactor = build().build().unwrap();
    let fd = sendable();
    let theirs = fd.clone();
    let log = Log::new();
    let noted = log.clone();
    let handler = move |fd: &mut std::sync::Arc<std::os::fd::OwnedFd>| noted.note(drain(fd));
    readable().with_fd(fd).with_handler(handler).register_into(&mut reactor).unwrap();
    let writer = thread::spawn(move || ring(&theirs));
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    writer.join().unwrap();
    assert_eq!(log.take(), [1]);
}

// mio 1205: an event of the waker must not revive a deregistered source.
fn a_deregistered_source_is_silent_beside_a_wake(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (gone, stays) = (ready(), ready());
    let key = noting(&mut reactor, &gone, &log, "gone");
    noting(&mut reactor, &stays, &log, "stays");
    reactor.stop_handle().stop();
    reactor.delete(key).unwrap();
    assert_eq!(
        reactor.run_once(None).unwrap(),
        1,
        "the wake does not count, and nothing else came"
    );
    assert_eq!(log.take(), ["stays"]);
    ring(&gone);
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
}

fn a_handle_outlives_its_reactor(build: Build) {
    let reactor = build().build().unwrap();
    let stop = reactor.stop_handle();
    let clone = stop.clone();
    drop(reactor);
    stop.stop();
    clone.stop();
    assert!(format!("{stop:?}").contains("true"));
}

fn a_handle_goes_to_other_threads(_: Build) {
    fn assert_sendable<T: Send + Sync + Clone>() {}
    assert_sendable::<Stop>();
}

fn a_run_that_a_panic_ended_goes_on(build: Build) {
    let mut reactor = build().build().unwrap();
    reactor.defer(|_: Turn<'_, Reactor>| panic!("closure")).unwrap();
    assert_eq!(crate::bed::panic_of(|| reactor.run()), "closure");
    reactor.defer(|mut turn: Turn<'_, _>| turn.stop()).unwrap();
    reactor.run().unwrap();
}

scenarios! {
    a_handler_ends_the_run_after_its_turn,
    a_timer_and_a_closure_end_the_run,
    a_hook_before_the_wait_ends_the_run,
    a_stop_beside_a_remote_is_not_lost,
    a_stop_before_the_run_is_not_lost,
    a_stop_in_a_turn_of_ones_own_is_seen_by_the_next_run,
    another_thread_ends_a_run_that_waits,
    a_stop_wakes_a_turn_of_ones_own,
    a_descriptor_made_ready_by_another_thread_ends_the_wait,
    a_deregistered_source_is_silent_beside_a_wake,
    a_handle_outlives_its_reactor,
    a_handle_goes_to_other_threads,
    a_run_that_a_panic_ended_goes_on,
}
