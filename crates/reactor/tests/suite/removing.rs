//! `remove`: the end of whatever a key names.

use std::{rc::Rc, time::Duration};

use windlass::{
    Group, Key, NotFound, Reactor, Registered, Turn,
    stream::{DisconnectReason, Listener, Peer, StreamOptions},
};

use crate::{
    Build,
    bed::{Log, NOW, Noted, Shared, idle, panic_of, readable, run_dry},
    script::{Said, Script, open, turn, unix, until},
};

const LATER: Duration = Duration::from_secs(1000);

fn listener() -> Listener {
    Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap()
}

/// A key of each kind but a stream's, each with an owner of its noted value.
fn keys(reactor: &mut Reactor, log: &Log<&'static str>) -> Vec<Key> {
    let noted = |name| Noted(log.clone(), name);
    let holding = |name| {
        let noted = noted(name);
        move || _ = &noted
    };
    let listener_noted = noted("listener");
    let accept = move |_: &Peer<'_>| {
        let _ = &listener_noted;
        None::<Script>
    };
    let group = Group::new(noted("group"))
        .fd(readable(), idle(), |_: &mut Noted<_>| {})
        .after(LATER, |_: &mut Noted<_>| {})
        .register_into(reactor)
        .unwrap();
    let descriptor = readable().with_fd(idle()).with_handler(holding("descriptor"));
    vec![
        descriptor.register_into(reactor).unwrap(),
        reactor.after(LATER, holding("timer")).unwrap(),
        listener().with_handler(accept).register_into(reactor).unwrap().into(),
        group.group.into(),
    ]
}

// Without it, a program noted the kind of each key beside the key.
fn a_key_of_any_kind_is_removed_once(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let names = ["descriptor", "timer", "listener", "group"];
    for (key, name) in keys(&mut reactor, &log).into_iter().zip(names) {
        reactor.remove(key).unwrap();
        assert_eq!(log.take(), [name], "its destructor runs at once");
        assert_eq!(reactor.remove(key), Err(NotFound));
    }
    let keys = keys(&mut reactor, &log);
    let (stale, noted) = (keys.clone(), log.clone());
    let all = move |mut turn: Turn<'_>| {
        for key in &keys {
            turn.remove(*key).unwrap();
        }
        assert_eq!(noted.take(), names);
    };
    reactor.defer(all).unwrap();
    turn(&mut reactor);
    assert!(stale.iter().all(|key| reactor.remove(*key) == Err(NotFound)));
    assert_eq!((reactor.stats().subscribers, reactor.stats().timers), (0, 0));
}

fn a_stream_that_is_removed_closes_gracefully(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = unix();
    let key = open(&mut reactor, StreamOptions::new(), ours, Script::new(&log));
    reactor.stream(key).unwrap().send(b"the last words").unwrap();
    reactor.remove(key).unwrap();
    assert_eq!(log.take(), [Said::Open]);
    turn(&mut reactor);
    assert_eq!(peer.read_all(), b"the last words");
    peer.finish();
    until(&mut reactor, &log, 2);
    assert_eq!(log.take(), [Said::Close(DisconnectReason::Closed), Said::Dropped]);
    assert_eq!(reactor.remove(key), Err(NotFound));
}

fn members_are_removed_from_their_group(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let fd = idle();
    let group = Group::new(Noted(log.clone(), "state"))
        .fd(readable(), fd.clone(), |_: &mut Noted<_>| {})
        .every(LATER, |_: &mut Noted<_>| {});
    let Registered { group, members } = group.register_into(&mut reactor).unwrap();
    reactor.remove(members[0]).unwrap();
    assert_eq!((Rc::strong_count(&fd), log.len()), (1, 0));
    reactor.remove(members[1]).unwrap();
    assert_eq!(log.take(), ["state"]);
    assert_eq!(reactor.remove(group), Err(NotFound));
}

fn a_handler_removes_itself_and_keeps_its_value_until_it_returns(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = Noted(log.clone(), "dropped");
    let own = move |fd: &mut Shared, event: windlass::Event, mut turn: Turn<'_>| {
        turn.remove(event.key()).unwrap();
        noted.0.note("used");
        let _ = fd;
    };
    readable().with_fd(crate::bed::ready()).with_handler(own).register_into(&mut reactor).unwrap();
    let noted = Noted(log.clone(), "timer dropped");
    let own = move |tick: windlass::Tick, mut turn: Turn<'_, Reactor>| {
        turn.remove(tick.key).unwrap();
        noted.0.note("timer used");
    };
    reactor.every(Duration::from_nanos(1), own).unwrap();
    while log.len() < 4 {
        run_dry(&mut reactor);
    }
    let mut notes = log.take();
    notes.sort_by_key(|note| note.starts_with("timer"));
    assert_eq!(notes, ["used", "dropped", "timer used", "timer dropped"]);
}

// The reactor's own cells and those of streams have numbers, too, which a made-up key may have.
fn made_up_keys_remove_nothing(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, _peer) = unix();
    let key = open(&mut reactor, StreamOptions::new(), ours, Script::new(&log));
    let registered = (reactor.stats().subscribers, reactor.stream(key).is_ok());
    let generation = key.to_bits() & !0xffff_ffff;
    for kind in 0..3 {
        for index in 0..64 {
            let made_up = Key::from_bits(generation | kind << 30 | index);
            assert_eq!(reactor.remove(made_up), Err(NotFound), "{made_up:?}");
        }
    }
    assert_eq!(reactor.remove(Key::from_bits(u64::MAX)), Err(NotFound));
    assert_eq!((reactor.stats().subscribers, reactor.stream(key).is_ok()), registered);
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), [Said::Open]);
}

fn a_destructor_that_panics_has_removed_its_value(build: Build) {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in a destructor");
        }
    }
    let mut reactor = build().build().unwrap();
    let bomb = Bomb;
    let accept = move |_: &Peer<'_>| {
        let _ = &bomb;
        None::<Script>
    };
    let key = listener().with_handler(accept).register_into(&mut reactor).unwrap();
    panic_of(|| reactor.remove(key));
    assert_eq!(reactor.remove(key), Err(NotFound));
    assert_eq!(reactor.stats().subscribers, 0);
}

/// The timer of the timeouts of streams, whose key lies between those of two timers of the user.
fn a_key_of_the_reactors_own_timer_that_is_made_up_is_unknown(build: Build) {
    let mut reactor = build().build().unwrap();
    let first = reactor.after(LATER, || {}).unwrap();
    let (ours, _theirs) = unix();
    let options = StreamOptions::new().idle_timeout(Some(LATER));
    open(&mut reactor, options, ours, Script::new(&Log::new()));
    let last = reactor.after(LATER, || {}).unwrap();
    assert_eq!((reactor.stats().timers, last.to_bits() - first.to_bits()), (3, 2));
    let made_up = Key::from_bits(first.to_bits() + 1);
    assert_eq!(reactor.remove(made_up), Err(NotFound));
    assert_eq!(reactor.cancel(made_up), Err(NotFound));
    assert_eq!(reactor.reset(made_up, NOW), Err(NotFound));
    assert_eq!(reactor.stats().timers, 3);
}

scenarios! {
    a_key_of_the_reactors_own_timer_that_is_made_up_is_unknown,
    a_key_of_any_kind_is_removed_once,
    a_stream_that_is_removed_closes_gracefully,
    members_are_removed_from_their_group,
    a_handler_removes_itself_and_keeps_its_value_until_it_returns,
    made_up_keys_remove_nothing,
    a_destructor_that_panics_has_removed_its_value,
}
