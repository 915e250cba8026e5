//! Timers: order, periods, cancel and reset, and the validity of keys.

use std::time::{Duration, Instant};

use windlass::{ModifyError, NotFound, Reactor, Tick, Turn, interest};

use crate::{
    Build,
    bed::{HandClock, Log, NOW, Noted, Slot, idle, noting, readable, ready, run_dry, slot},
};

const MS: Duration = Duration::from_millis(1);
/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

/// A reactor whose clock the test moves.
fn by_hand(build: Build) -> (HandClock, Reactor) {
    let clock = HandClock::new();
    let reactor = build().clock(clock.clone()).build().unwrap();
    (clock, reactor)
}

/// A handler that writes a name to the log.
fn note<T: Copy + 'static>(log: &Log<T>, name: T) -> impl FnMut() + use<T> {
    let log = log.clone();
    move || log.note(name)
}

fn a_timer_fires_once_when_its_time_has_come(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    let key = reactor.after(3 * MS, note(&log, ())).unwrap();
    clock.advance(3 * MS - Duration::from_nanos(1));
    assert_eq!((reactor.run_once(NOW).unwrap(), log.len()), (0, 0), "a nanosecond too early");
    clock.advance(Duration::from_nanos(1));
    assert_eq!((reactor.run_once(NOW).unwrap(), log.len()), (0, 1), "timers are no events");
    clock.advance(LONG);
    assert_eq!((reactor.run_once(NOW).unwrap(), log.len()), (0, 1));
    assert_eq!(reactor.cancel(key), Err(NotFound));
    assert_eq!(reactor.stats().timers, 0);
    assert_eq!(reactor.stats().timers_fired, 1);
}

fn a_deadline_is_rounded_up_to_the_resolution(build: Build) {
    let (ns, us) = (Duration::from_nanos(1), Duration::from_micros(1));
    for (resolution, tick) in [
        (None, us),
        (Some(ns), ns),
        (Some(NOW), ns),
        (Some(7 * us), 7 * us),
        (Some(LONG), 1000 * MS),
    ] {
        let clock = HandClock::new();
        let builder = build().clock(clock.clone());
        let builder = match resolution {
            None => builder,
            Some(resolution) => builder.timer_resolution(resolution),
        };
        let mut reactor = builder.build().unwrap();
        let (log, start) = (Log::new(), clock.time());
        let ticked = |log: &Log<(&'static str, Duration)>, name| {
            let log = log.clone();
            move |tick: Tick| log.note((name, tick.deadline - start))
        };
        // The last nanosecond of the second tick and the first ones round up to the same tick.
        reactor.after(2 * tick, ticked(&log, "first")).unwrap();
        reactor.after(2 * tick - tick / 2, ticked(&log, "second")).unwrap();
        reactor.after(tick + ns, ticked(&log, "third")).unwrap();
        let beat = reactor.every(tick + ns, ticked(&log, "beat")).unwrap();
        clock.advance(2 * tick - ns);
        reactor.run_once(NOW).unwrap();
        assert_eq!(log.take(), [], "{tick:?}: early");
        clock.advance(ns);
        reactor.run_once(NOW).unwrap();
        let notes = log.take();
        let names: Vec<_> = notes.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["first", "second", "third", "beat"], "{tick:?}");
        assert_eq!(notes[2].1, tick + ns, "the tick tells the deadline as it was requested");
        // The beats are not rounded: the second is due at 2 ticks and 2 ns.
        clock.advance(tick);
        reactor.run_once(NOW).unwrap();
        let second = 2 * (tick + ns);
        let due = if tick == ns { vec![] } else { vec![("beat", second)] };
        assert_eq!(log.take(), due, "{tick:?}");
        reactor.cancel(beat).unwrap();
    }
}

fn no_delay_is_due_at_once_also_between_two_ticks(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    for nanoseconds in [0, 1, 499, 998, 1] {
        clock.advance(Duration::from_nanos(nanoseconds));
        reactor.after(NOW, note(&log, ())).unwrap();
        let key = reactor.after(LONG, note(&log, ())).unwrap();
        reactor.reset_at(key, clock.time()).unwrap();
        reactor.run_once(NOW).unwrap();
        assert_eq!(log.take().len(), 2);
    }
}

