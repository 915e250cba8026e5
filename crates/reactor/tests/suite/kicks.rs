//! Kicks: the handler of a registration is called although the kernel reports nothing.

use std::{
    cell::Cell,
    os::unix::net::UnixStream,
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{
    Event, Group, Interest, Key, KickError, Reactor, Ready, Registrar, Signal, SignalSet, Turn,
    interest,
};

use crate::{
    Build,
    bed::{
        Log, NOW, Shared, counter, drain, edge, idle, pair, panic_of, readable, ready, ring,
        run_dry,
    },
};

const READ: Ready = Ready::empty().read();

/// Registers one end of a pair. Its handler notes the conditions and reads nothing.
fn listening(
    target: &mut impl Registrar<Ops = Reactor>,
    wanted: Interest,
    end: UnixStream,
    log: &Log<Ready>,
) -> Key {
    let log = log.clone();
    let handler = move |event: Event| log.note(event.ready());
    wanted.with_fd(end).with_handler(handler).register_into(target).unwrap()
}

fn a_kick_calls_the_handler_in_a_turn_that_does_not_wait(build: Build) {
    for wanted in [|_: &Reactor| readable(), |reactor: &Reactor| edge(reactor, readable())] {
        let mut reactor = build().build().unwrap();
        let (log, (end, _peer)) = (Log::new(), pair());
        let wanted = wanted(&reactor);
        let key = listening(&mut reactor, wanted, end, &log);
        reactor.kick(key, READ).unwrap();
        // It would wait for ever.
        assert_eq!(reactor.run_once(None).unwrap(), 1);
        assert_eq!(log.take(), [READ]);
        assert_eq!((reactor.run_once(NOW).unwrap(), log.len()), (0, 0), "once");
    }
}

fn a_kick_in_a_turn_is_told_in_the_next_one(build: Build) {
    let mut reactor = build().build().unwrap();
    let (log, (end, _peer)) = (Log::new(), pair());
    let key = listening(&mut reactor, readable(), end, &log);
    let (fd, seen) = (ready(), log.clone());
    let handler = move |fd: &mut Shared, mut turn: Turn<'_, _>| {
        drain(fd);
        turn.kick(key, READ).unwrap();
        assert_eq!(seen.len(), 0);
    };
    readable().with_fd(fd).with_handler(handler).register_into(&mut reactor).unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.len(), 0);
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), [READ]);

    reactor.before_wait(move |mut turn| turn.kick(key, READ).unwrap()).unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 1, "before its wait");
    assert_eq!(log.take(), [READ]);
}

fn several_kicks_are_one_call_with_all_conditions(build: Build) {
    let mut reactor = build().build().unwrap();
    let (log, (end, _peer)) = (Log::new(), pair());
    let key = listening(&mut reactor, readable().read_hangup(), end, &log);
    let hangup = Ready::empty().read_hangup();
    for ready in [READ, hangup, READ, Ready::empty().error(), Ready::empty().hangup()] {
        reactor.kick(key, ready).unwrap();
    }
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), [READ.read_hangup().error().hangup()]);
    reactor.kick(key, hangup).unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), [hangup], "not those of the kicks before");
}

fn the_kernels_event_is_told_beside_a_kick(build: Build) {
    let mut reactor = build().build().unwrap();
    let (log, fd) = (Log::new(), ready());
    let seen = log.clone();
    let handler = move |fd: &mut Shared| seen.note(drain(fd));
    let key = edge(&reactor, readable())
        .with_fd(fd.clone())
        .with_handler(handler)
        .register_into(&mut reactor)
        .unwrap();
    reactor.kick(key, READ).unwrap();
    run_dry(&mut reactor);
    assert_eq!(log.take().iter().sum::<u64>(), 1);
    ring(&fd);
    assert_eq!(reactor.run_once(None).unwrap(), 1, "the kick has used up no event");
    assert_eq!(log.take(), [1]);
}

fn a_kick_that_cannot_be_told_is_an_error(build: Build) {
    let mut reactor = build().build().unwrap();
    let (log, (end, _peer)) = (Log::new(), pair());
    let key = listening(&mut reactor, readable(), end, &log);
    let timer = reactor.after(Duration::from_secs(3600), || {}).unwrap();
    let group = Group::new(())
        .after(Duration::from_secs(3600), |(): &mut ()| {})
        .register_into(&mut reactor)
        .unwrap();
    for other in [timer, group.group.key(), Key::from_bits(0), Key::from_bits(u64::MAX)] {
        assert_eq!(reactor.kick(other, READ), Err(KickError::NotFound));
    }
    for other in [Ready::empty(), Ready::empty().write(), READ.write(), READ.priority()] {
        assert_eq!(reactor.kick(key, other), Err(KickError::NotRequested));
    }
    reactor.modify(key, interest()).unwrap();
    assert_eq!(reactor.kick(key, READ), Err(KickError::NotRequested));
    reactor.delete(key).unwrap();
    assert_eq!(reactor.kick(key, READ), Err(KickError::NotFound));
    assert_eq!((reactor.run_once(NOW).unwrap(), log.len()), (0, 0));
}

