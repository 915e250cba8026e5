//! Groups that are paused and resumed: no handler of a member runs in between, and nothing is lost.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use windlass::{
    Embedded, Event, Group, GroupKey, Interest, KickError, NotFound, Reactor, Ready, Registered,
    Turn, interest,
};

use crate::{
    Build,
    bed::{
        HandClock, Log, NOW, Noted, Numbered, Shared, Slot, close, drain, duplicate_from, edge,
        idle, own_numbers, pair, readable, ready, ring, run_dry, slot,
    },
};

const MS: Duration = Duration::from_millis(1);
const READ: Ready = Ready::empty().read();

type Calls = Log<(u32, u64)>;

/// A group whose members note their number and what they have read.
fn group(members: Vec<(Interest, Shared)>) -> (Group<Calls>, Calls) {
    let log = Log::new();
    let mut group = Group::new(log.clone());
    for (name, (wanted, fd)) in (0..).zip(members) {
        group = group.fd(wanted, fd, move |log: &mut Calls, fd: &mut Shared| {
            log.note((name, drain(fd)));
        });
    }
    (group, log)
}

fn registered(
    reactor: &mut Reactor,
    members: Vec<(Interest, Shared)>,
) -> (Registered<Calls>, Calls) {
    let (group, log) = group(members);
    (group.register_into(reactor).unwrap(), log)
}

fn sorted(log: &Calls) -> Vec<(u32, u64)> {
    let mut calls = log.take();
    calls.sort_unstable();
    calls
}

fn what_is_ready_meanwhile_is_told_after_the_resume(build: Build) {
    let mut reactor = build().build().unwrap();
    let (level, edged, both) = (idle(), idle(), ready());
    let edge = edge(&reactor, readable());
    let members =
        vec![(readable(), level.clone()), (edge, edged.clone()), (readable(), both.clone())];
    let (registered, log) = registered(&mut reactor, members);
    for _ in 0..2 {
        reactor.pause_group(registered.group).unwrap();
    }
    ring(&level);
    ring(&edged);
    let start = Instant::now();
    // It neither calls nor wakes.
    assert_eq!(reactor.run_once(20 * MS).unwrap(), 0);
    assert!(start.elapsed() >= 20 * MS);
    assert_eq!(log.len(), 0);
    for _ in 0..2 {
        reactor.resume_group(registered.group).unwrap();
    }
    run_dry(&mut reactor);
    assert_eq!(sorted(&log), [(0, 1), (1, 1), (2, 1)], "each is called once");
    for fd in [&level, &edged, &both] {
        ring(fd);
    }
    run_dry(&mut reactor);
    assert_eq!(sorted(&log), [(0, 1), (1, 1), (2, 1)], "as before");
}

fn an_edge_that_was_told_before_is_told_again(build: Build) {
    let mut reactor = build().build().unwrap();
    let (fd, wanted) = (ready(), edge(&reactor, readable()));
    let (log, end) = (Log::new(), wanted.has_edge_triggered());
    let group = Group::new(log.clone()).fd(wanted, fd, |log: &mut Log<()>| log.note(()));
    let key = group.register_into(&mut reactor).unwrap().group;
    for _ in 0..3 {
        assert_eq!(reactor.run_once(NOW).unwrap(), 1);
        assert_eq!(reactor.run_once(NOW).unwrap(), usize::from(!end));
        log.take();
        reactor.pause_group(key).unwrap();
        assert_eq!((reactor.run_once(NOW).unwrap(), log.len()), (0, 0));
        reactor.resume_group(key).unwrap();
    }
}