fn a_timer_in_the_past_comes_before_due_ones_that_a_turn_left_over(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).timers_per_turn(10).build().unwrap();
    let (log, start) = (Log::new(), clock.time());
    let us = Duration::from_micros(1);
    // 97 and 1000 have no common factor, so these are all of them in another order.
    let keys: Vec<_> = (0..1000u32)
        .map(|i| reactor.after(4 * MS + i * 97 % 1000 * us, note(&log, i * 97 % 1000)))
        .collect();
    clock.advance(LONG);
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), (0..10).collect::<Vec<_>>());
    reactor.at(start + 4 * MS + 12 * us, note(&log, 5012)).unwrap();
    reactor.at(start + 4 * MS + 10 * us, note(&log, 5010)).unwrap();
    reactor.at(start + 4 * MS, note(&log, 5000)).unwrap();
    for gone in [11u32, 13] {
        let place = (0..1000).find(|i| i * 97 % 1000 == gone).unwrap();
        reactor.cancel(*keys[place as usize].as_ref().unwrap()).unwrap();
    }
    let place = (0..1000).find(|i| i * 97 % 1000 == 14).unwrap();
    reactor.reset_at(*keys[place as usize].as_ref().unwrap(), start + 4 * MS + 16 * us).unwrap();
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), [5000, 10, 5010, 12, 5012, 15, 16, 14, 17, 18]);
    while reactor.stats().timers > 0 {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(log.take(), (19..1000).collect::<Vec<_>>());
}

// libuv: timer order.
fn they_fire_by_deadline_then_by_insertion(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    let start = clock.time();
    for (name, after) in [("d", 7), ("a", 2), ("e", 7), ("b", 2), ("c", 5)] {
        reactor.after(after * MS, note(&log, name)).unwrap();
    }
    reactor.at(start + 7 * MS, note(&log, "f")).unwrap();
    reactor.every(7 * MS, note(&log, "g")).unwrap();
    clock.advance(10 * MS);
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["a", "b", "c", "d", "e", "f", "g"]);
}

fn a_reset_counts_as_a_new_insertion(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    let first = reactor.after(2 * MS, note(&log, "first")).unwrap();
    reactor.after(2 * MS, note(&log, "second")).unwrap();
    reactor.reset(first, 2 * MS).unwrap();
    clock.advance(2 * MS);
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["second", "first"]);
}

fn resets_to_one_deadline_fire_in_the_order_of_the_resets(build: Build) {
    for distance in [2u32, 70, 5000, 400_000] {
        let (clock, mut reactor) = by_hand(build);
        let log = Log::new();
        let us = Duration::from_micros(1);
        let keys: Vec<_> = (0..100)
            .map(|place| reactor.after((distance + place % 2) * us, note(&log, place)).unwrap())
            .collect();
        let order: Vec<u32> = (0..100).map(|i| i * 7 % 100).collect();
        for place in &order {
            reactor.reset(keys[*place as usize], 2 * distance * us).unwrap();
        }
        reactor.after(2 * distance * us, note(&log, 100)).unwrap();
        clock.advance(2 * distance * us - Duration::from_nanos(1));
        reactor.run_once(NOW).unwrap();
        assert_eq!(log.len(), 0, "early");
        clock.advance(us);
        reactor.run_once(NOW).unwrap();
        let fired: Vec<u32> = log.take();
        assert_eq!((&fired[..100], fired[100]), (&order[..], 100), "{distance}");
    }
}

/// The clock is not custom.
fn a_reset_to_a_later_time_does_not_end_the_wait_at_the_old_one(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let key = reactor.after(2 * MS, move || noted.note(std::time::Instant::now())).unwrap();
    reactor.reset(key, 8 * MS).unwrap();
    let due = std::time::Instant::now() + 8 * MS;
    reactor.reset_at(key, due).unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 0);
    assert!(log.take()[0] >= due);
    assert_eq!((reactor.stats().turns, reactor.stats().timers), (1, 0));
}

