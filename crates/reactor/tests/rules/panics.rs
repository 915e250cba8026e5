//! Rules 3 and 8: a panic costs one event, and the reactor's state is consistent before user code
//! runs.

use std::{
    cell::Cell,
    os::fd::OwnedFd,
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{Event, Group, Reactor, Turn, interest};

use crate::{
    Build,
    tools::{
        Log, Pair, Witness, caught, counter, drain, message, on_ready, ready, turn, turn_panics,
    },
};

fn rule_8_a_handlers_panic_keeps_the_rest_of_the_batch(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, seen) = counter();
    for _ in 0..4 {
        let count = count.clone();
        let mut fd = Some(ready());
        let dup = rustix::io::dup(fd.as_ref().unwrap()).unwrap();
        on_ready(&mut reactor, fd.take().unwrap(), move |_, _| {
            drain(&dup);
            count.set(count.get() + 1);
            assert_ne!(count.get(), 2, "the second one panics");
        });
    }
    let fresh = Pair::new();
    let (late, late_seen) = counter();
    let key = {
        let mut pair = Pair { ours: rustix::io::dup(&fresh.ours).unwrap(), theirs: None };
        pair.theirs = Some(rustix::io::dup(&fresh.ours).unwrap());
        on_ready(&mut reactor, pair.take(), move |_, _| late.set(late.get() + 1))
    };
    turn_panics(&mut reactor);
    assert_eq!(seen.get(), 2);
    // An event that is new now does not come before the kept ones, and the turn does not wait.
    fresh.fire();
    assert_eq!(reactor.run_once(None).unwrap(), 2, "for ever, were there nothing kept");
    assert_eq!((seen.get(), late_seen.get()), (4, 0));
    assert_eq!((turn(&mut reactor), late_seen.get()), (1, 1));
    assert_eq!(reactor.stats().events, 5);
    reactor.delete(key).unwrap();
}

fn rule_8_due_timers_and_deferred_closures_survive_a_handlers_panic(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let said = log.clone();
    on_ready(&mut reactor, ready(), move |mut turn, event| {
        let said = said.clone();
        turn.defer(move |_: Turn<'_, Reactor>| said.say("deferred")).unwrap();
        turn.delete(event.key()).unwrap();
        panic!("after deferring");
    });
    let said = log.clone();
    reactor.after(Duration::ZERO, move || said.say("timer")).unwrap();
    assert_eq!(turn_panics(&mut reactor), "after deferring");
    assert!(log.take().is_empty());
    reactor.run_once(None).unwrap();
    let mut said = log.take();
    said.sort();
    assert_eq!(said, ["deferred", "timer"]);
}

fn rule_8_who_deletes_itself_and_panics_is_destroyed_in_the_next_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    // Its destructor panics as well. If it ran during the handler's panic, the process would abort.
    let witness = Witness::bomb(&log, "value");
    on_ready(&mut reactor, ready(), move |mut turn, event| {
        witness.here();
        turn.delete(event.key()).unwrap();
        panic!("handler");
    });
    assert_eq!(turn_panics(&mut reactor), "handler");
    assert!(log.take().is_empty(), "not while the panic was under way");
    assert_eq!(turn_panics(&mut reactor), "the destructor of value panics");
    assert_eq!(log.take(), ["drop value"]);
    assert_eq!((turn(&mut reactor), reactor.stats().subscribers), (0, 0));
}

fn rule_8_who_deletes_itself_and_panics_is_destroyed_at_drop_if_no_turn_comes(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let witness = Witness::new(&log, "value");
    on_ready(&mut reactor, ready(), move |mut turn, event| {
        witness.here();
        turn.delete(event.key()).unwrap();
        panic!("handler");
    });
    turn_panics(&mut reactor);
    drop(reactor);
    assert_eq!(log.take(), ["drop value"]);
}

fn rule_3_a_destructor_that_panics_in_a_cross_delete_leaves_no_trace(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let keys = Rc::new(Cell::new([None; 2]));
    let both = [0, 1].map(|me| {
        let (said, keys, witness) = (log.clone(), keys.clone(), Witness::bomb(&log, "victim"));
        Some(on_ready(&mut reactor, ready(), move |mut turn, event| {
            witness.here();
            let other = keys.get()[1 - me].unwrap();
            let outcome = caught(|| turn.delete(other));
            assert!(outcome.is_err(), "the panic comes out of delete");
            assert!(turn.delete(other).is_err(), "and the victim is gone");
            turn.modify(event.key(), interest()).unwrap();
            said.say("goes on");
        }))
    });
    keys.set(both);
    assert_eq!(turn(&mut reactor), 2);
    assert_eq!(log.take(), ["drop victim", "goes on"]);
    let last = caught(|| drop(reactor));
    assert!(last.is_err(), "the survivor's destructor panics too");
    assert_eq!(log.take(), ["drop victim"]);
}

