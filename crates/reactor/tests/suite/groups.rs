//! Groups: one state with several descriptors, timers and signals, and the members that their
//! handlers may delete.

use std::{rc::Rc, time::Duration};

use windlass::{Event, Group, GroupKey, Key, NotFound, Reactor, Tick, Turn};

use crate::{
    Build,
    bed::{
        HandClock, Log, NOW, Noted, Shared, Slot, drain, idle, panic_of, readable, ready, ring,
        run_dry, slot,
    },
};

const MS: Duration = Duration::from_millis(1);

/// A state that records the calls and its own drop.
struct State {
    log: Log<&'static str>,
    calls: u32,
}

impl State {
    fn new(log: &Log<&'static str>) -> Self {
        Self { log: log.clone(), calls: 0 }
    }

    fn note(&mut self, what: &'static str) {
        // If the state were dropped while its handler runs, a sanitizer would report this access.
        // Without one, the count would show it.
        self.calls += 1;
        self.log.note(what);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.log.note("state dropped");
    }
}

/// A handler for a member: it reads its eventfd and records a name.
fn member(name: &'static str) -> impl FnMut(&mut State, &mut Shared) {
    move |state: &mut State, fd: &mut Shared| {
        drain(fd);
        state.note(name);
    }
}

// firecracker #1553, event-manager #41: several descriptors share a state without a lock.
fn descriptors_and_timers_share_one_state(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let log = Log::new();
    let (a, b) = (ready(), ready());
    let registered = Group::new(State::new(&log))
        .fd(readable(), a.clone(), member("a"))
        .fd(readable(), b.clone(), member("b"))
        .after(MS, |state: &mut State| state.note("after"))
        .at(clock.time() + 2 * MS, |state: &mut State, _: Tick| state.note("at"))
        .every(3 * MS, |state: &mut State, _: Turn<'_, _>| state.note("every"))
        .register_into(&mut reactor)
        .unwrap();
    assert_eq!(registered.members.len(), 5);
    assert_eq!((reactor.stats().subscribers, reactor.stats().timers), (2, 3));
    assert_eq!(run_dry(&mut reactor), 2);
    let mut notes = log.take();
    notes.sort_unstable();
    assert_eq!(notes, ["a", "b"]);
    clock.advance(3 * MS);
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), ["after", "at", "every"]);
    assert_eq!(reactor.group_mut(registered.group).unwrap().calls, 5);
    ring(&a);
    run_dry(&mut reactor);
    assert_eq!(reactor.group_mut(registered.group).unwrap().calls, 6);
    assert_eq!(
        (reactor.stats().subscribers, reactor.stats().timers),
        (2, 1),
        "what fires once is no member afterwards"
    );
}

fn the_owner_changes_the_state_between_turns(build: Build) {
    let mut reactor = build().build().unwrap();
    let fd = ready();
    let registered = Group::new(10u32)
        .fd(readable(), fd.clone(), |sum: &mut u32, fd: &mut Shared| {
            *sum += u32::try_from(drain(fd)).unwrap()
        })
        .register_into(&mut reactor)
        .unwrap();
    *reactor.group_mut(registered.group).unwrap() *= 2;
    run_dry(&mut reactor);
    assert_eq!(reactor.group_mut(registered.group), Some(&mut 21));
    reactor.delete_group(registered.group).unwrap();
    assert_eq!(reactor.group_mut(registered.group), None);
}

fn the_state_goes_with_the_last_member(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let log = Log::new();
    let registered = Group::new(State::new(&log))
        .fd(readable(), idle(), member("a"))
        .fd(readable(), idle(), member("b"))
        .after(MS, |state: &mut State| state.note("timer"))
        .every(MS, |_: &mut State| {})
        .register_into(&mut reactor)
        .unwrap();
    let [a, b, _, every] = registered.members[..] else { panic!("four members") };
    reactor.delete(a).unwrap();
    reactor.cancel(every).unwrap();
    reactor.delete(b).unwrap();
    assert_eq!(log.len(), 0);
    assert!(reactor.group_mut(registered.group).is_some());
    clock.advance(MS);
    reactor.run_once(NOW).unwrap();
    assert_eq!(
        log.take(),
        ["timer", "state dropped"],
        "a timer that fires once leaves when it has fired"
    );
    assert_eq!(reactor.delete_group(registered.group), Err(NotFound));
    assert!(reactor.group_mut(registered.group).is_none());
}