/// The clock is not custom.
fn a_deadline_that_has_just_passed_is_due_at_once_at_any_resolution(build: Build) {
    let mut reactor = build().timer_resolution(Duration::from_secs(1)).build().unwrap();
    let log = Log::new();
    let key = reactor.after(LONG, note(&log, "reset")).unwrap();
    reactor.reset_at(key, std::time::Instant::now()).unwrap();
    reactor.at(std::time::Instant::now(), note(&log, "at")).unwrap();
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), ["reset", "at"]);
}

/// The clock is not custom. A turn has found out that nothing is due for an hour.
fn an_earlier_deadline_is_seen_after_a_turn_that_found_nothing_due(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let key = reactor.after(LONG, note(&log, "reset")).unwrap();
    reactor.run_once(NOW).unwrap();
    reactor.at(Instant::now(), note(&log, "started")).unwrap();
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), ["started"]);
    reactor.run_once(NOW).unwrap();
    reactor.reset_at(key, Instant::now()).unwrap();
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), ["reset"]);
}

fn deadlines_of_every_magnitude_fire_in_order(build: Build) {
    let clock = HandClock::new();
    let exact = build().clock(clock.clone()).timer_resolution(Duration::from_nanos(1));
    let mut reactor = exact.build().unwrap();
    let log = Log::new();
    let spans: Vec<u64> = (0..60).map(|bits| 1u64 << bits).collect();
    for span in spans.iter().rev() {
        reactor.after(Duration::from_nanos(*span), note(&log, *span)).unwrap();
    }
    let start = clock.time();
    for span in &spans {
        let to = start + Duration::from_nanos(*span);
        let fired = log.len();
        clock.advance(to - clock.time() - Duration::from_nanos(1));
        reactor.run_once(NOW).unwrap();
        assert_eq!(log.len(), fired, "{span} a nanosecond too early");
        clock.advance(Duration::from_nanos(1));
        reactor.run_once(None).unwrap();
        assert_eq!(log.len(), fired + 1, "{span}");
    }
    assert_eq!(log.take(), spans);
}

fn a_deadline_that_has_passed_fires_in_the_next_turn_without_a_wait(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    clock.advance(LONG);
    reactor.at(clock.time() - LONG / 2, note(&log, "past")).unwrap();
    reactor.after(NOW, note(&log, "now")).unwrap();
    reactor.at(clock.time() - LONG - LONG, note(&log, "before the reactor")).unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 0);
    assert_eq!(log.take(), ["before the reactor", "past", "now"]);
}

fn a_tick_tells_the_key_and_the_deadline(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    let start = clock.time();
    let handler = {
        let log = log.clone();
        move |tick: Tick| log.note(tick)
    };
    let key = reactor.after(2 * MS, handler).unwrap();
    clock.advance(5 * MS);
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), [Tick { key, deadline: start + 2 * MS, missed: 0 }]);
}

fn beats_keep_their_places_and_missed_ones_are_counted(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    let start = clock.time();
    let handler = {
        let log = log.clone();
        move |tick: Tick| log.note(((tick.deadline - start).as_millis(), tick.missed))
    };
    let key = reactor.every(10 * MS, handler).unwrap();
    for advance in [10, 12, 7, 1, 35, 5] {
        clock.advance(advance * MS);
        reactor.run_once(NOW).unwrap();
    }
    // Fires at 10, 22, 30, 65 and 70, not at 29. At 65 the ticks of 40, 50 and 60 are due: one
    // event reports the first and two missed.
    assert_eq!(log.take(), [(10, 0), (20, 0), (30, 0), (40, 2), (70, 0)]);
    assert_eq!(reactor.stats().timers, 1);
    reactor.cancel(key).unwrap();
    clock.advance(LONG);
    assert_eq!((reactor.run_once(NOW).unwrap(), log.len()), (0, 0));
}

