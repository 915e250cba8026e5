//! The state of a group outside of its members: `Turn::with_group`.

use std::{cell::Cell, os::fd::OwnedFd, rc::Rc, time::Duration};

use windlass::{
    Group, GroupKey, GroupStateError, Reactor, Turn,
    stream::{Input, MemberStreamHandler, Stream, StreamOptions},
};

use crate::{
    Build,
    bed::{Log, NOW, Noted, Shared, Slot, drain, noting, panic_of, readable, ready, slot},
    script::{Said, Script, turn, unix, until},
};

const LATER: Duration = Duration::from_secs(1000);

/// A group that counts, with a timer that does not fire.
fn counter(reactor: &mut Reactor) -> GroupKey<u32> {
    Group::new(0).after(LATER, |_: &mut u32| {}).register_into(reactor).unwrap().group
}

/// Adds one, and returns the old count.
fn count(turn: &mut Turn<'_>, group: GroupKey<u32>) -> Result<u32, GroupStateError> {
    turn.with_group(group, |count, _| {
        *count += 1;
        *count - 1
    })
}

// Without it, the state of all handlers beside the group was an `Rc<RefCell<_>>`.
fn handlers_of_every_kind_reach_the_state_of_a_group(build: Build) {
    let mut reactor = build().build().unwrap();
    let group = counter(&mut reactor);
    let by_event = move |fd: &mut Shared, mut turn: Turn<'_>| {
        drain(fd);
        count(&mut turn, group).unwrap();
    };
    readable().with_fd(ready()).with_handler(by_event).register_into(&mut reactor).unwrap();
    reactor.after_with(NOW, move |mut turn| _ = count(&mut turn, group).unwrap()).unwrap();
    reactor.defer(move |mut turn| _ = count(&mut turn, group).unwrap()).unwrap();
    let log = Log::new();
    let script = Script::new(&log).on_open(move |stream| {
        count(&mut stream.turn(), group).unwrap();
    });
    let (ours, _peer) = unix();
    StreamOptions::new().register(ours, script, &mut reactor).unwrap();
    until(&mut reactor, &log, 1);
    while reactor.group_mut(group) != Some(&mut 4) {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(log.take(), [Said::Open]);
}

/// Asks for the state that it is given.
struct Greedy(Slot<GroupKey<Log<&'static str>>>);

impl MemberStreamHandler<Log<&'static str>> for Greedy {
    fn on_data(&mut self, _: &mut Log<&'static str>, _: &mut Stream<'_>, _: Input<'_>) {}
    fn on_open(&mut self, log: &mut Log<&'static str>, stream: &mut Stream<'_>) {
        assert_borrowed(&self.0, &mut stream.turn());
        log.note("stream");
    }
}

fn assert_borrowed<S: 'static>(key: &Slot<GroupKey<S>>, turn: &mut Turn<'_>) {
    let refused = turn.with_group(key.get().unwrap(), |_, _| unreachable!("it is borrowed"));
    assert_eq!(refused, Err(GroupStateError::Borrowed));
}

fn a_members_handler_has_the_state_alone(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let key = slot::<GroupKey<Log<&'static str>>>();
    let [by_event, by_timer, by_stream] = [0; 3].map(|_| key.clone());
    let (ours, _peer) = unix();
    let group = Group::new(log.clone())
        .fd(
            readable(),
            ready(),
            move |log: &mut Log<_>, fd: &mut Shared, mut turn: Turn<'_, Reactor>| {
                drain(fd);
                assert_borrowed(&by_event, &mut turn);
                // It may add members, which hold the state.
                drop(turn.group(by_event.get().unwrap()).unwrap());
                log.note("event");
            },
        )
        .after(NOW, move |log: &mut Log<_>, mut turn: Turn<'_, Reactor>| {
            assert_borrowed(&by_timer, &mut turn);
            log.note("timer");
        })
        .stream(StreamOptions::new().with_fd(ours), Greedy(by_stream))
        .register_into(&mut reactor)
        .unwrap()
        .group;
    key.set(Some(group));
    while log.len() < 3 {
        reactor.run_once(None).unwrap();
    }
    let mut notes = log.take();
    notes.sort_unstable();
    assert_eq!(notes, ["event", "stream", "timer"]);
    // Nobody borrows it afterwards.
    reactor
        .defer(move |mut turn| turn.with_group(group, |log, _| log.note("free")).unwrap())
        .unwrap();
    turn(&mut reactor);
    assert_eq!(log.take(), ["free"]);
}

fn a_member_that_deletes_itself_has_the_state_until_it_returns(build: Build) {
    let mut reactor = build().build().unwrap();
    let (log, key) = (Log::new(), slot::<GroupKey<Log<u32>>>());
    let (theirs, noted) = (key.clone(), log.clone());
    let own = move |log: &mut Log<u32>, event: windlass::Event, mut turn: Turn<'_, Reactor>| {
        turn.delete(event.key()).unwrap();
        assert_borrowed(&theirs, &mut turn);
        log.note(1);
    };
    let group = Group::new(log.clone())
        .fd(readable(), ready(), own)
        .after(LATER, |_: &mut Log<u32>| {})
        .register_into(&mut reactor)
        .unwrap()
        .group;
    key.set(Some(group));
    turn(&mut reactor);
    assert_eq!(noted.take(), [1]);
}