fn deleting_the_group_drops_all_members_at_once(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (a, b) = (ready(), ready());
    let registered = Group::new(State::new(&log))
        .fd(readable(), a.clone(), member("a"))
        .fd(readable(), b.clone(), member("b"))
        .every(MS, |_: &mut State| {})
        .register_into(&mut reactor)
        .unwrap();
    reactor.delete_group(registered.group).unwrap();
    assert_eq!(log.take(), ["state dropped"]);
    assert_eq!((Rc::strong_count(&a), Rc::strong_count(&b)), (1, 1));
    assert_eq!((reactor.stats().subscribers, reactor.stats().timers), (0, 0));
    for key in registered.members {
        assert_eq!(reactor.delete(key), Err(NotFound));
        assert_eq!(reactor.cancel(key), Err(NotFound));
    }
    assert_eq!(reactor.delete_group(registered.group), Err(NotFound));
    assert_eq!((run_dry(&mut reactor), log.len()), (0, 0));
}

/// A group with two ready members. Their handlers act on the group and on the other member's key.
fn two_that(
    reactor: &mut Reactor,
    log: &Log<&'static str>,
    act: impl Fn(GroupKey<State>, Key, Event, Turn<'_, Reactor>) + Clone + 'static,
) {
    let keys: Slot<(GroupKey<State>, [Key; 2])> = slot();
    let handler = |place: usize| {
        let (act, keys) = (act.clone(), keys.clone());
        move |state: &mut State, fd: &mut Shared, event: Event, turn: Turn<'_, Reactor>| {
            drain(fd);
            state.note("begins");
            let (group, members) = keys.get().unwrap();
            act(group, members[1 - place], event, turn);
            state.note("ends");
        }
    };
    let group = Group::new(State::new(log)).fd(readable(), ready(), handler(0)).fd(
        readable(),
        ready(),
        handler(1),
    );
    let registered = group.register_into(reactor).unwrap();
    keys.set(Some((registered.group, [registered.members[0], registered.members[1]])));
}

fn a_member_that_deletes_the_group_keeps_the_state_until_it_returns(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    two_that(&mut reactor, &log, |group, _, _, mut turn| {
        turn.delete_group(group).unwrap();
        assert_eq!(turn.delete_group(group), Err(NotFound));
    });
    run_dry(&mut reactor);
    assert_eq!(log.take(), ["begins", "ends", "state dropped"], "the other one did not fire");
    assert_eq!(reactor.stats().subscribers, 0);
}

fn a_member_that_deletes_its_last_sibling_and_itself_keeps_the_state_until_it_returns(
    build: Build,
) {
    for sibling_first in [true, false] {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        two_that(&mut reactor, &log, move |group, sibling, event, mut turn| {
            let keys = if sibling_first { [sibling, event.key()] } else { [event.key(), sibling] };
            for key in keys {
                turn.delete(key).unwrap();
            }
            assert_eq!(turn.delete_group(group), Err(NotFound), "an empty group is gone");
        });
        run_dry(&mut reactor);
        assert_eq!(log.take(), ["begins", "ends", "state dropped"]);
    }
}

fn a_member_that_deletes_its_sibling_stays(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    two_that(&mut reactor, &log, |_, sibling, _, mut turn| turn.delete(sibling).unwrap());
    run_dry(&mut reactor);
    assert_eq!(log.take(), ["begins", "ends"]);
    assert_eq!(reactor.stats().subscribers, 1);
}

fn a_member_that_deletes_itself_leaves_the_group_to_its_sibling(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    two_that(&mut reactor, &log, |_, _, event, mut turn| turn.delete(event.key()).unwrap());
    assert_eq!(run_dry(&mut reactor), 2);
    assert_eq!(log.take(), ["begins", "ends", "begins", "ends", "state dropped"]);
}

fn a_timer_that_deletes_the_group_keeps_the_state_until_it_returns(build: Build) {
    for repeated in [false, true] {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let keys: Slot<GroupKey<State>> = slot();
        let group = keys.clone();
        let handler = move |state: &mut State, mut turn: Turn<'_, Reactor>| {
            state.note("begins");
            turn.delete_group(group.get().unwrap()).unwrap();
            state.note("ends");
        };
        let builder = Group::new(State::new(&log)).fd(readable(), idle(), member("fd"));
        let builder = if repeated {
            builder.every(Duration::from_nanos(1), handler)
        } else {
            builder.after(NOW, handler)
        };
        keys.set(Some(builder.register_into(&mut reactor).unwrap().group));
        while log.len() == 0 {
            reactor.run_once(None).unwrap();
        }
        assert_eq!(log.take(), ["begins", "ends", "state dropped"]);
        assert_eq!((reactor.stats().subscribers, reactor.stats().timers), (0, 0));
    }
}

