//! Deferred closures and hooks: when they run, in which order, and how many run in a turn.

use std::{cell::Cell, io, rc::Rc, time::Duration};

use windlass::{HOOKS_MAX, NotFound, Reactor, Turn};

use crate::{
    Build,
    bed::{HandClock, Log, NOW, Noted, Shared, drain, idle, noting, readable, ready, run_dry},
};

/// A closure that writes a name to the log.
fn note<T: Copy + 'static>(log: &Log<T>, name: T) -> impl FnMut(Turn<'_, Reactor>) + use<T> {
    let log = log.clone();
    move |_: Turn<'_, Reactor>| log.note(name)
}

fn what_is_deferred_outside_a_turn_runs_first_in_the_next_which_does_not_wait(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    for name in ["first", "second"] {
        reactor.defer(note(&log, name)).unwrap();
    }
    assert_eq!(log.len(), 0);
    assert_eq!(reactor.run_once(None).unwrap(), 0, "closures are no events");
    assert_eq!(log.take(), ["first", "second"]);
    noting(&mut reactor, &ready(), &log, "event");
    reactor.defer(note(&log, "closure")).unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), ["closure", "event"]);
}

fn what_a_handler_defers_runs_at_the_end_of_its_turn(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock).build().unwrap();
    let log = Log::new();
    for _ in 0..2 {
        let log = log.clone();
        let handler = move |fd: &mut Shared, mut turn: Turn<'_, _>| {
            drain(fd);
            log.note("handler");
            turn.defer(note(&log, "closure")).unwrap();
        };
        readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    }
    let timer = log.clone();
    reactor.after(NOW, move || timer.note("timer")).unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 2);
    assert_eq!(log.take(), ["handler", "handler", "timer", "closure", "closure"]);
}

fn what_a_timer_defers_runs_at_the_end_of_its_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = log.clone();
    reactor.after(NOW, move |mut turn: Turn<'_, _>| turn.defer(note(&noted, ())).unwrap()).unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(log.len(), 1);
}

fn what_a_deferred_closure_defers_runs_in_the_next_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let handler = move |fd: &mut Shared, mut turn: Turn<'_, _>| {
        drain(fd);
        let noted = noted.clone();
        turn.defer(move |mut turn: Turn<'_, _>| {
            noted.note("outer");
            turn.defer(note(&noted, "inner")).unwrap();
        })
        .unwrap();
    };
    readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), ["outer"]);
    assert_eq!(reactor.run_once(None).unwrap(), 0, "without a wait before it");
    assert_eq!(log.take(), ["inner"]);
}

fn what_a_closure_defers_that_came_from_outside_runs_in_the_next_turn_too(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = log.clone();
    reactor
        .defer(move |mut turn: Turn<'_, _>| {
            noted.note("outer");
            turn.defer(note(&noted, "inner")).unwrap();
        })
        .unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["outer"]);
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["inner"]);
}