fn rule_3_a_destructor_that_panics_in_a_self_delete_keeps_the_rest_of_the_batch(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    for _ in 0..3 {
        let (said, witness) = (log.clone(), Witness::bomb(&log, "value"));
        on_ready(&mut reactor, ready(), move |mut turn, event| {
            witness.here();
            said.say("run");
            turn.delete(event.key()).unwrap();
        });
    }
    for left in [2, 1, 0] {
        assert_eq!(turn_panics(&mut reactor), "the destructor of value panics");
        assert_eq!(log.take(), ["run", "drop value"]);
        assert_eq!(reactor.stats().subscribers, left);
    }
    assert_eq!(turn(&mut reactor), 0);
}

fn rule_8_dropping_the_reactor_runs_every_destructor_and_resumes_the_first_panic(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    for name in ["a", "b", "c"] {
        let witness = Witness::bomb(&log, name);
        on_ready(&mut reactor, ready(), move |_, _| witness.here());
        let witness = Witness::bomb(&log, name);
        reactor.after(Duration::from_secs(1), move || witness.here()).unwrap();
        let witness = Witness::bomb(&log, name);
        reactor.defer(move |_: Turn<'_, Reactor>| drop(witness)).unwrap();
        let witness = Witness::bomb(&log, name);
        reactor.before_wait(move |_| witness.here()).unwrap();
        let witness = Witness::bomb(&log, name);
        Group::new(witness)
            .fd(interest(), ready(), |_: &mut Witness| {})
            .register_into(&mut reactor)
            .unwrap();
    }
    assert!(caught(|| drop(reactor)).is_err());
    assert_eq!(log.take().len(), 15);
}

fn rule_8_a_reactor_dropped_by_a_panic_does_not_abort(build: Build) {
    let log = Log::default();
    let said = log.clone();
    let outcome = caught(move || {
        let mut reactor = build().build().unwrap();
        let witness = Witness::bomb(&said, "value");
        on_ready(&mut reactor, ready(), move |_, _| witness.here());
        panic!("outside");
    });
    assert_eq!(crate::tools::message(&*outcome.unwrap_err()), "outside");
    assert_eq!(log.take(), ["drop value"]);
}

/// A descriptor whose destructor may panic.
struct Fd(OwnedFd, #[expect(dead_code, reason = "dropped")] Witness);

impl std::os::fd::AsFd for Fd {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The same before registration, and where the reactor has rejected it.
fn two_parts_of_one_registration_that_panic_when_they_are_dropped_do_not_abort(build: Build) {
    let log = Log::default();
    let bombs = || {
        let closure = Witness::bomb(&log, "closure");
        let fd = Fd(ready(), Witness::bomb(&log, "descriptor"));
        interest().read().with_fd(fd).with_handler(move || closure.here())
    };
    let dropped = || {
        let mut said = log.take();
        said.sort();
        said
    };
    let registration = bombs();
    assert!(caught(|| drop(registration)).is_err());
    assert_eq!(dropped(), ["drop closure", "drop descriptor"]);
    let mut reactor = build().subscribers_max(1).build().unwrap();
    on_ready(&mut reactor, ready(), |_, _| {});
    let refused = bombs().try_register_into(&mut reactor).unwrap_err();
    assert!(caught(|| drop(refused)).is_err());
    assert_eq!(dropped(), ["drop closure", "drop descriptor"]);
    assert!(caught(|| bombs().register_into(&mut reactor)).is_err());
    assert_eq!(dropped(), ["drop closure", "drop descriptor"]);
    let (_, fd, handler) = bombs().into_parts();
    for part in [caught(|| drop(fd)), caught(|| drop(handler))] {
        assert!(part.is_err(), "taken apart, each is its owner's");
    }
    assert_eq!(dropped(), ["drop closure", "drop descriptor"]);
}

/// The clock panics when it is read and when it is dropped.
fn a_clock_that_panics_twice_while_a_reactor_is_built_does_not_abort(build: Build) {
    let log = Log::default();
    let clock = |reading: fn() -> Instant| {
        let witness = Witness::bomb(&log, "clock");
        move || {
            witness.here();
            reading()
        }
    };
    let builder = build().clock(clock(|| panic!("the clock panics")));
    let load = caught(|| builder.build()).expect_err("the clock is read");
    assert_eq!(
        (message(&*load), log.take()),
        ("the clock panics".to_owned(), vec!["drop clock".to_owned()])
    );
    // One clock replaces another, and both panic when dropped.
    let builder = build().clock(clock(Instant::now));
    assert!(caught(|| builder.clock(clock(Instant::now))).is_err());
    assert_eq!(log.take(), ["drop clock", "drop clock"]);
    // This builder has an invalid limit, so the build fails.
    let builder = build().clock(clock(Instant::now)).events_per_turn(0);
    assert!(caught(|| builder.build()).is_err());
    assert_eq!(log.take(), ["drop clock"]);
}

/// A descriptor and a closure whose destructors both panic. If only the compiler's drop glue
/// dropped them, the process would abort.
fn two_parts_of_one_subscriber_that_panic_when_they_are_dropped_do_not_abort(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let closure = Witness::bomb(&log, "closure");
    let fd = Fd(ready(), Witness::bomb(&log, "descriptor"));
    let key = interest()
        .read()
        .with_fd(fd)
        .with_handler(move || closure.here())
        .register_into(&mut reactor)
        .unwrap();
    assert!(caught(|| reactor.delete(key)).is_err());
    assert_eq!(log.take(), ["drop closure", "drop descriptor"]);
    let (closure, state) = (Witness::bomb(&log, "closure"), Witness::bomb(&log, "state"));
    let fd = Fd(ready(), Witness::bomb(&log, "descriptor"));
    let group = Group::new(state)
        .fd(interest().read(), fd, move |_: &mut Witness| closure.here())
        .register_into(&mut reactor)
        .unwrap();
    assert!(caught(|| reactor.delete_group(group.group)).is_err());
    assert_eq!(log.take(), ["drop closure", "drop descriptor", "drop state"]);
    assert_eq!(turn(&mut reactor), 0);
}

fn rule_8_a_timers_panic_consumes_that_firing_alone(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let (said, witness) = (log.clone(), Witness::bomb(&log, "once"));
    let once = reactor
        .after(Duration::ZERO, move || {
            witness.here();
            said.say("once");
            panic!("timer");
        })
        .unwrap();
    let said = log.clone();
    reactor.after(Duration::ZERO, move || said.say("behind it")).unwrap();
    assert_eq!(turn_panics(&mut reactor), "timer");
    assert_eq!(log.take(), ["once"]);
    assert!(reactor.reset(once, Duration::ZERO).is_err(), "it has fired, so its key is stale");
    assert_eq!(turn_panics(&mut reactor), "the destructor of once panics");
    assert_eq!(log.take(), ["drop once"]);
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["behind it"]);
}

/// A timer that is due when something panics fires before the new events of the next turn.
fn due_timers_come_first(build: Build, panics: impl FnOnce(&mut Reactor, &Log)) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let mut pair = Pair::new();
    let said = log.clone();
    on_ready(&mut reactor, pair.take(), move |_, _| said.say("new event"));
    panics(&mut reactor, &log);
    let said = log.clone();
    reactor.after(Duration::ZERO, move || said.say("due timer")).unwrap();
    assert_eq!(turn_panics(&mut reactor), "first");
    pair.fire();
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["due timer", "new event"]);
}