/// The first one pauses the group. The events of the others were fetched already.
fn the_rest_of_the_batch_does_not_run(build: Build) {
    for one_shot in [false, true] {
        let mut reactor = build().build().unwrap();
        let (log, this): (Log<u64>, Slot<GroupKey<Log<u64>>>) = (Log::new(), slot());
        let mut group = Group::new(log.clone());
        for _ in 0..3 {
            let this = this.clone();
            let handler = move |log: &mut Log<u64>, fd: &mut Shared, mut turn: Turn<'_, _>| {
                log.note(drain(fd));
                turn.pause_group(this.get().unwrap()).unwrap();
            };
            let wanted = if one_shot { readable().one_shot() } else { readable() };
            group = group.fd(wanted, ready(), handler);
        }
        let key = group.register_into(&mut reactor).unwrap().group;
        this.set(Some(key));
        for calls in 1..=3 {
            assert_eq!(reactor.run_once(NOW).unwrap(), 1, "the others are not called");
            assert_eq!((log.len(), reactor.stats().events), (calls, calls as u64));
            assert_eq!(reactor.run_once(NOW).unwrap(), 0);
            reactor.resume_group(key).unwrap();
        }
        run_dry(&mut reactor);
        assert_eq!(log.take(), [1, 1, 1]);
    }
}

/// Runs a turn in which `act` is the first of the batch, before what is ready.
fn first_in_the_batch(reactor: &mut Reactor, mut act: impl FnMut(Turn<'_>) + 'static) {
    let handler = move |event: Event, mut turn: Turn<'_>| {
        act(turn.reborrow());
        turn.delete(event.key()).unwrap();
    };
    let first = readable().with_fd(idle()).with_handler(handler).register_into(reactor).unwrap();
    reactor.kick(first, READ).unwrap();
    reactor.run_once(NOW).unwrap();
}

/// The events of the batch come after the resume. They are told once.
fn a_resume_in_the_same_turn_repeats_nothing(build: Build) {
    for (wanted, changes_before) in
        [(readable(), true), (readable().one_shot(), true), (readable().one_shot(), false)]
    {
        let mut reactor = build().build().unwrap();
        let fds = [ready(), ready(), ready()];
        let members = fds.iter().map(|fd| (wanted, fd.clone())).collect();
        let (registered, log) = registered(&mut reactor, members);
        let (key, changed) = (registered.group, registered.members[0]);
        first_in_the_batch(&mut reactor, move |mut turn| {
            if changes_before {
                turn.modify(changed, wanted).unwrap();
            }
            turn.pause_group(key).unwrap();
            turn.pause_group(key).unwrap();
            if !changes_before {
                turn.modify(changed, wanted).unwrap();
            }
            turn.resume_group(key).unwrap();
        });
        assert_eq!(sorted(&log), [(0, 1), (1, 1), (2, 1)]);
        assert_eq!(run_dry(&mut reactor), 0);
        fds.iter().for_each(ring);
        run_dry(&mut reactor);
        let again = sorted(&log).len();
        assert_eq!(again, if wanted.has_one_shot() { 1 } else { 3 }, "re-armed after the event");
    }
}

/// The event before the re-arming is dropped. The one after the resume is the firing.
fn a_one_shot_that_was_re_armed_before_the_pause_fires_once(build: Build) {
    let mut reactor = build().build().unwrap();
    let (fd, once) = (ready(), readable().one_shot());
    let (registered, log) = registered(&mut reactor, vec![(once, fd.clone())]);
    let (key, member) = (registered.group, registered.members[0]);
    first_in_the_batch(&mut reactor, move |mut turn| {
        turn.rearm(member).unwrap();
        turn.pause_group(key).unwrap();
    });
    assert_eq!(log.len(), 0);
    for expected in [vec![(0, 1)], vec![]] {
        reactor.resume_group(key).unwrap();
        run_dry(&mut reactor);
        assert_eq!(log.take(), expected);
        ring(&fd);
        reactor.pause_group(key).unwrap();
    }
    assert_eq!(reactor.kick(member, READ), Err(KickError::Disabled));
}

fn a_one_shot_that_has_fired_stays_disabled(build: Build) {
    let mut reactor = build().build().unwrap();
    let (fd, once) = (ready(), readable().one_shot());
    let (registered, log) = registered(&mut reactor, vec![(once, fd.clone())]);
    run_dry(&mut reactor);
    assert_eq!(log.take(), [(0, 1)]);
    ring(&fd);
    reactor.pause_group(registered.group).unwrap();
    reactor.resume_group(registered.group).unwrap();
    assert_eq!(run_dry(&mut reactor), 0, "it has fired");
    reactor.pause_group(registered.group).unwrap();
    reactor.rearm(registered.members[0]).unwrap();
    assert_eq!(run_dry(&mut reactor), 0, "it is paused");
    reactor.resume_group(registered.group).unwrap();
    run_dry(&mut reactor);
    assert_eq!(log.take(), [(0, 1)]);
    ring(&fd);
    assert_eq!(run_dry(&mut reactor), 0, "it has fired again");
}