fn a_kick_ends_with_its_registration_and_its_interest(build: Build) {
    let mut reactor = build().build().unwrap();
    let (log, ends) = (Log::new(), [pair(), pair(), pair(), pair()]);
    let [one, two, three, four] = ends.map(|(end, peer)| {
        std::mem::forget(peer);
        listening(&mut reactor, readable(), end, &log)
    });
    for key in [one, two, three, four] {
        reactor.kick(key, READ).unwrap();
    }
    reactor.kick(three, Ready::empty().error()).unwrap();
    reactor.delete(one).unwrap();
    for key in [two, three] {
        reactor.modify(key, interest().read_hangup()).unwrap();
    }
    reactor.modify(four, interest()).unwrap();
    reactor.modify(four, readable()).unwrap();
    // It may get the place of the deleted one.
    let (end, _peer) = pair();
    listening(&mut reactor, readable(), end, &log);
    assert_eq!(reactor.run_once(NOW).unwrap(), 2);
    assert_eq!(log.take(), [Ready::empty().error(), READ]);
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
}

/// A kick is the one event of a one-shot registration, whatever the kernel reports.
fn a_kick_is_the_event_of_a_one_shot(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (fd, seen) = (ready(), log.clone());
    let handler = move |fd: &mut Shared| seen.note(drain(fd));
    let key = readable()
        .one_shot()
        .with_fd(fd.clone())
        .with_handler(handler)
        .register_into(&mut reactor)
        .unwrap();
    reactor.kick(key, READ).unwrap();
    assert_eq!((run_dry(&mut reactor), log.take()), (1, vec![1]));
    assert_eq!(reactor.kick(key, READ), Err(KickError::Disabled));
    ring(&fd);
    assert_eq!(run_dry(&mut reactor), 0, "disabled until it is re-armed");
    reactor.rearm(key).unwrap();
    assert_eq!((run_dry(&mut reactor), log.take()), (1, vec![1]), "by the kernel's event");
    assert_eq!(reactor.kick(key, READ), Err(KickError::Disabled));
    reactor.rearm(key).unwrap();
    reactor.kick(key, READ).unwrap();
    assert_eq!((run_dry(&mut reactor), log.take()), (1, vec![0]));
    // A kick that comes after the kernel's event was fetched.
    reactor.rearm(key).unwrap();
    let kicker = readable().with_fd(ready()).with_handler({
        move |fd: &mut Shared, mut turn: Turn<'_, _>| {
            drain(fd);
            _ = turn.kick(key, READ);
        }
    });
    kicker.register_into(&mut reactor).unwrap();
    ring(&fd);
    assert_eq!((run_dry(&mut reactor), log.take()), (2, vec![1]), "it was told already");
}

/// The kernel's event is in the batch that has no room for the kick.
fn a_kick_behind_the_event_of_a_one_shot_needs_a_re_arming(build: Build) {
    for rearms in [false, true] {
        let mut reactor = build().events_per_turn(4).build().unwrap();
        let log = Log::new();
        let keys = [(0, idle()), (1, idle()), (2, ready())].map(|(name, fd)| {
            let seen = log.clone();
            let handler = move |fd: &mut Shared, event: Event, mut turn: Turn<'_, _>| {
                seen.note((name, drain(fd)));
                if rearms {
                    turn.rearm(event.key()).unwrap();
                }
            };
            let once = readable().one_shot().with_fd(fd).with_handler(handler);
            let key = once.register_into(&mut reactor).unwrap();
            reactor.kick(key, READ).unwrap();
            key
        });
        // The first kicks have half of the batch. The last one comes after the kernel's event.
        run_dry(&mut reactor);
        let calls = log.take();
        assert_eq!(calls[..3], [(0, 0), (1, 0), (2, 1)]);
        let again: &[_] = if rearms { &[(2, 0)] } else { &[] };
        assert_eq!(calls[3..], *again);
        keys.iter().for_each(|key| reactor.rearm(*key).unwrap());
        assert_eq!(run_dry(&mut reactor), 0, "no kick is left");
    }
}