fn rule_8_due_timers_come_first_after_a_timers_own_panic(build: Build) {
    due_timers_come_first(build, |reactor, _| {
        _ = reactor.after(Duration::ZERO, || panic!("first")).unwrap()
    });
}

fn rule_8_due_timers_come_first_after_the_panic_of_a_timers_destructor(build: Build) {
    due_timers_come_first(build, |reactor, _| {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("first");
            }
        }
        let bomb = Bomb;
        reactor.after(Duration::ZERO, move || _ = &bomb).unwrap();
    });
}

fn rule_8_due_timers_come_first_after_the_last_events_panic(build: Build) {
    due_timers_come_first(build, |reactor, _| {
        on_ready(reactor, ready(), |mut turn, event| {
            turn.delete(event.key()).unwrap();
            panic!("first");
        });
    });
}

fn rule_8_due_timers_come_first_after_the_panic_of_a_closure_that_was_left_over(build: Build) {
    due_timers_come_first(build, |reactor, _| {
        reactor.defer(|_: Turn<'_, Reactor>| panic!("first")).unwrap()
    });
}

/// Regression: a timer that is always due and always panics came first in each turn.
fn rule_8_a_timer_that_panics_in_each_turn_keeps_no_event_from_coming(build: Build) {
    let exact = Duration::from_nanos(1);
    let mut reactor = build().timer_resolution(exact).build().unwrap();
    reactor.every(exact, || panic!("timer")).unwrap();
    let (count, seen) = counter();
    on_ready(&mut reactor, ready(), move |_, _| count.set(count.get() + 1));
    for _ in 0..6 {
        assert_eq!(turn_panics(&mut reactor), "timer");
    }
    assert!(seen.get() >= 3, "{} times in six turns", seen.get());
}

fn rule_8_timers_and_kept_events_come_once_each_whoever_panics(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    for name in ["event 1", "event 2"] {
        let said = log.clone();
        on_ready(&mut reactor, ready(), move |mut turn, event| {
            said.say(name);
            turn.delete(event.key()).unwrap();
            panic!("event");
        });
    }
    for name in ["timer 1", "timer 2"] {
        let said = log.clone();
        let timer = move || {
            said.say(name);
            panic!("timer");
        };
        reactor.after(Duration::ZERO, timer).unwrap();
    }
    for _ in 0..4 {
        turn_panics(&mut reactor);
    }
    assert_eq!(turn(&mut reactor), 0);
    let mut said = log.take();
    said.sort();
    assert_eq!(said, ["event 1", "event 2", "timer 1", "timer 2"]);
}

fn rule_3_a_repeated_timer_that_panics_keeps_its_beat(build: Build) {
    let mut reactor = build().timer_resolution(Duration::from_nanos(1)).build().unwrap();
    let (count, seen) = counter();
    let key = reactor
        .every(Duration::from_nanos(1), move || {
            count.set(count.get() + 1);
            assert_ne!(count.get(), 1, "the first beat panics");
        })
        .unwrap();
    assert!(caught(|| reactor.run_once(None)).is_err());
    reactor.run_once(None).unwrap();
    assert_eq!(seen.get(), 2);
    reactor.cancel(key).unwrap();
}

fn a_panic_in_a_deferred_closure_or_a_hook_keeps_the_others(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    for name in ["one", "two"] {
        let said = log.clone();
        reactor
            .defer(move |_: Turn<'_, Reactor>| {
                said.say(name);
                assert_ne!(name, "one");
            })
            .unwrap();
    }
    turn_panics(&mut reactor);
    turn(&mut reactor);
    assert_eq!(log.take(), ["one", "two"]);
    let said = log.clone();
    let mut first = true;
    reactor
        .after_turn(move |_| {
            said.say("hook");
            assert!(!std::mem::take(&mut first));
        })
        .unwrap();
    turn_panics(&mut reactor);
    turn(&mut reactor);
    assert_eq!(log.take(), ["hook", "hook"]);
}

