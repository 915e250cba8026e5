//! Timers: limits, bounds of one turn, and the values that a rejected timer returns.

use std::{cell::Cell, io, rc::Rc, time::Duration};

use windlass::{Reactor, Schedule, Tick, TimerReason, Turn};

use crate::{
    Build,
    bed::{HandClock, Log, NOW, drain, noting, readable, ready, run_dry},
};

const MS: Duration = Duration::from_millis(1);

fn a_period_of_nothing_is_refused_and_the_handler_comes_back(build: Build) {
    let mut reactor = build().build().unwrap();
    let token = Rc::new(());
    let kept = token.clone();
    let handler = move || drop(kept.clone());
    let error = reactor.try_start(Schedule::Every(NOW), handler).unwrap_err();
    assert_eq!(error.reason, TimerReason::ZeroPeriod);
    assert_eq!(Rc::strong_count(&token), 2, "the handler is in the error");
    let handler = error.handler;
    handler();
    reactor.every(MS, handler).expect("the very handler, with a period");
    assert_eq!(io::Error::from(TimerReason::ZeroPeriod).kind(), io::ErrorKind::InvalidInput);
}

fn the_limit_is_kept_and_the_handler_comes_back(build: Build) {
    let mut reactor = build().timers_max(2).build().unwrap();
    let keys = [reactor.after(MS, || {}).unwrap(), reactor.every(MS, || {}).unwrap()];
    let token = Rc::new(());
    let kept = token.clone();
    let handler = move || drop(kept.clone());
    let error = reactor.try_start(Schedule::After(MS), handler).unwrap_err();
    assert_eq!((error.reason, Rc::strong_count(&token)), (TimerReason::LimitReached, 2));
    reactor.cancel(keys[0]).unwrap();
    reactor.after(MS, error.handler).expect("a cancelled one makes room");
    let error: io::Error = reactor.after(MS, || {}).unwrap_err().into();
    assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
}

fn a_reactor_may_be_built_without_room_for_timers(build: Build) {
    let mut reactor = build().timers_max(0).build().unwrap();
    assert_eq!(reactor.after(MS, || {}).unwrap_err(), TimerReason::LimitReached);
}

fn a_fired_timer_makes_room_in_its_turn_only_when_it_has_returned(build: Build) {
    let mut reactor = build().timers_max(1).build().unwrap();
    let log = Log::new();
    let handler = {
        let log = log.clone();
        move |mut turn: Turn<'_, Reactor>| {
            log.note(turn.after(NOW, || {}));
        }
    };
    reactor.after(NOW, handler).unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), [Err(TimerReason::LimitReached)], "its key lives until it has returned");
    reactor.after(NOW, || {}).unwrap();
}

// Rule 10.
fn one_turn_fires_so_many_and_the_rest_go_first_in_the_next(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).timers_per_turn(3).build().unwrap();
    let log = Log::new();
    for place in 0..8 {
        let log = log.clone();
        reactor.after(MS, move || log.note(place)).unwrap();
    }
    clock.advance(MS);
    for expected in [&[0, 1, 2][..], &[3, 4, 5], &[6, 7], &[]] {
        let timeout = if expected.is_empty() { Some(NOW) } else { None };
        assert_eq!(reactor.run_once(timeout).unwrap(), 0);
        assert_eq!(log.take(), expected);
    }
}

fn timers_left_over_go_before_the_events_of_the_next_turn(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).timers_per_turn(1).build().unwrap();
    let log = Log::new();
    for name in ["first", "second"] {
        let log = log.clone();
        reactor.after(MS, move || log.note(name)).unwrap();
    }
    clock.advance(MS);
    reactor.run_once(None).unwrap();
    noting(&mut reactor, &ready(), &log, "event");
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), ["first", "second", "event"]);
}

// libuv: idle handlers must not starve. A timer that is always due starves nothing.
fn an_always_due_timer_starves_neither_events_nor_other_timers_nor_closures(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).timers_per_turn(2).build().unwrap();
    let log = Log::new();
    for _ in 0..2 {
        let clock = clock.clone();
        let handler = move |tick: Tick, mut turn: Turn<'_, _>| {
            clock.advance(MS);
            turn.reset(tick.key, NOW).unwrap();
        };
        reactor.after(NOW, handler).unwrap();
    }
    let others = log.clone();
    reactor.after(5 * MS, move || others.note("timer")).unwrap();
    noting(&mut reactor, &ready(), &log, "event");
    let deferred = log.clone();
    reactor.defer(move |_: Turn<'_, _>| deferred.note("closure")).unwrap();
    for _ in 0..10 {
        reactor.run_once(None).unwrap();
    }
    let mut notes = log.take();
    notes.sort_unstable();
    assert_eq!(notes, ["closure", "event", "timer"]);
}

fn a_descriptor_that_is_always_ready_does_not_starve_timers(build: Build) {
    let mut reactor = build().events_per_turn(1).build().unwrap();
    let log = Log::new();
    readable().with_fd(ready()).with_handler(|| {}).register_into(&mut reactor).unwrap();
    let fired = log.clone();
    reactor.after(MS, move || fired.note(())).unwrap();
    while log.len() == 0 {
        reactor.run_once(None).unwrap();
    }
}