fn changes_meanwhile_are_in_force_after_the_resume(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let mut group = Group::new(log.clone());
    let (ends, _peers): (Vec<_>, Vec<_>) = [pair(), pair()].into_iter().unzip();
    for end in ends {
        group = group.fd(readable(), end, |log: &mut Log<_>, event: Event, wanted: Interest| {
            log.note((event.key(), wanted, event.ready()));
        });
    }
    let Registered { group, members } = group.register_into(&mut reactor).unwrap();
    let (first, second) = (members[0], members[1]);
    let (write, once) = (interest().write(), interest().write().one_shot());
    // One change is merged before the pause, and one comes after it.
    let change = move |mut turn: Turn<'_>| {
        turn.modify(first, write).unwrap();
        turn.pause_group(group).unwrap();
        turn.modify(second, once).unwrap();
    };
    reactor.defer(change).unwrap();
    for _ in 0..3 {
        assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    }
    reactor.resume_group(group).unwrap();
    assert_eq!(reactor.run_once(NOW).unwrap(), 2);
    let mut calls = log.take();
    calls.sort_unstable_by_key(|call| call.0 != first);
    let writable = Ready::empty().write();
    assert_eq!(calls, [(first, write, writable), (second, once, writable)]);
    assert_eq!(reactor.run_once(NOW).unwrap(), 1, "the other one is one-shot");
}

fn kicks_of_a_paused_member_are_told_after_the_resume(build: Build) {
    let mut reactor = build().build().unwrap();
    let (registered, log) =
        registered(&mut reactor, vec![(readable(), idle()), (readable(), idle())]);
    let (group, [one, two]) = (registered.group, [registered.members[0], registered.members[1]]);
    reactor.kick(one, READ).unwrap();
    reactor.pause_group(group).unwrap();
    reactor.kick(two, READ).unwrap();
    let start = Instant::now();
    assert_eq!(reactor.run_once(20 * MS).unwrap(), 0);
    assert!(start.elapsed() >= 20 * MS, "they do not keep the loop awake");
    reactor.resume_group(group).unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 2);
    assert_eq!(sorted(&log), [(0, 0), (1, 0)]);
    // Kicks that are in the batch when a handler before them pauses the group.
    let handler = move |mut turn: Turn<'_>| turn.pause_group(group).unwrap();
    let first = readable().with_fd(idle()).with_handler(handler).register_into(&mut reactor);
    for key in [first.unwrap(), one, two] {
        reactor.kick(key, READ).unwrap();
    }
    run_dry(&mut reactor);
    assert_eq!(log.len(), 0);
    for _ in 0..3 {
        reactor.resume_group(group).unwrap();
        reactor.pause_group(group).unwrap();
    }
    reactor.resume_group(group).unwrap();
    assert_eq!(run_dry(&mut reactor), 2);
    assert_eq!(sorted(&log), [(0, 0), (1, 0)]);
}

/// An event of the kernel that was dropped is not told as a kick as well.
fn an_event_that_was_fetched_is_told_once(build: Build) {
    let mut reactor = build().build().unwrap();
    let key: Slot<GroupKey<Calls>> = slot();
    let this = key.clone();
    let pausing = idle();
    let handler = move |fd: &mut Shared, mut turn: Turn<'_>| {
        drain(fd);
        turn.pause_group(this.get().unwrap()).unwrap();
    };
    readable().with_fd(pausing.clone()).with_handler(handler).register_into(&mut reactor).unwrap();
    let fd = idle();
    let (registered, log) = registered(&mut reactor, vec![(readable(), fd.clone())]);
    key.set(Some(registered.group));
    reactor.kick(registered.members[0], READ).unwrap();
    run_dry(&mut reactor);
    assert_eq!(log.take(), [(0, 0)]);
    for _ in 0..4 {
        ring(&pausing);
        ring(&fd);
        run_dry(&mut reactor);
        reactor.resume_group(registered.group).unwrap();
        run_dry(&mut reactor);
        assert_eq!(log.take(), [(0, 1)]);
    }
}

