//! Rules 9, 10, 13 and 14: the events of a turn, the bounds of its length, and the order of its
//! steps.

use std::{
    cell::Cell,
    os::fd::OwnedFd,
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{Event, Interest, Reactor, Tick, Turn, interest};

use crate::{
    Build,
    tools::{Log, Pair, Witness, counter, drain, on_ready, ready, turn},
};

fn rule_9_a_timer_started_in_a_turn_does_not_fire_in_it(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let said = log.clone();
    // A timer is due already, so the turn fires timers too.
    reactor
        .after(Duration::ZERO, move |mut turn: Turn<'_, _>| {
            said.say("first");
            for _ in 0..2 {
                let said = said.clone();
                turn.after(Duration::ZERO, move || said.say("child")).unwrap();
            }
            let said = said.clone();
            let past = turn.now().checked_sub(Duration::from_secs(1)).unwrap_or(Instant::now());
            turn.at(past, move || said.say("past")).unwrap();
        })
        .unwrap();
    turn(&mut reactor);
    assert_eq!(log.take(), ["first"]);
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["child", "child", "past"]);
}

fn rule_9_a_timer_that_resets_itself_to_now_fires_once_a_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, seen) = counter();
    let key = reactor
        .after(Duration::ZERO, move |tick: Tick, mut turn: Turn<'_, _>| {
            count.set(count.get() + 1);
            turn.reset(tick.key, Duration::ZERO).unwrap();
        })
        .unwrap();
    for round in 1..=3 {
        reactor.run_once(None).unwrap();
        assert_eq!(seen.get(), round);
    }
    reactor.cancel(key).unwrap();
}

fn rule_10_a_turn_fires_no_more_timers_than_it_may_and_the_rest_comes_first_in_the_next(
    build: Build,
) {
    let mut reactor = build().timers_per_turn(3).build().unwrap();
    let log = Log::default();
    for name in ["1", "2", "3", "4", "5"] {
        let said = log.clone();
        reactor.after(Duration::ZERO, move || said.say(name)).unwrap();
    }
    turn(&mut reactor);
    assert_eq!(log.take(), ["1", "2", "3"]);
    let said = log.clone();
    on_ready(&mut reactor, ready(), move |_, _| said.say("event"));
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["4", "5", "event"]);
}

fn rule_10_a_turn_runs_no_more_closures_than_it_may_and_the_rest_comes_first_in_the_next(
    build: Build,
) {
    let mut reactor = build().deferred_per_turn(2).build().unwrap();
    let log = Log::default();
    for name in ["1", "2", "3"] {
        let said = log.clone();
        reactor.defer(move |_: Turn<'_, Reactor>| said.say(name)).unwrap();
    }
    turn(&mut reactor);
    assert_eq!(log.take(), ["1", "2"]);
    let said = log.clone();
    on_ready(&mut reactor, ready(), move |_, _| said.say("event"));
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), ["3", "event"]);
}