fn a_thousand_timers_are_started_moved_and_cancelled(build: Build) {
    const COUNT: usize = if cfg!(miri) { 50 } else { 1000 };
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).timers_per_turn(7).build().unwrap();
    let log = Log::new();
    let keys: Vec<_> = (0..COUNT)
        .map(|place| {
            let log = log.clone();
            let delay = Duration::from_micros(1 + (place * 7919 % COUNT) as u64);
            reactor.after(delay, move || log.note(place)).unwrap()
        })
        .collect();
    // A third is cancelled, and a third is moved to the end in reverse order.
    for place in (0..COUNT).filter(|place| place % 3 == 0) {
        reactor.cancel(keys[place]).unwrap();
    }
    for place in (0..COUNT).filter(|place| place % 3 == 1) {
        reactor
            .reset(
                keys[place],
                Duration::from_secs(1) + Duration::from_micros((COUNT - place) as u64),
            )
            .unwrap();
    }
    clock.advance(Duration::from_secs(2));
    while reactor.stats().timers > 0 {
        reactor.run_once(None).unwrap();
    }
    let mut expected: Vec<usize> = (0..COUNT).filter(|place| place % 3 == 2).collect();
    expected.sort_by_key(|place| place * 7919 % COUNT);
    expected.extend((0..COUNT).rev().filter(|place| place % 3 == 1));
    assert_eq!(log.take(), expected);
}

// libuv: huge timeouts.
fn a_delay_beyond_all_counting_never_ends(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let log = Log::new();
    let mut keys = Vec::new();
    for delay in [Duration::MAX, Duration::from_secs(u64::MAX / 2), Duration::from_nanos(u64::MAX)]
    {
        let log = log.clone();
        keys.push(reactor.after(delay, move || log.note(delay)).unwrap());
        keys.push(reactor.every(delay, || {}).unwrap());
    }
    noting(&mut reactor, &ready(), &Log::new(), ());
    assert_eq!(reactor.run_once(None).unwrap(), 1, "they neither fire nor overflow");
    clock.advance(Duration::from_secs(1 << 32));
    assert_eq!((reactor.run_once(NOW).unwrap(), log.len()), (0, 0));
    // An earlier timer among them fires.
    let sooner = log.clone();
    reactor.after(MS, move || sooner.note(MS)).unwrap();
    clock.advance(MS);
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), [MS]);
    for key in keys {
        reactor.cancel(key).unwrap();
    }
}

fn a_turn_bounds_the_timers_that_a_handler_resets_to_now(build: Build) {
    let mut reactor = build().build().unwrap();
    let count = Rc::new(Cell::new(0));
    let counted = count.clone();
    let handler = move |tick: Tick, mut turn: Turn<'_, _>| {
        counted.set(counted.get() + 1);
        turn.reset(tick.key, NOW).unwrap();
    };
    let key = reactor.after(NOW, handler).unwrap();
    let fd = ready();
    noting(&mut reactor, &fd, &Log::new(), ());
    run_dry(&mut reactor);
    assert!((1..=10).contains(&count.get()), "once a turn: {}", count.get());
    drain(&fd);
    reactor.cancel(key).unwrap();
}

// corosio: its select backend fired no timers while handlers kept posting. Here handlers post and
// defer forever, and every turn has more ready descriptors than it takes.
fn no_timer_waits_for_handlers_that_post_and_defer_for_ever(build: Build) {
    fn post_again(remote: &windlass::Remote) {
        let next = remote.clone();
        assert!(remote.try_post(move |_: Turn<'_>| post_again(&next)).is_ok());
    }
    fn defer_again(mut turn: Turn<'_>) {
        assert!(turn.defer(defer_again).is_ok());
    }
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).events_per_turn(2).build().unwrap();
    post_again(&reactor.remote());
    reactor.defer(defer_again).map_err(drop).unwrap();
    let served = Log::new();
    for name in 0..5 {
        let served = served.clone();
        readable()
            .with_fd(ready())
            .with_handler(move || served.note(name))
            .register_into(&mut reactor)
            .unwrap();
    }
    let fired = Log::new();
    for millisecond in 1..=20 {
        let fired = fired.clone();
        reactor.after(millisecond * MS, move || fired.note(millisecond)).unwrap();
    }
    for millisecond in 1..=20 {
        clock.advance(MS);
        reactor.run_once(None).unwrap();
        assert_eq!(fired.take(), [millisecond], "in the turn in which it is due");
    }
    let served = served.take();
    assert!(
        (0..5).all(|name| served.iter().filter(|other| **other == name).count() >= 7),
        "{served:?}"
    );
}

scenarios! {
    #[cfg_attr(miri, ignore = "the stand-in for Miri's epoll serves the first again and again")]
    no_timer_waits_for_handlers_that_post_and_defer_for_ever,
    a_period_of_nothing_is_refused_and_the_handler_comes_back,
    the_limit_is_kept_and_the_handler_comes_back,
    a_reactor_may_be_built_without_room_for_timers,
    a_fired_timer_makes_room_in_its_turn_only_when_it_has_returned,
    one_turn_fires_so_many_and_the_rest_go_first_in_the_next,
    timers_left_over_go_before_the_events_of_the_next_turn,
    an_always_due_timer_starves_neither_events_nor_other_timers_nor_closures,
    a_descriptor_that_is_always_ready_does_not_starve_timers,
    a_thousand_timers_are_started_moved_and_cancelled,
    a_delay_beyond_all_counting_never_ends,
    a_turn_bounds_the_timers_that_a_handler_resets_to_now,
}