fn a_handler_that_kicks_itself_starves_nobody(build: Build) {
    for most in [1, 2, 3] {
        let mut reactor = build().events_per_turn(most).build().unwrap();
        let (calls, log) = (Rc::new(Cell::new(0)), Log::new());
        for _ in 0..4 {
            let calls = Rc::clone(&calls);
            let handler = move |event: Event, mut turn: Turn<'_, _>| {
                calls.set(calls.get() + 1);
                turn.kick(event.key(), READ).unwrap();
            };
            let fd = Rc::new(counter(0));
            let key = readable().with_fd(fd).with_handler(handler).register_into(&mut reactor);
            reactor.kick(key.unwrap(), READ).unwrap();
        }
        let seen = log.clone();
        let other = readable().with_fd(ready()).with_handler(move |fd: &mut Shared| {
            drain(fd);
            seen.note(());
        });
        other.register_into(&mut reactor).unwrap();
        for _ in 0..12 {
            assert!(reactor.run_once(None).unwrap() <= most, "rule 10");
        }
        assert_eq!(log.len(), 1, "{most} events a turn");
        assert!(calls.get() >= 5, "nor does the kernel starve it");
    }
}

fn what_has_no_room_comes_first_in_the_next_turn(build: Build) {
    let mut reactor = build().events_per_turn(4).build().unwrap();
    let log = Log::new();
    let keys: Vec<Key> = (0..5)
        .map(|name| {
            let log = log.clone();
            let handler = move |event: Event, mut turn: Turn<'_, _>| {
                log.note(name);
                if name == 0 {
                    turn.kick(event.key(), READ).unwrap();
                }
            };
            readable().with_fd(idle()).with_handler(handler).register_into(&mut reactor).unwrap()
        })
        .collect();
    for key in &keys {
        reactor.kick(*key, READ).unwrap();
    }
    for expected in [vec![0, 1, 2, 3], vec![4, 0], vec![0]] {
        reactor.run_once(None).unwrap();
        assert_eq!(log.take(), expected);
    }
}

fn members_and_signals_are_kicked_as_others_are(build: Build) {
    let mut reactor = build().build().unwrap();
    let set = SignalSet::new([Signal::USR2]).unwrap();
    let registered = Group::new(Vec::new())
        .fd(readable(), idle(), |calls: &mut Vec<u8>, _: &mut Shared| calls.push(0))
        .signals(set, |calls: &mut Vec<u8>, set: &mut SignalSet| {
            assert!(set.read().unwrap().is_empty());
            calls.push(1);
        })
        .register_into(&mut reactor)
        .unwrap();
    for key in &registered.members {
        reactor.kick(*key, READ).unwrap();
    }
    assert_eq!(reactor.run_once(None).unwrap(), 2);
    assert_eq!(reactor.group_mut(registered.group), Some(&mut vec![0, 1]));
}

fn a_kick_from_another_thread_wakes_the_loop(build: Build) {
    let mut reactor = build().build().unwrap();
    let (log, (end, _peer)) = (Log::new(), pair());
    let key = listening(&mut reactor, readable(), end, &log);
    let remote = reactor.remote();
    let other = std::thread::spawn(move || {
        remote.post(move |mut turn: Turn<'_>| turn.kick(key, READ).unwrap()).unwrap();
    });
    while log.len() == 0 {
        reactor.run_once(None).unwrap();
    }
    other.join().unwrap();
    assert_eq!(log.take(), [READ]);
}

fn a_panic_keeps_the_kicks_of_others(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let seen = log.clone();
    let handler = move |event: Event, mut turn: Turn<'_, _>| {
        seen.note("panics");
        // Its own kick comes after the events that are kept.
        turn.kick(event.key(), READ).unwrap();
        assert_ne!(seen.len(), 1, "handler");
        turn.delete(event.key()).unwrap();
    };
    let one = readable().with_fd(idle()).with_handler(handler).register_into(&mut reactor).unwrap();
    let seen = log.clone();
    let handler = move || seen.note("other");
    let two = readable().with_fd(idle()).with_handler(handler).register_into(&mut reactor).unwrap();
    reactor.kick(one, READ).unwrap();
    reactor.kick(two, READ).unwrap();
    panic_of(|| reactor.run_once(None));
    let start = Instant::now();
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert!(start.elapsed() < Duration::from_secs(60), "no turn waits");
    assert_eq!(log.take(), ["panics", "other", "panics"]);
    assert_eq!((reactor.run_once(NOW).unwrap(), reactor.stats().subscribers), (0, 1));
}

scenarios! {
    a_kick_calls_the_handler_in_a_turn_that_does_not_wait,
    a_kick_in_a_turn_is_told_in_the_next_one,
    several_kicks_are_one_call_with_all_conditions,
    the_kernels_event_is_told_beside_a_kick,
    a_kick_that_cannot_be_told_is_an_error,
    a_kick_ends_with_its_registration_and_its_interest,
    a_kick_is_the_event_of_a_one_shot,
    a_kick_behind_the_event_of_a_one_shot_needs_a_re_arming,
    a_handler_that_kicks_itself_starves_nobody,
    what_has_no_room_comes_first_in_the_next_turn,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    members_and_signals_are_kicked_as_others_are,
    a_kick_from_another_thread_wakes_the_loop,
    a_panic_keeps_the_kicks_of_others,
}