fn rule_10_a_closure_that_defers_itself_for_ever_starves_nothing(build: Build) {
    fn again(log: Log, mut turn: Turn<'_, Reactor>) {
        log.say("closure");
        turn.defer(move |turn: Turn<'_, Reactor>| again(log, turn)).unwrap();
    }
    let mut reactor = build().timer_resolution(Duration::from_nanos(1)).build().unwrap();
    let log = Log::default();
    let said = log.clone();
    reactor.defer(move |turn: Turn<'_, Reactor>| again(said, turn)).unwrap();
    let said = log.clone();
    reactor.every(Duration::from_nanos(1), move || said.say("timer")).unwrap();
    let said = log.clone();
    on_ready(&mut reactor, ready(), move |_, _| said.say("event"));
    for _ in 0..3 {
        assert_eq!(reactor.run_once(None).unwrap(), 1);
        let said = log.take();
        for who in ["closure", "timer", "event"] {
            assert_eq!(said.iter().filter(|s| *s == who).count(), 1, "{said:?}");
        }
    }
}

fn rule_10_more_ready_descriptors_than_a_turn_takes_are_all_served(build: Build) {
    let mut reactor = build().events_per_turn(2).build().unwrap();
    let (count, seen) = counter();
    for _ in 0..7 {
        let count = count.clone();
        let fd = ready();
        let dup = rustix::io::dup(&fd).unwrap();
        on_ready(&mut reactor, fd, move |_, _| {
            drain(&dup);
            count.set(count.get() + 1);
        });
    }
    let turns: Vec<usize> = (0..5).map(|_| turn(&mut reactor)).collect();
    assert_eq!((turns, seen.get()), (vec![2, 2, 2, 1, 0], 7));
}

fn rule_13_what_a_handler_causes_comes_after_it_has_returned(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let said = log.clone();
    on_ready(&mut reactor, ready(), move |mut turn, event| {
        let later = said.clone();
        turn.defer(move |_: Turn<'_, Reactor>| later.say("deferred")).unwrap();
        let witness = Witness::new(&said, "self");
        turn.defer(move |_: Turn<'_, Reactor>| drop(witness)).unwrap();
        turn.delete(event.key()).unwrap();
        said.say("handler ends");
    });
    turn(&mut reactor);
    assert_eq!(log.take(), ["handler ends", "deferred", "drop self"]);
}

fn rule_14_merged_changes_reach_the_kernel_before_a_destructor_runs(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let fd = Pair::new().take();
    let number = std::os::fd::AsRawFd::as_raw_fd(&fd);
    let key = on_ready(&mut reactor, fd, |_, _| {});
    let victim = {
        let log = log.clone();
        let observer = SetObserver { number, log };
        on_ready(&mut reactor, Pair::new().take(), move |_, _| observer.here())
    };
    on_ready(&mut reactor, ready(), move |mut turn, event| {
        turn.modify(key, interest().read().write()).unwrap();
        turn.delete(victim).unwrap();
        turn.delete(event.key()).unwrap();
    });
    turn(&mut reactor);
    assert_eq!(log.take(), ["5"], "EPOLLIN | EPOLLOUT");
}

/// When dropped, reads the mask that one of the process's epoll sets has for a number.
struct SetObserver {
    number: i32,
    log: Log,
}

impl SetObserver {
    fn here(&self) {}
}

impl Drop for SetObserver {
    fn drop(&mut self) {
        for entry in std::fs::read_dir("/proc/self/fdinfo").unwrap() {
            let Ok(text) = std::fs::read_to_string(entry.unwrap().path()) else { continue };
            for line in text.lines() {
                let mut words = line.split_whitespace();
                if words.next() == Some("tfd:") && words.next() == Some(&self.number.to_string()) {
                    let mask = u32::from_str_radix(words.nth(1).unwrap(), 16).unwrap();
                    self.log.say((mask & 0x7).to_string());
                }
            }
        }
    }
}

/// Registers a subscriber whose handler deletes itself, changes another and then calls `then`. The
/// result shows the kernel's state of that change when the value was dropped.
fn mask_seen_by_a_self_delete(build: Build, then: impl Fn() + 'static) -> (Reactor, Log) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let fd = Pair::new().take();
    let number = std::os::fd::AsRawFd::as_raw_fd(&fd);
    let key = on_ready(&mut reactor, fd, |_, _| {});
    let observer = SetObserver { number, log: log.clone() };
    on_ready(&mut reactor, ready(), move |mut turn, event| {
        observer.here();
        turn.delete(event.key()).unwrap();
        turn.modify(key, interest().read().write()).unwrap();
        then();
    });
    (reactor, log)
}

fn rule_14_a_change_made_after_deleting_oneself_reaches_the_kernel_before_ones_destructor(
    build: Build,
) {
    let (mut reactor, log) = mask_seen_by_a_self_delete(build, || {});
    turn(&mut reactor);
    assert_eq!(log.take(), ["5"], "EPOLLIN | EPOLLOUT");
}

fn rule_14_a_change_before_a_panic_reaches_the_kernel_before_the_graves_are_emptied(build: Build) {
    let (mut reactor, log) = mask_seen_by_a_self_delete(build, || panic!("handler"));
    crate::tools::turn_panics(&mut reactor);
    assert!(log.take().is_empty());
    turn(&mut reactor);
    assert_eq!(log.take(), ["5"], "EPOLLIN | EPOLLOUT");
}

fn level_triggered_changes_of_one_turn_are_merged_and_take_effect(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, seen) = counter();
    let mut pair = Pair::new();
    let target = on_ready(&mut reactor, pair.take(), move |_, event: Event| {
        count.set(event.ready().bits() as usize)
    });
    on_ready(&mut reactor, ready(), move |mut turn, event| {
        for _ in 0..5 {
            turn.modify(target, interest()).unwrap();
            turn.modify(target, interest().write()).unwrap();
        }
        turn.delete(event.key()).unwrap();
    });
    assert_eq!((turn(&mut reactor), seen.get()), (1, 0));
    assert_eq!(turn(&mut reactor), 1);
    assert_eq!(seen.get(), interest().write().bits() as usize);
}

fn rule_5_modify_of_oneself_is_seen_at_once_and_aliases_nothing(build: Build) {
    let mut reactor = build().build().unwrap();
    let seen = Rc::new(Cell::new(interest()));
    let out = seen.clone();
    let handler = move |_: &mut OwnedFd, asked: Interest, event: Event, mut turn: Turn<'_, _>| {
        assert_eq!(asked, event.interest());
        out.set(asked);
        turn.modify(event.key(), asked.priority()).unwrap();
    };
    interest().read().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    turn(&mut reactor);
    assert_eq!(seen.get(), interest().read());
    turn(&mut reactor);
    assert_eq!(seen.get(), interest().read().priority());
}

fn an_empty_interest_on_a_closed_peer_is_told_once_and_does_not_spin(build: Build) {
    let mut reactor = build().build().unwrap();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let (count, seen) = counter();
    interest()
        .with_fd(ours)
        .with_handler(move |event: Event| {
            assert!(event.has_hangup());
            count.set(count.get() + 1);
        })
        .register_into(&mut reactor)
        .unwrap();
    drop(theirs);
    assert_eq!([turn(&mut reactor), turn(&mut reactor), turn(&mut reactor)], [1, 0, 0]);
    assert_eq!(seen.get(), 1);
}

fn who_pauses_itself_at_every_hang_up_comes_to_rest(build: Build) {
    let mut reactor = build().build().unwrap();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    interest()
        .read()
        .with_fd(ours)
        .with_handler(|event: Event, mut turn: Turn<'_, _>| {
            turn.modify(event.key(), interest()).unwrap()
        })
        .register_into(&mut reactor)
        .unwrap();
    drop(theirs);
    let turns: Vec<usize> = (0..4).map(|_| turn(&mut reactor)).collect();
    assert_eq!(turns, [1, 1, 0, 0], "once for what it asked, once for the hang-up");
}

fn a_one_shot_fires_once_until_it_is_armed_again(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, seen) = counter();
    let key = interest()
        .read()
        .one_shot()
        .with_fd(ready())
        .with_handler(move || count.set(count.get() + 1))
        .register_into(&mut reactor)
        .unwrap();
    assert_eq!([turn(&mut reactor), turn(&mut reactor)], [1, 0]);
    reactor.rearm(key).unwrap();
    assert_eq!([turn(&mut reactor), turn(&mut reactor)], [1, 0]);
    reactor.modify(key, interest().read()).unwrap();
    assert_eq!([turn(&mut reactor), turn(&mut reactor)], [1, 1]);
    assert_eq!(seen.get(), 4);
}