// The table gives the place of the group that is gone to the next one.
fn a_new_group_in_the_place_of_the_running_members_is_not_borrowed(build: Build) {
    let mut reactor = build().build().unwrap();
    let counted = Rc::new(Cell::new(0));
    for deletes_group in [false, true] {
        let (seen, key) = (counted.clone(), slot::<GroupKey<()>>());
        let theirs = key.clone();
        let last = move |(): &mut (), event: windlass::Event, mut turn: Turn<'_, Reactor>| {
            if deletes_group {
                turn.delete_group(theirs.get().unwrap()).unwrap();
            } else {
                turn.delete(event.key()).unwrap();
            }
            let refused = turn.with_group(theirs.get().unwrap(), |(), _| ());
            assert_eq!(refused, Err(GroupStateError::NotFound));
            let next = Group::new(7).after(LATER, |_: &mut u32| {});
            let next = next.register_into(&mut turn).unwrap().group;
            seen.set(seen.get() + turn.with_group(next, |state, _| *state).unwrap());
            turn.delete_group(next).unwrap();
        };
        let group = Group::new(()).fd(readable(), ready(), last);
        key.set(Some(group.register_into(&mut reactor).unwrap().group));
        turn(&mut reactor);
    }
    assert_eq!(counted.get(), 14);
}

fn a_borrow_inside_of_a_borrow_is_refused(build: Build) {
    let mut reactor = build().build().unwrap();
    let (one, other) = (counter(&mut reactor), counter(&mut reactor));
    reactor
        .defer(move |mut turn| {
            turn.with_group(one, |count, mut turn| {
                *count += 1;
                let nested = turn.with_group(one, |_, _| unreachable!("it is borrowed"));
                assert_eq!(nested, Err(GroupStateError::Borrowed));
                *turn
                    .with_group(other, |other, _| std::mem::replace(other, *count))
                    .as_mut()
                    .unwrap()
            })
            .unwrap();
            assert_eq!(turn.with_group(other, |count, _| *count), Ok(1));
        })
        .unwrap();
    turn(&mut reactor);
}

fn a_closure_may_delete_the_group_whose_state_it_has(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let group = Group::new(Noted(log.clone(), "state")).after(LATER, |_: &mut Noted<_>| {});
    let group = group.register_into(&mut reactor).unwrap().group;
    reactor
        .defer(move |mut turn| {
            turn.with_group(group, |Noted(log, _), mut turn| {
                turn.delete_group(group).unwrap();
                log.note("used");
            })
            .unwrap();
            assert_eq!(turn.with_group(group, |_, _| ()), Err(GroupStateError::NotFound));
        })
        .unwrap();
    turn(&mut reactor);
    assert_eq!(log.take(), ["used", "state"]);
}

fn a_panic_gives_the_state_back(build: Build) {
    let mut reactor = build().build().unwrap();
    let group = Group::new(0)
        .fd(readable(), ready(), |_: &mut u32, fd: &mut Shared| {
            drain(fd);
            panic!("in an event")
        })
        .after(NOW, |_: &mut u32| panic!("in a timer"))
        .after(LATER, |_: &mut u32| {})
        .register_into(&mut reactor)
        .unwrap()
        .group;
    reactor
        .defer(move |mut turn| turn.with_group(group, |_, _| panic!("borrowed")).unwrap())
        .unwrap();
    for _ in 0..3 {
        panic_of(|| reactor.run_once(None));
    }
    reactor.defer(move |mut turn| _ = count(&mut turn, group).unwrap()).unwrap();
    turn(&mut reactor);
    assert_eq!(reactor.group_mut(group), Some(&mut 1));
}

fn a_key_that_names_no_such_state_finds_none(build: Build) {
    let mut reactor = build().build().unwrap();
    let mut other = build().build().unwrap();
    let log = Log::new();
    let (group, theirs) = (counter(&mut reactor), counter(&mut other));
    let wrong_type = GroupKey::<OwnedFd>::from_key(group.key());
    let no_group = GroupKey::<u32>::from_key(noting(&mut reactor, &ready(), &log, ()));
    reactor
        .defer(move |mut turn| {
            assert_eq!(turn.with_group(wrong_type, |_, _| ()), Err(GroupStateError::NotFound));
            for key in [theirs, no_group] {
                assert_eq!(count(&mut turn, key), Err(GroupStateError::NotFound));
            }
        })
        .unwrap();
    turn(&mut reactor);
}

scenarios! {
    handlers_of_every_kind_reach_the_state_of_a_group,
    a_members_handler_has_the_state_alone,
    a_member_that_deletes_itself_has_the_state_until_it_returns,
    a_new_group_in_the_place_of_the_running_members_is_not_borrowed,
    a_borrow_inside_of_a_borrow_is_refused,
    a_closure_may_delete_the_group_whose_state_it_has,
    a_panic_gives_the_state_back,
    a_key_that_names_no_such_state_finds_none,
}