fn an_outsider_deletes_a_group_whose_members_are_pending(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let keys: Slot<GroupKey<State>> = slot();
    let group = keys.clone();
    let killer = move |fd: &mut Shared, mut turn: Turn<'_, Reactor>| {
        drain(fd);
        let _ = turn.delete_group(group.get().unwrap());
    };
    let kick = idle();
    readable().with_fd(kick.clone()).with_handler(killer).register_into(&mut reactor).unwrap();
    let (a, b) = (idle(), idle());
    let registered = Group::new(State::new(&log))
        .fd(readable(), a.clone(), member("a"))
        .fd(readable(), b.clone(), member("b"))
        .register_into(&mut reactor)
        .unwrap();
    keys.set(Some(registered.group));
    [&kick, &a, &b].into_iter().for_each(ring);
    run_dry(&mut reactor);
    let notes = log.take();
    assert_eq!(notes.iter().filter(|note| **note == "state dropped").count(), 1);
    assert_eq!(*notes.last().unwrap(), "state dropped", "nobody fires after the end: {notes:?}");
    assert_eq!(reactor.stats().subscribers, 1);
}

fn a_handler_adds_members_to_its_group(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let keys: Slot<GroupKey<State>> = slot();
    let group = keys.clone();
    let handler = move |state: &mut State, fd: &mut Shared, mut turn: Turn<'_, Reactor>| {
        drain(fd);
        state.note("first");
        let joining = turn.group(group.get().unwrap()).unwrap();
        let joined = joining
            .fd(readable(), ready(), member("joined"))
            .after(NOW, |state: &mut State| state.note("timer"))
            .register_into(&mut turn)
            .unwrap();
        assert_eq!(joined.group, group.get().unwrap());
        assert_eq!(joined.members.len(), 2, "the new ones");
    };
    let registered = Group::new(State::new(&log))
        .fd(readable(), ready(), handler)
        .register_into(&mut reactor)
        .unwrap();
    keys.set(Some(registered.group));
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), ["first"], "what is added in a turn fires in the next");
    while log.len() < 2 {
        reactor.run_once(None).unwrap();
    }
    let mut notes = log.take();
    notes.sort_unstable();
    assert_eq!(notes, ["joined", "timer"]);
    reactor.delete_group(registered.group).unwrap();
    assert_eq!(log.take(), ["state dropped"]);
    assert_eq!((reactor.stats().subscribers, reactor.stats().timers), (0, 0));
}

fn a_closure_and_a_hook_join_a_group_too(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let group = Group::new(State::new(&log)).fd(readable(), idle(), member("first"));
    let group = group.register_into(&mut reactor).unwrap().group;
    reactor
        .defer(move |mut turn: Turn<'_, Reactor>| {
            turn.group(group)
                .unwrap()
                .fd(readable(), ready(), member("second"))
                .register_into(&mut turn)
                .unwrap();
        })
        .unwrap();
    run_dry(&mut reactor);
    run_dry(&mut reactor);
    assert_eq!(log.take(), ["second"]);
    assert_eq!(reactor.stats().subscribers, 2);
}

fn a_group_that_is_gone_is_not_joined(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let group = Group::new(State::new(&log)).fd(readable(), idle(), member("a"));
    let group = group.register_into(&mut reactor).unwrap().group;
    reactor.delete_group(group).unwrap();
    log.take();
    let noted = log.clone();
    reactor
        .defer(move |mut turn: Turn<'_, Reactor>| {
            assert_eq!(turn.group(group).err(), Some(NotFound));
            noted.note("refused");
        })
        .unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["refused"]);
}

// A join that was begun in a handler may be finished after the group was deleted. It is rejected,
// and its members are returned.
fn a_join_that_comes_too_late_gets_its_members_back(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let group = Group::new(State::new(&log)).fd(readable(), idle(), member("a"));
    let group = group.register_into(&mut reactor).unwrap().group;
    let fd = ready();
    let (noted, theirs) = (log.clone(), fd.clone());
    reactor
        .defer(move |mut turn: Turn<'_, Reactor>| {
            let joining = turn.group(group).unwrap().fd(readable(), theirs.clone(), member("late"));
            turn.delete_group(group).unwrap();
            assert_eq!(noted.len(), 0, "the members that are to join hold the state");
            let error = joining.try_register_into(&mut turn).unwrap_err();
            assert_eq!(error.reason, windlass::GroupReason::NotFound);
            drop(error);
            noted.note("end");
        })
        .unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["state dropped", "end"]);
    assert_eq!((Rc::strong_count(&fd), reactor.stats().subscribers), (1, 0));
}

fn a_panicking_member_leaves_the_state_to_the_others(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let fd = ready();
    let handler = |state: &mut State, fd: &mut Shared| {
        drain(fd);
        state.note("panics");
        panic!("member");
    };
    let registered = Group::new(State::new(&log))
        .fd(readable(), fd.clone(), handler)
        .after(Duration::from_secs(3600), |_: &mut State| {})
        .register_into(&mut reactor)
        .unwrap();
    assert_eq!(panic_of(|| reactor.run_once(None)), "member");
    assert_eq!(reactor.group_mut(registered.group).unwrap().calls, 1);
    ring(&fd);
    assert_eq!(panic_of(|| reactor.run_once(None)), "member");
    reactor.delete_group(registered.group).unwrap();
    assert_eq!(log.take(), ["panics", "panics", "state dropped"]);
}