fn the_turns_clock_is_read_once_a_turn_and_no_clock_is_read_without_need(build: Build) {
    let mut start = None;
    let (reads, seen) = counter();
    let mut reactor = build()
        .clock(move || {
            reads.set(reads.get() + 1);
            Instant::now() + Duration::from_secs(reads.get() as u64)
        })
        .build()
        .unwrap();
    let before = seen.get();
    let key = on_ready(&mut reactor, ready(), |_, _| {});
    for _ in 0..3 {
        assert_eq!(reactor.run_once(None).unwrap(), 1);
        assert_eq!(turn(&mut reactor), 1);
    }
    assert_eq!(seen.get(), before, "neither a timer nor a question");
    reactor.delete(key).unwrap();
    let times = Log::default();
    let said = times.clone();
    on_ready(&mut reactor, ready(), move |mut turn, _| {
        let now = turn.now();
        assert_eq!(turn.now(), now);
        let since = now.duration_since(*start.get_or_insert(now)).as_secs();
        said.say(since.to_string());
    });
    for _ in 0..3 {
        turn(&mut reactor);
    }
    assert_eq!(times.take(), ["0", "1", "2"]);
    assert_eq!(seen.get(), before + 3);
}

scenarios! {
    rule_9_a_timer_started_in_a_turn_does_not_fire_in_it,
    rule_9_a_timer_that_resets_itself_to_now_fires_once_a_turn,
    rule_10_a_turn_fires_no_more_timers_than_it_may_and_the_rest_comes_first_in_the_next,
    rule_10_a_turn_runs_no_more_closures_than_it_may_and_the_rest_comes_first_in_the_next,
    rule_10_a_closure_that_defers_itself_for_ever_starves_nothing,
    rule_10_more_ready_descriptors_than_a_turn_takes_are_all_served,
    rule_13_what_a_handler_causes_comes_after_it_has_returned,
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    rule_14_merged_changes_reach_the_kernel_before_a_destructor_runs
        except [poll "the kernel keeps nothing of it", uring "the kernel shows nothing of it"],
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    rule_14_a_change_made_after_deleting_oneself_reaches_the_kernel_before_ones_destructor
        except [poll "the kernel keeps nothing of it", uring "the kernel shows nothing of it"],
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    rule_14_a_change_before_a_panic_reaches_the_kernel_before_the_graves_are_emptied
        except [poll "the kernel keeps nothing of it", uring "the kernel shows nothing of it"],
    level_triggered_changes_of_one_turn_are_merged_and_take_effect,
    rule_5_modify_of_oneself_is_seen_at_once_and_aliases_nothing,
    an_empty_interest_on_a_closed_peer_is_told_once_and_does_not_spin,
    who_pauses_itself_at_every_hang_up_comes_to_rest,
    a_one_shot_fires_once_until_it_is_armed_again,
    the_turns_clock_is_read_once_a_turn_and_no_clock_is_read_without_need,
}