fn what_joins_a_paused_group_is_paused(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let (registered, log) = registered(&mut reactor, vec![(readable(), ready())]);
    let key = registered.group;
    reactor.pause_group(key).unwrap();
    let join = move |mut turn: Turn<'_>| {
        let joined = turn
            .group(key)
            .unwrap()
            .fd(readable(), ready(), |log: &mut Calls, fd: &mut Shared| log.note((7, drain(fd))))
            .after(Duration::ZERO, |log: &mut Calls| log.note((8, 0)))
            .register_into(&mut turn)
            .unwrap();
        turn.kick(joined.members[0], READ).unwrap();
    };
    reactor.defer(join).unwrap();
    for _ in 0..3 {
        clock.advance(MS);
        assert_eq!((reactor.run_once(NOW).unwrap(), log.len()), (0, 0));
    }
    reactor.resume_group(key).unwrap();
    for _ in 0..3 {
        reactor.run_once(NOW).unwrap();
    }
    let mut calls = sorted(&log);
    // The kick and the kernel's event are two calls.
    calls.retain(|call| *call != (7, 0));
    assert_eq!(calls, [(0, 1), (7, 1), (8, 0)]);
    let join = move |mut turn: Turn<'_>| {
        let handler = |log: &mut Calls, fd: &mut Shared| log.note((9, drain(fd)));
        let joining = turn.group(key).unwrap().fd(readable(), ready(), handler);
        joining.register_into(&mut turn).unwrap();
    };
    reactor.defer(join).unwrap();
    run_dry(&mut reactor);
    run_dry(&mut reactor);
    assert_eq!(log.take(), [(9, 1)], "the group runs again");
}

fn paused_members_and_groups_are_deleted_as_others_are(build: Build) {
    let mut reactor = build().build().unwrap();
    let dropped = Log::new();
    let (fds, mut keys) = ([ready(), ready(), ready(), ready()], Vec::new());
    for (place, pair) in fds.chunks(2).enumerate() {
        let state = Noted(dropped.clone(), place);
        let registered = Group::new(state)
            .fd(readable(), pair[0].clone(), |_: &mut Noted<usize>| panic!("it is paused"))
            .fd(readable(), pair[1].clone(), |_: &mut Noted<usize>| panic!("it is paused"))
            .every(MS, |_: &mut Noted<usize>| panic!("it is paused"))
            .register_into(&mut reactor)
            .unwrap();
        reactor.pause_group(registered.group).unwrap();
        keys.push(registered);
    }
    let [one, two] = &keys[..] else { unreachable!("two groups") };
    reactor.kick(one.members[0], READ).unwrap();
    for (place, key) in one.members.iter().enumerate() {
        assert_eq!(dropped.len(), 0, "{place}");
        reactor.remove(*key).unwrap();
    }
    assert_eq!(dropped.take(), [0], "with the last member");
    assert_eq!(reactor.pause_group(one.group), Err(NotFound));
    assert_eq!(reactor.resume_group(one.group), Err(NotFound));
    reactor.kick(two.members[0], READ).unwrap();
    reactor.delete_group(two.group).unwrap();
    assert_eq!(dropped.take(), [1]);
    // The numbers and the places are free.
    let members = fds.iter().map(|fd| (readable(), fd.clone())).collect();
    let (registered, log) = registered(&mut reactor, members);
    run_dry(&mut reactor);
    assert_eq!(sorted(&log), [(0, 1), (1, 1), (2, 1), (3, 1)]);
    // The reactor ends with a paused group.
    reactor.pause_group(registered.group).unwrap();
    reactor.kick(registered.members[0], READ).unwrap();
    drop(reactor);
    assert!(fds.iter().all(|fd| Rc::strong_count(fd) == 1));
}