fn a_cancelled_timer_is_dropped_at_once_and_silent(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    let noted = Noted(log.clone(), "dropped");
    let key = reactor.after(MS, move || noted.0.note("fired")).unwrap();
    reactor.cancel(key).unwrap();
    assert_eq!(log.take(), ["dropped"]);
    assert_eq!(reactor.cancel(key), Err(NotFound));
    assert_eq!(reactor.reset(key, MS), Err(NotFound));
    clock.advance(LONG);
    assert_eq!((reactor.run_once(NOW).unwrap(), log.len()), (0, 0));
}

// libuv: a timer closes another that is due in the same turn.
fn a_timer_cancels_another_that_is_due_in_the_same_turn(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    let victim: Slot<windlass::Key> = slot();
    let killer = {
        let (log, victim) = (log.clone(), victim.clone());
        move |mut turn: Turn<'_, _>| {
            log.note("killer");
            turn.cancel(victim.take().unwrap()).unwrap();
        }
    };
    reactor.after(MS, killer).unwrap();
    victim.set(Some(reactor.after(MS, note(&log, "victim")).unwrap()));
    clock.advance(MS);
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), ["killer"]);
}

fn a_key_lives_until_its_handler_has_returned(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = Noted(log.clone(), "dropped");
    let handler = move |tick: Tick, mut turn: Turn<'_, _>| {
        turn.cancel(tick.key).unwrap();
        assert_eq!(turn.cancel(tick.key), Err(NotFound));
        assert_eq!(turn.reset(tick.key, MS), Err(NotFound));
        noted.0.note("returns");
    };
    let key = reactor.after(NOW, handler).unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["returns", "dropped"], "rule 1");
    assert_eq!(reactor.cancel(key), Err(NotFound));
}

fn a_repeated_timer_cancels_itself(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    let handler = {
        let log = log.clone();
        move |tick: Tick, mut turn: Turn<'_, _>| {
            log.note(());
            if log.len() == 3 {
                turn.cancel(tick.key).unwrap();
            }
        }
    };
    reactor.every(MS, handler).unwrap();
    for _ in 0..5 {
        clock.advance(MS);
        reactor.run_once(NOW).unwrap();
    }
    assert_eq!((log.len(), reactor.stats().timers), (3, 0));
}

fn a_timer_gives_itself_another_round(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    let handler = {
        let log = log.clone();
        move |tick: Tick, mut turn: Turn<'_, _>| {
            log.note(tick.key);
            if log.len() < 3 {
                turn.reset(tick.key, MS).unwrap();
            }
        }
    };
    let key = reactor.after(MS, handler).unwrap();
    for _ in 0..5 {
        clock.advance(MS);
        reactor.run_once(NOW).unwrap();
    }
    assert_eq!(log.take(), [key; 3]);
    assert_eq!(reactor.reset(key, MS), Err(NotFound));
}

fn a_timer_that_resets_itself_may_change_its_mind(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    let handler = {
        let log = log.clone();
        move |tick: Tick, mut turn: Turn<'_, _>| {
            log.note(());
            turn.reset(tick.key, MS).unwrap();
            turn.cancel(tick.key).unwrap();
        }
    };
    reactor.after(NOW, handler).unwrap();
    reactor.run_once(None).unwrap();
    clock.advance(LONG);
    reactor.run_once(NOW).unwrap();
    assert_eq!((log.len(), reactor.stats().timers), (1, 0));
}

fn a_reset_moves_a_deadline_both_ways(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    let start = clock.time();
    let sooner = reactor.after(LONG, note(&log, "sooner")).unwrap();
    let later = reactor.after(MS, note(&log, "later")).unwrap();
    let at = reactor.after(LONG, note(&log, "at")).unwrap();
    reactor.reset(sooner, 2 * MS).unwrap();
    reactor.reset(later, 4 * MS).unwrap();
    reactor.reset_at(at, start + 3 * MS).unwrap();
    for _ in 0..3 {
        clock.advance(MS);
        reactor.run_once(NOW).unwrap();
    }
    assert_eq!(log.take(), ["sooner", "at"]);
    clock.advance(MS);
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), ["later"]);
}