fn a_member_that_deletes_the_group_and_panics_is_dropped_in_the_next_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    two_that(&mut reactor, &log, |group, _, _, mut turn| {
        turn.delete_group(group).unwrap();
        panic!("member");
    });
    assert_eq!(panic_of(|| reactor.run_once(None)), "member");
    assert_eq!(log.take(), ["begins"]);
    run_dry(&mut reactor);
    assert_eq!(log.take(), ["state dropped"]);
}

fn members_are_modified_and_reset_by_their_keys(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let log = Log::new();
    let fd = ready();
    let registered = Group::new(State::new(&log))
        .fd(windlass::interest(), fd.clone(), member("fd"))
        .after(MS, |state: &mut State| state.note("timer"))
        .register_into(&mut reactor)
        .unwrap();
    assert_eq!(run_dry(&mut reactor), 0);
    reactor.modify(registered.members[0], readable()).unwrap();
    assert_eq!(run_dry(&mut reactor), 1);
    reactor.reset(registered.members[1], 5 * MS).unwrap();
    clock.advance(4 * MS);
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), ["fd"]);
    clock.advance(MS);
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), ["timer"]);
}

fn a_groups_timer_gives_itself_another_round_and_stays_a_member(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let handler = |state: &mut State, tick: Tick, mut turn: Turn<'_, Reactor>| {
        state.note("tick");
        if state.calls < 3 {
            turn.reset(tick.key, NOW).unwrap();
        }
    };
    let group =
        Group::new(State::new(&log)).after(NOW, handler).register_into(&mut reactor).unwrap().group;
    while reactor.group_mut(group).is_some() {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(log.take(), ["tick", "tick", "tick", "state dropped"]);
}

fn a_state_without_members_left_drops_what_it_owns_after_them(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = Noted(log.clone(), "handler dropped");
    let handler = move |_: &mut State| {
        let _ = &noted;
    };
    let group = Group::new(State::new(&log))
        .fd(readable(), idle(), handler)
        .register_into(&mut reactor)
        .unwrap()
        .group;
    reactor.delete_group(group).unwrap();
    assert_eq!(log.take(), ["handler dropped", "state dropped"]);
}

fn two_groups_of_one_kind_do_not_mix(build: Build) {
    let mut reactor = build().build().unwrap();
    let (first, second) = (Log::new(), Log::new());
    let [a, b] = [&first, &second].map(|log| {
        let group = Group::new(State::new(log)).fd(readable(), ready(), member("called"));
        group.register_into(&mut reactor).unwrap().group
    });
    assert_ne!(a, b);
    run_dry(&mut reactor);
    assert_eq!((first.take(), second.take()), (vec!["called"], vec!["called"]));
    reactor.delete_group(a).unwrap();
    assert_eq!((first.take(), second.take()), (vec!["state dropped"], vec![]));
    // The slot is reused. The old key stays invalid.
    let c = Group::new(State::new(&first))
        .fd(readable(), idle(), member("c"))
        .register_into(&mut reactor)
        .unwrap();
    assert_eq!(reactor.delete_group(a), Err(NotFound));
    assert!(c.group != a && reactor.group_mut(c.group).is_some());
}

scenarios! {
    descriptors_and_timers_share_one_state,
    the_owner_changes_the_state_between_turns,
    the_state_goes_with_the_last_member,
    deleting_the_group_drops_all_members_at_once,
    a_member_that_deletes_the_group_keeps_the_state_until_it_returns,
    a_member_that_deletes_its_last_sibling_and_itself_keeps_the_state_until_it_returns,
    a_member_that_deletes_its_sibling_stays,
    a_member_that_deletes_itself_leaves_the_group_to_its_sibling,
    a_timer_that_deletes_the_group_keeps_the_state_until_it_returns,
    an_outsider_deletes_a_group_whose_members_are_pending,
    a_handler_adds_members_to_its_group,
    a_closure_and_a_hook_join_a_group_too,
    a_group_that_is_gone_is_not_joined,
    a_join_that_comes_too_late_gets_its_members_back,
    a_panicking_member_leaves_the_state_to_the_others,
    a_member_that_deletes_the_group_and_panics_is_dropped_in_the_next_turn,
    members_are_modified_and_reset_by_their_keys,
    a_groups_timer_gives_itself_another_round_and_stays_a_member,
    a_state_without_members_left_drops_what_it_owns_after_them,
    two_groups_of_one_kind_do_not_mix,
}