fn a_member_that_pauses_and_deletes_itself_is_dropped_when_it_has_returned(build: Build) {
    let mut reactor = build().build().unwrap();
    let this: Slot<GroupKey<Log<&'static str>>> = slot();
    let (log, of_handler) = (Log::new(), this.clone());
    let noted = Noted(log.clone(), "dropped");
    let handler = move |log: &mut Log<_>, event: Event, mut turn: Turn<'_>| {
        turn.pause_group(of_handler.get().unwrap()).unwrap();
        turn.delete(event.key()).unwrap();
        log.note(noted.1);
    };
    let group = Group::new(log.clone()).fd(readable(), ready(), handler);
    let registered = group.fd(readable(), ready(), |log: &mut Log<_>| log.note("other"));
    let registered = registered.register_into(&mut reactor).unwrap();
    this.set(Some(registered.group));
    run_dry(&mut reactor);
    let is_first = log.take() == ["dropped", "dropped"];
    assert_eq!(reactor.stats().subscribers, 1);
    reactor.resume_group(registered.group).unwrap();
    assert_eq!(reactor.run_once(NOW).unwrap(), 1);
    assert_eq!(log.take(), ["other"], "{is_first}");
}

fn a_paused_group_does_not_wake_the_host(build: Build) {
    let is_readable = |guest: &Embedded| {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(guest, PollFlags::IN)], Some(&now)).unwrap() == 1
    };
    for is_paused_before in [false, true] {
        let (mut reactor, fd) = (build().build().unwrap(), idle());
        let (registered, log) = registered(&mut reactor, vec![(readable(), fd.clone())]);
        if is_paused_before {
            reactor.pause_group(registered.group).unwrap();
        }
        let mut guest = reactor.embed().unwrap();
        guest.with(|reactor| reactor.pause_group(registered.group)).unwrap();
        guest.run_once(NOW).unwrap();
        ring(&fd);
        assert!(!is_readable(&guest));
        guest.run_once(NOW).unwrap();
        assert!(!is_readable(&guest));
        guest.with(|reactor| reactor.resume_group(registered.group)).unwrap();
        assert!(is_readable(&guest));
        assert_eq!(guest.run_once(NOW).unwrap(), 1);
        assert_eq!(log.take(), [(0, 1)]);
        ring(&fd);
        assert!(is_readable(&guest), "the host is told of its number again");
    }
}

/// The number of a member is closed while a duplicate lives, so its entry stays in the set (rule
/// 7). It must not keep the loop awake.
fn a_stale_entry_of_a_paused_member_wakes_the_loop_once(build: Build) {
    let mut reactor = build().build().unwrap();
    let number = own_numbers();
    let kept = ready();
    let fd = std::os::fd::IntoRawFd::into_raw_fd(duplicate_from(&*kept, number));
    let log = Log::new();
    let group = Group::new(log.clone());
    let group = group.fd(readable(), Numbered(fd), |log: &mut Log<bool>, event: Event| {
        log.note(event.has_error());
    });
    let key = group.register_into(&mut reactor).unwrap().group;
    close(fd);
    reactor.pause_group(key).unwrap();
    run_dry(&mut reactor);
    reactor.run_once(NOW).unwrap();
    assert_eq!((reactor.stats().rebuilds, log.len()), (1, 0));
    let start = Instant::now();
    assert_eq!(reactor.run_once(20 * MS).unwrap(), 0);
    assert!(start.elapsed() >= 20 * MS);
    reactor.resume_group(key).unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), [true], "the kernel has rejected it");
    drop(kept);
}

scenarios! {
    what_is_ready_meanwhile_is_told_after_the_resume,
    an_edge_that_was_told_before_is_told_again,
    the_rest_of_the_batch_does_not_run,
    a_resume_in_the_same_turn_repeats_nothing,
    a_one_shot_that_was_re_armed_before_the_pause_fires_once,
    a_one_shot_that_has_fired_stays_disabled,
    changes_meanwhile_are_in_force_after_the_resume,
    kicks_of_a_paused_member_are_told_after_the_resume,
    an_event_that_was_fetched_is_told_once,
    what_joins_a_paused_group_is_paused,
    paused_members_and_groups_are_deleted_as_others_are,
    a_member_that_pauses_and_deletes_itself_is_dropped_when_it_has_returned,
    a_paused_group_does_not_wake_the_host except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "a descriptor is closed behind Miri's epoll")]
    a_stale_entry_of_a_paused_member_wakes_the_loop_once except [
        uring "a ring has no stale entries",
        poll "the kernel keeps nothing of it"
    ],
}