fn a_reset_shifts_all_beats_that_follow(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    let start = clock.time();
    let handler = {
        let log = log.clone();
        move |tick: Tick| log.note((tick.deadline - start).as_millis())
    };
    let key = reactor.every(10 * MS, handler).unwrap();
    reactor.reset(key, 3 * MS).unwrap();
    for _ in 0..25 {
        clock.advance(MS);
        reactor.run_once(NOW).unwrap();
    }
    assert_eq!(log.take(), [3, 13, 23]);
}

// Rule 9.
fn a_timer_started_in_a_turn_does_not_fire_in_it(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    let handler = {
        let log = log.clone();
        move |mut turn: Turn<'_, _>| {
            log.note("outer");
            turn.after(NOW, note(&log, "inner")).unwrap();
            let now = turn.now();
            turn.at(now - MS, note(&log, "past")).unwrap();
        }
    };
    reactor.after(NOW, handler).unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["outer"]);
    clock.advance(MS);
    reactor.run_once(None).unwrap();
    let mut notes = log.take();
    notes.sort_unstable();
    assert_eq!(notes, ["inner", "past"]);
}

fn a_timer_reset_to_now_in_a_turn_fires_in_the_next(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    let handler = {
        let log = log.clone();
        move |tick: Tick, mut turn: Turn<'_, _>| {
            log.note(());
            assert!(log.len() < 10, "fires in the turn that reset it");
            turn.reset(tick.key, NOW).unwrap();
        }
    };
    reactor.after(NOW, handler).unwrap();
    for turns in 1..5 {
        reactor.run_once(None).unwrap();
        assert_eq!(log.len(), turns);
        clock.advance(MS);
    }
}

fn keys_of_descriptors_are_no_timers_and_the_other_way_round(build: Build) {
    let mut reactor = build().build().unwrap();
    let descriptor = noting(&mut reactor, &idle(), &Log::new(), ());
    let timer = reactor.after(LONG, || {}).unwrap();
    assert_eq!(reactor.cancel(descriptor), Err(NotFound));
    assert_eq!(reactor.reset(descriptor, MS), Err(NotFound));
    assert_eq!(reactor.reset_at(descriptor, Instant::now()), Err(NotFound));
    assert_eq!(reactor.delete(timer), Err(NotFound));
    assert_eq!(reactor.modify(timer, interest().read()), Err(ModifyError::NotFound));
    assert_eq!(reactor.rearm(timer), Err(ModifyError::NotFound));
    let stats = reactor.stats();
    assert_eq!((stats.subscribers, stats.timers), (1, 1));
}

fn the_turns_clock_stands_still_in_a_turn(build: Build) {
    let (clock, mut reactor) = by_hand(build);
    let log = Log::new();
    for _ in 0..3 {
        let (log, clock) = (log.clone(), clock.clone());
        let handler = move |fd: &mut crate::bed::Shared, mut turn: Turn<'_, _>| {
            crate::bed::drain(fd);
            clock.advance(MS);
            log.note(turn.now());
        };
        readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    }
    run_dry(&mut reactor);
    let first = log.take();
    assert!(first.iter().all(|now| *now == first[0]), "{first:?}");
    assert!(first[0] < clock.time());
    let handler = {
        let log = log.clone();
        move |mut turn: Turn<'_, _>| log.note(turn.now())
    };
    reactor.defer(handler).unwrap();
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), [clock.time()], "the next turn reads it again");
}