// Rule 10. libuv: idle handlers must not starve events.
fn a_closure_that_defers_itself_for_ever_starves_nothing(build: Build) {
    fn again(count: Rc<Cell<u32>>, mut turn: Turn<'_, Reactor>) {
        count.set(count.get() + 1);
        turn.defer(move |turn: Turn<'_, Reactor>| again(count, turn)).unwrap();
    }
    let mut reactor = build().build().unwrap();
    let (count, log) = (Rc::new(Cell::new(0)), Log::new());
    let counted = count.clone();
    reactor.defer(move |turn: Turn<'_, Reactor>| again(counted, turn)).unwrap();
    noting(&mut reactor, &ready(), &log, "event");
    let timer = log.clone();
    reactor.after(NOW, move || timer.note("timer")).unwrap();
    for _ in 0..5 {
        reactor.run_once(None).unwrap();
    }
    let mut notes = log.take();
    notes.sort_unstable();
    assert_eq!(notes, ["event", "timer"]);
    assert_eq!(count.get(), 5, "once a turn");
}

fn one_turn_runs_so_many_and_the_rest_go_first_in_the_next(build: Build) {
    let mut reactor = build().deferred_per_turn(2).build().unwrap();
    let log = Log::new();
    for name in 0..5 {
        reactor.defer(note(&log, name)).unwrap();
    }
    for expected in [&[0, 1][..], &[2, 3], &[4]] {
        assert_eq!(reactor.run_once(None).unwrap(), 0);
        assert_eq!(log.take(), expected);
    }
    assert_eq!((reactor.run_once(NOW).unwrap(), log.len()), (0, 0));
}

fn the_limit_is_kept_and_the_closure_comes_back(build: Build) {
    let mut reactor = build().deferred_max(2).build().unwrap();
    let log = Log::new();
    reactor.defer(note(&log, 1)).unwrap();
    reactor.defer(note(&log, 2)).unwrap();
    let error = reactor.try_defer(note(&log, 3)).unwrap_err();
    reactor.run_once(None).unwrap();
    reactor.defer(error.closure).expect("the very closure, when there is room");
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), [1, 2, 3]);
    let mut full = build().deferred_max(0).build().unwrap();
    let error: io::Error = full.defer(|_: Turn<'_, _>| {}).unwrap_err().into();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
}

fn a_closure_that_never_ran_is_dropped_with_the_reactor(build: Build) {
    let log = Log::new();
    let mut reactor = build().build().unwrap();
    let noted = Noted(log.clone(), "dropped");
    reactor.defer(move |_: Turn<'_, _>| noted.0.note("ran")).unwrap();
    drop(reactor);
    assert_eq!(log.take(), ["dropped"]);
}

fn a_closure_may_do_what_a_handler_may(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let victim = noting(&mut reactor, &ready(), &log, "victim");
    let noted = log.clone();
    reactor
        .defer(move |mut turn: Turn<'_, _>| {
            turn.delete(victim).unwrap();
            noting(&mut turn, &ready(), &noted, "added");
            turn.after(NOW, || {}).unwrap();
        })
        .unwrap();
    reactor.run_once(None).unwrap();
    let stats = reactor.stats();
    assert_eq!(
        (stats.subscribers, stats.timers, log.len()),
        (1, 1, 0),
        "what a turn adds fires in the next"
    );
    run_dry(&mut reactor);
    assert_eq!(log.take(), ["added"]);
}

// calloop #65: hooks before the wait.
fn hooks_run_around_every_turn_in_the_order_in_which_they_were_added(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    reactor.after_turn(note(&log, "after 1")).unwrap();
    reactor.before_wait(note(&log, "before 1")).unwrap();
    reactor.after_turn(note(&log, "after 2")).unwrap();
    reactor.before_wait(note(&log, "before 2")).unwrap();
    noting(&mut reactor, &ready(), &log, "event");
    let noted = log.clone();
    reactor
        .after(NOW, move |mut turn: Turn<'_, _>| turn.defer(note(&noted, "closure")).unwrap())
        .unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), ["before 1", "before 2", "event", "closure", "after 1", "after 2"]);
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    assert_eq!(
        log.take(),
        ["before 1", "before 2", "after 1", "after 2"],
        "in a turn without events as well"
    );
}

fn a_removed_hook_is_dropped_at_once_and_silent(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = Noted(log.clone(), "dropped");
    let key = reactor.before_wait(move |_: Turn<'_, _>| noted.0.note("ran")).unwrap();
    let other = reactor.after_turn(note(&log, "other")).unwrap();
    reactor.run_once(NOW).unwrap();
    reactor.remove_hook(key).unwrap();
    assert_eq!(log.take(), ["ran", "other", "dropped"]);
    assert_eq!(reactor.remove_hook(key), Err(NotFound));
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), ["other"]);
    reactor.remove_hook(other).unwrap();
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.len(), 0);
}

fn there_is_room_for_so_many_hooks(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let keys: Vec<_> =
        (0..HOOKS_MAX).map(|_| reactor.after_turn(note(&log, ())).unwrap()).collect();
    let error: io::Error = reactor.before_wait(note(&log, ())).unwrap_err().into();
    assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.len(), HOOKS_MAX);
    reactor.remove_hook(keys[7]).unwrap();
    reactor.before_wait(note(&log, ())).unwrap();
}