fn a_kept_event_whose_subscriber_is_deleted_between_turns_is_silent(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let keys: Vec<_> = (0..3)
        .map(|_| {
            let (said, witness) = (log.clone(), Witness::new(&log, "value"));
            on_ready(&mut reactor, ready(), move |_, event: Event| {
                witness.here();
                said.say(format!("{:?}", event.key()));
                panic!("every one");
            })
        })
        .collect();
    turn_panics(&mut reactor);
    let first = log.take();
    for key in &keys {
        if first != [format!("{key:?}")] {
            reactor.delete(*key).unwrap();
            assert_eq!(log.take(), ["drop value"]);
        }
    }
    assert_eq!(reactor.run_once(None).unwrap(), 2, "the kept events are used up");
    assert!(log.take().is_empty());
}

scenarios! {
    rule_8_a_handlers_panic_keeps_the_rest_of_the_batch,
    rule_8_due_timers_and_deferred_closures_survive_a_handlers_panic,
    rule_8_who_deletes_itself_and_panics_is_destroyed_in_the_next_turn,
    rule_8_who_deletes_itself_and_panics_is_destroyed_at_drop_if_no_turn_comes,
    rule_3_a_destructor_that_panics_in_a_cross_delete_leaves_no_trace,
    rule_3_a_destructor_that_panics_in_a_self_delete_keeps_the_rest_of_the_batch,
    rule_8_dropping_the_reactor_runs_every_destructor_and_resumes_the_first_panic,
    rule_8_a_reactor_dropped_by_a_panic_does_not_abort,
    two_parts_of_one_registration_that_panic_when_they_are_dropped_do_not_abort,
    a_clock_that_panics_twice_while_a_reactor_is_built_does_not_abort,
    two_parts_of_one_subscriber_that_panic_when_they_are_dropped_do_not_abort,
    rule_8_a_timers_panic_consumes_that_firing_alone,
    rule_8_due_timers_come_first_after_a_timers_own_panic,
    rule_8_due_timers_come_first_after_the_panic_of_a_timers_destructor,
    rule_8_due_timers_come_first_after_the_last_events_panic,
    rule_8_due_timers_come_first_after_the_panic_of_a_closure_that_was_left_over,
    rule_8_a_timer_that_panics_in_each_turn_keeps_no_event_from_coming,
    rule_8_timers_and_kept_events_come_once_each_whoever_panics,
    rule_3_a_repeated_timer_that_panics_keeps_its_beat,
    a_panic_in_a_deferred_closure_or_a_hook_keeps_the_others,
    a_kept_event_whose_subscriber_is_deleted_between_turns_is_silent,
}