fn all_five_signatures_are_called(build: Build) {
    fn none() {
        COUNT.set(COUNT.get() + 1);
    }
    fn tick(_: Tick) {
        none();
    }
    fn turn(_: Turn<'_, impl windlass::ReactorOps>) {
        none();
    }
    fn tick_turn(_: Tick, _: Turn<'_, Reactor>) {
        none();
    }
    fn turn_tick(_: Turn<'_, Reactor>, _: Tick) {
        none();
    }
    thread_local! {
        static COUNT: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }
    let mut reactor = build().build().unwrap();
    reactor.after(NOW, none).unwrap();
    reactor.after(NOW, tick).unwrap();
    reactor.after(NOW, turn).unwrap();
    reactor.at(Instant::now(), tick_turn).unwrap();
    reactor.every(Duration::from_nanos(1), turn_tick).unwrap();
    reactor.after(NOW, || COUNT.set(COUNT.get() + 1)).unwrap();
    reactor.after(NOW, |_: Tick| none()).unwrap();
    reactor.after(NOW, |_: Turn<'_, _>| none()).unwrap();
    reactor.after(NOW, |_: Tick, _: Turn<'_, _>| none()).unwrap();
    reactor.after(NOW, |_: Turn<'_, _>, _: Tick| none()).unwrap();
    let before = COUNT.get();
    while reactor.stats().timers > 1 {
        reactor.run_once(None).unwrap();
    }
    assert!(COUNT.get() - before >= 9, "nine fire once, the beat as often as it is due");
    assert_eq!(u64::from(COUNT.get() - before), reactor.stats().timers_fired);
}

scenarios! {
    a_timer_fires_once_when_its_time_has_come,
    a_deadline_is_rounded_up_to_the_resolution,
    no_delay_is_due_at_once_also_between_two_ticks,
    a_timer_in_the_past_comes_before_due_ones_that_a_turn_left_over,
    they_fire_by_deadline_then_by_insertion,
    a_reset_counts_as_a_new_insertion,
    resets_to_one_deadline_fire_in_the_order_of_the_resets,
    a_reset_to_a_later_time_does_not_end_the_wait_at_the_old_one,
    a_deadline_that_has_just_passed_is_due_at_once_at_any_resolution,
    an_earlier_deadline_is_seen_after_a_turn_that_found_nothing_due,
    deadlines_of_every_magnitude_fire_in_order,
    a_deadline_that_has_passed_fires_in_the_next_turn_without_a_wait,
    a_tick_tells_the_key_and_the_deadline,
    beats_keep_their_places_and_missed_ones_are_counted,
    a_cancelled_timer_is_dropped_at_once_and_silent,
    a_timer_cancels_another_that_is_due_in_the_same_turn,
    a_key_lives_until_its_handler_has_returned,
    a_repeated_timer_cancels_itself,
    a_timer_gives_itself_another_round,
    a_timer_that_resets_itself_may_change_its_mind,
    a_reset_moves_a_deadline_both_ways,
    a_reset_shifts_all_beats_that_follow,
    a_timer_started_in_a_turn_does_not_fire_in_it,
    a_timer_reset_to_now_in_a_turn_fires_in_the_next,
    keys_of_descriptors_are_no_timers_and_the_other_way_round,
    the_turns_clock_stands_still_in_a_turn,
    all_five_signatures_are_called,
}

// The others use descriptors or the clock of the system.
simulated! {
    a_timer_fires_once_when_its_time_has_come, a_deadline_is_rounded_up_to_the_resolution,
    no_delay_is_due_at_once_also_between_two_ticks,
    a_timer_in_the_past_comes_before_due_ones_that_a_turn_left_over,
    they_fire_by_deadline_then_by_insertion, a_reset_counts_as_a_new_insertion,
    resets_to_one_deadline_fire_in_the_order_of_the_resets,
    deadlines_of_every_magnitude_fire_in_order,
    a_deadline_that_has_passed_fires_in_the_next_turn_without_a_wait,
    a_tick_tells_the_key_and_the_deadline, beats_keep_their_places_and_missed_ones_are_counted,
    a_cancelled_timer_is_dropped_at_once_and_silent,
    a_timer_cancels_another_that_is_due_in_the_same_turn,
    a_key_lives_until_its_handler_has_returned, a_repeated_timer_cancels_itself,
    a_timer_gives_itself_another_round, a_timer_that_resets_itself_may_change_its_mind,
    a_reset_moves_a_deadline_both_ways, a_reset_shifts_all_beats_that_follow,
    a_timer_started_in_a_turn_does_not_fire_in_it, a_timer_reset_to_now_in_a_turn_fires_in_the_next,
    all_five_signatures_are_called,
}