// libuv: a timer that a prepare hook starts bounds the wait.
fn a_timer_from_a_hook_ends_the_wait_that_follows(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let mut started = false;
    reactor
        .before_wait(move |mut turn: Turn<'_, _>| {
            if !started {
                started = true;
                let noted = noted.clone();
                turn.after(Duration::from_millis(1), move || noted.note(())).unwrap();
            }
        })
        .unwrap();
    for _ in 0..2 {
        // A wait may end early, but it must end.
        if log.len() == 0 {
            assert_eq!(reactor.run_once(None).unwrap(), 0);
        }
    }
    assert_eq!(log.len(), 1);
}

fn what_a_hook_before_the_wait_registers_may_fire_in_the_same_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (noted, fd) = (log.clone(), ready());
    reactor
        .before_wait(move |mut turn: Turn<'_, _>| {
            if noted.len() == 0 {
                noting(&mut turn, &fd, &noted, ());
            }
        })
        .unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.len(), 1);
}

fn a_hook_before_the_wait_may_delete_the_one_that_is_ready(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let key = noting(&mut reactor, &ready(), &log, ());
    let mut victim = Some(key);
    reactor
        .before_wait(move |mut turn: Turn<'_, _>| {
            if let Some(victim) = victim.take() {
                turn.delete(victim).unwrap();
            }
        })
        .unwrap();
    assert_eq!((reactor.run_once(NOW).unwrap(), log.len()), (0, 0));
}

fn a_hook_that_defers_keeps_the_loop_awake(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = log.clone();
    reactor
        .before_wait(move |mut turn: Turn<'_, _>| turn.defer(note(&noted, "before")).unwrap())
        .unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(
        log.take(),
        ["before"],
        "no wait although nothing is registered, and it ran in the turn"
    );
    let mut reactor = build().build().unwrap();
    let noted = log.clone();
    let mut once = Some(());
    reactor
        .after_turn(move |mut turn: Turn<'_, _>| {
            if once.take().is_some() {
                turn.defer(note(&noted, "after")).unwrap();
            }
        })
        .unwrap();
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.len(), 0);
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["after"]);
}

fn merged_changes_of_a_hook_after_the_turn_are_in_force_in_the_next(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let fd = idle();
    let key = noting(&mut reactor, &fd, &log, ());
    let mut once = Some(());
    reactor
        .after_turn(move |mut turn: Turn<'_, _>| {
            if once.take().is_some() {
                turn.modify(key, windlass::interest().write()).unwrap();
            }
        })
        .unwrap();
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    assert_eq!(reactor.run_once(NOW).unwrap(), 1, "an eventfd takes writes");
    assert_eq!(log.len(), 1);
}

scenarios! {
    what_is_deferred_outside_a_turn_runs_first_in_the_next_which_does_not_wait,
    what_a_handler_defers_runs_at_the_end_of_its_turn,
    what_a_timer_defers_runs_at_the_end_of_its_turn,
    what_a_deferred_closure_defers_runs_in_the_next_turn,
    what_a_closure_defers_that_came_from_outside_runs_in_the_next_turn_too,
    a_closure_that_defers_itself_for_ever_starves_nothing,
    one_turn_runs_so_many_and_the_rest_go_first_in_the_next,
    the_limit_is_kept_and_the_closure_comes_back,
    a_closure_that_never_ran_is_dropped_with_the_reactor,
    a_closure_may_do_what_a_handler_may,
    hooks_run_around_every_turn_in_the_order_in_which_they_were_added,
    a_removed_hook_is_dropped_at_once_and_silent,
    there_is_room_for_so_many_hooks,
    a_timer_from_a_hook_ends_the_wait_that_follows,
    what_a_hook_before_the_wait_registers_may_fire_in_the_same_turn,
    a_hook_before_the_wait_may_delete_the_one_that_is_ready,
    a_hook_that_defers_keeps_the_loop_awake,
    merged_changes_of_a_hook_after_the_turn_are_in_force_in_the_next,
}
