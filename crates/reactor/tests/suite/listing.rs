//! The names of registrations, and the listing of all of them.

use std::{os::fd::AsRawFd, time::Duration};

use windlass::{
    Event, Group, Key, NAME_LEN_MAX, NotFound, Reactor, RegistrationInfo, RegistrationKind,
    Schedule, Turn, interest,
    stream::{Input, Listener, Stream, StreamHandler, StreamOptions},
};

use crate::{
    Build,
    bed::{NOW, Shared, counter, drain, idle, pair, panic_of, readable, ready, slot},
};

const LATER: Duration = Duration::from_secs(1000);

/// A stream that does nothing.
struct Quiet;

impl StreamHandler for Quiet {
    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
}

/// What the listing says of a key.
fn listed(reactor: &Reactor, key: Key) -> Option<RegistrationInfo<'_>> {
    let mut all = reactor.registrations().filter(|one| one.key == key);
    let found = all.next();
    assert_eq!(all.next(), None, "it is listed once");
    found
}

fn name_of(reactor: &Reactor, key: impl Into<Key>) -> Option<&str> {
    listed(reactor, key.into()).and_then(|one| one.name)
}

fn registrations_of_every_kind_are_listed(build: Build) {
    let mut reactor = build().build().unwrap();
    assert_eq!(reactor.registrations().count(), 0, "the reactor's own wake is not listed");
    let (fd, member, (socket, _peer)) = (idle(), idle(), pair());
    let (number, of_member, of_stream) = (fd.as_raw_fd(), member.as_raw_fd(), socket.as_raw_fd());
    let wanted = interest().read().priority();
    let descriptor = wanted.with_fd(fd).with_handler(|| {}).register_into(&mut reactor).unwrap();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listener.with_handler(|_| Some(Quiet)).register_into(&mut reactor).unwrap();
    let stream = StreamOptions::new().with_fd(socket).with_handler(Quiet);
    let stream = stream.register_into(&mut reactor).unwrap();
    let timer = reactor.after(LATER, || {}).unwrap();
    let group = Group::new(())
        .fd(readable(), member, |(): &mut ()| {})
        .every(LATER, |(): &mut ()| {})
        .register_into(&mut reactor)
        .unwrap();
    let key = group.group.key();

    let said: Vec<_> =
        reactor.registrations().map(|one| (one.key, one.kind, one.fd, one.group)).collect();
    let listener_fd = listed(&reactor, listener.key()).unwrap().fd;
    assert!(listener_fd.is_some());
    assert_eq!(
        said,
        [
            (descriptor, RegistrationKind::Descriptor, Some(number), None),
            (group.members[0], RegistrationKind::Descriptor, Some(of_member), Some(key)),
            (listener.key(), RegistrationKind::Listener, listener_fd, None),
            (stream, RegistrationKind::Stream, Some(of_stream), None),
            (timer, RegistrationKind::Timer, None, None),
            (group.members[1], RegistrationKind::Timer, None, Some(key)),
            (key, RegistrationKind::Group, None, None),
        ]
    );
    assert_eq!(listed(&reactor, descriptor).unwrap().interest, Some(wanted));
    assert!(listed(&reactor, stream).unwrap().interest.is_some());
    assert_eq!(listed(&reactor, timer).unwrap().interest, None);

    reactor.modify(descriptor, interest()).unwrap();
    assert_eq!(listed(&reactor, descriptor).unwrap().interest, Some(interest()));
    // The key of each of them is one that `remove` takes.
    let keys: Vec<Key> = reactor.registrations().map(|one| one.key).collect();
    for key in keys {
        let is_stale = listed(&reactor, key).is_none();
        assert_eq!(reactor.remove(key).is_err(), is_stale, "{key:?}");
    }
    while reactor.stats().subscribers > 0 {
        reactor.run_once(LATER).unwrap();
    }
    assert_eq!(reactor.registrations().count(), 0);
}

fn every_kind_takes_a_name_and_loses_it(build: Build) {
    let mut reactor = build().build().unwrap();
    let (socket, _peer) = pair();
    let tx = readable().with_fd(idle()).with_handler(|| {}).with_name("net0 tx");
    assert!(format!("{tx:?}").contains("net0 tx"), "{tx:?}");
    let tx = tx.register_into(&mut reactor).unwrap();
    let timer = Schedule::After(LATER).with_handler(|| {}).with_name("flush");
    assert!(format!("{timer:?}").contains("flush"), "{timer:?}");
    let timer = timer.register_into(&mut reactor).unwrap();
    let group = Group::new(())
        .with_member_name("none was added yet")
        .with_name("net1")
        .every(LATER, |(): &mut ()| {})
        .with_member_name("net1 statistics")
        .fd(readable(), idle(), |(): &mut ()| {});
    assert!(format!("{group:?}").contains("net1 statistics"), "{group:?}");
    let group = group.register_into(&mut reactor).unwrap();
    let stream = StreamOptions::new().with_fd(socket).with_handler(Quiet);
    let stream = stream.register_into(&mut reactor).unwrap();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listener.with_handler(|_| Some(Quiet)).register_into(&mut reactor).unwrap();
    reactor.set_name(stream, "monitor").unwrap();
    reactor.set_name(listener, "monitors").unwrap();

    assert_eq!(name_of(&reactor, tx), Some("net0 tx"));
    assert_eq!(name_of(&reactor, timer), Some("flush"));
    assert_eq!(name_of(&reactor, group.group), Some("net1"));
    assert_eq!(name_of(&reactor, group.members[0]), Some("net1 statistics"));
    assert_eq!(name_of(&reactor, group.members[1]), None);
    assert_eq!(name_of(&reactor, stream), Some("monitor"));
    assert_eq!(name_of(&reactor, listener), Some("monitors"));
    let shown = format!("{:?}", listed(&reactor, tx).unwrap());
    assert!(shown.contains("net0 tx"), "{shown}");

    for key in [tx, timer, group.members[1], group.group.key(), stream, listener.key()] {
        reactor.set_name(key, "another").unwrap();
        assert_eq!(name_of(&reactor, key), Some("another"));
        reactor.set_name(key, "").unwrap();
        assert_eq!(name_of(&reactor, key), None);
    }
    let long = "x".repeat(NAME_LEN_MAX + 1);
    reactor.set_name(tx, &long).unwrap();
    assert_eq!(name_of(&reactor, tx), Some(&long[1..]));

    let stale = reactor.after(LATER, || {}).unwrap();
    reactor.cancel(stale).unwrap();
    assert_eq!(reactor.set_name(stale, "stale"), Err(NotFound));
    assert_eq!(reactor.set_name(Key::from_bits(7 << 32), "none"), Err(NotFound));
}

/// Ends what a key names, and registers one more of its kind in the same slot.
fn name_of_next(
    reactor: &mut Reactor,
    start: impl Fn(&mut Reactor) -> Key,
    end: impl Fn(&mut Reactor, Key),
) -> Option<String> {
    let first = start(reactor);
    reactor.set_name(first, "first").unwrap();
    end(reactor, first);
    assert_eq!(reactor.set_name(first, "late"), Err(NotFound));
    let second = start(reactor);
    assert_eq!(first.to_bits() as u32, second.to_bits() as u32, "they share a slot");
    let name = name_of(reactor, second).map(str::to_owned);
    reactor.remove(second).unwrap();
    name
}

fn a_name_goes_with_what_it_names(build: Build) {
    let mut reactor = build().build().unwrap();
    let descriptor = |reactor: &mut Reactor| {
        let handler = |event: Event, mut turn: Turn<'_>| turn.delete(event.key()).unwrap();
        readable().with_fd(ready()).with_handler(handler).register_into(reactor).unwrap()
    };
    let removed = |reactor: &mut Reactor, key| reactor.remove(key).unwrap();
    let run = |reactor: &mut Reactor, _| _ = reactor.run_once(None).unwrap();
    assert_eq!(name_of_next(&mut reactor, descriptor, removed), None);
    assert_eq!(name_of_next(&mut reactor, descriptor, run), None, "it deletes itself");
    let taken = |reactor: &mut Reactor, key| drop(reactor.take_boxed(key).unwrap());
    assert_eq!(name_of_next(&mut reactor, descriptor, taken), None);

    let panics = |reactor: &mut Reactor| {
        let handler = |event: Event, mut turn: Turn<'_>| {
            turn.delete(event.key()).unwrap();
            panic!("handler");
        };
        readable().with_fd(ready()).with_handler(handler).register_into(reactor).unwrap()
    };
    let caught = |reactor: &mut Reactor, _| {
        assert_eq!(panic_of(|| reactor.run_once(None)), "handler");
        reactor.run_once(NOW).unwrap();
    };
    assert_eq!(name_of_next(&mut reactor, panics, caught), None);

    let timer = |reactor: &mut Reactor| reactor.after(NOW, || {}).unwrap();
    let fired = |reactor: &mut Reactor, _| {
        while reactor.stats().timers > 0 {
            reactor.run_once(None).unwrap();
        }
    };
    assert_eq!(name_of_next(&mut reactor, timer, removed), None);
    assert_eq!(name_of_next(&mut reactor, timer, fired), None);

    let group = |reactor: &mut Reactor| {
        let group = Group::new(()).after(LATER, |(): &mut ()| {});
        group.register_into(reactor).unwrap().group.key()
    };
    assert_eq!(name_of_next(&mut reactor, group, removed), None);
}

fn a_destructor_that_panics_takes_the_name_along(build: Build) {
    let mut reactor = build().build().unwrap();
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("destructor");
        }
    }
    let bomb = |reactor: &mut Reactor| {
        let bomb = Bomb;
        let handler = move |_: &mut Shared| _ = &bomb;
        readable().with_fd(idle()).with_handler(handler).register_into(reactor).unwrap()
    };
    let first = bomb(&mut reactor);
    reactor.set_name(first, "first").unwrap();
    assert_eq!(panic_of(|| reactor.delete(first)), "destructor");
    let handler = |_: &mut Shared| {};
    let next = readable().with_fd(idle()).with_handler(handler).register_into(&mut reactor);
    assert_eq!(name_of(&reactor, next.unwrap()), None);
}

fn a_rejected_registration_keeps_its_name(build: Build) {
    let mut reactor = build().subscribers_max(1).build().unwrap();
    let first = readable().with_fd(counter(0)).with_handler(|| {}).with_name("first");
    let first = first.register_into(&mut reactor).unwrap();
    let second = readable().with_fd(counter(0)).with_handler(|| {}).with_name("second");
    let second = second.try_register_into(&mut reactor).unwrap_err().subscriber;
    let group = Group::new(()).with_name("group").fd(readable(), idle(), |(): &mut ()| {});
    let group = group.with_member_name("member").try_register_into(&mut reactor).unwrap_err().group;
    reactor.delete(first).unwrap();
    let second = second.register_into(&mut reactor).unwrap();
    assert_eq!(name_of(&reactor, second), Some("second"));
    reactor.delete(second).unwrap();
    let group = group.register_into(&mut reactor).unwrap();
    assert_eq!(name_of(&reactor, group.group), Some("group"));
    assert_eq!(name_of(&reactor, group.members[0]), Some("member"));
}

fn a_handler_lists_and_names_too(build: Build) {
    let mut reactor = build().build().unwrap();
    let told = slot();
    let telling = told.clone();
    let handler = move |fd: &mut Shared, event: Event, mut turn: Turn<'_>| {
        drain(fd);
        turn.set_name(event.key(), "running").unwrap();
        let count = turn.registrations().filter(|one| one.name == Some("running")).count();
        turn.delete(event.key()).unwrap();
        let left = turn.registrations().count();
        telling.set(Some((count, left)));
    };
    readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(told.get(), Some((1, 0)));
}

fn the_watchdog_tells_whose_handler_was_the_slowest(build: Build) {
    fn busy(span: Duration) {
        let start = std::time::Instant::now();
        while start.elapsed() < span {}
    }
    let mut reactor = build().watchdog(true).build().unwrap();
    assert_eq!(reactor.slowest_handler(), None);
    let slow = |fd: &mut Shared| {
        drain(fd);
        busy(Duration::from_millis(5));
    };
    let slow = readable().with_fd(ready()).with_handler(slow).with_name("slow");
    slow.register_into(&mut reactor).unwrap();
    let quick = |fd: &mut Shared| _ = drain(fd);
    let quick = readable().with_fd(ready()).with_handler(quick).with_name("quick");
    quick.register_into(&mut reactor).unwrap();
    while reactor.run_once(NOW).unwrap() > 0 {}
    assert_eq!(reactor.slowest_handler().unwrap().name, Some("slow"));
    let longer = reactor.stats().handler_max * 2;
    let timer = Schedule::After(NOW).with_handler(move || busy(longer)).with_name("timer");
    let timer = timer.register_into(&mut reactor).unwrap();
    while reactor.stats().timers_fired == 0 {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(reactor.slowest_handler(), None, "{timer:?} has ended");
    // The cell of a stream has a key that is not the user's.
    struct Slow(Duration);
    impl StreamHandler for Slow {
        fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {
            busy(self.0);
        }
    }
    let (socket, mut peer) = pair();
    let longer = reactor.stats().handler_max * 2;
    let stream = StreamOptions::new().with_fd(socket).with_handler(Slow(longer));
    let stream = stream.register_into(&mut reactor).unwrap();
    std::io::Write::write_all(&mut peer, b"hello").unwrap();
    while reactor.stats().handler_max < longer {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(reactor.slowest_handler().unwrap().key, stream);
}

fn timers_of_the_reactors_own_are_not_listed(build: Build) {
    let mut reactor = build().build().unwrap();
    let (socket, _peer) = pair();
    let options = StreamOptions::new().idle_timeout(Some(LATER));
    let stream = options.with_fd(socket).with_handler(Quiet).register_into(&mut reactor).unwrap();
    reactor.run_once(NOW).unwrap();
    reactor.run_once(NOW).unwrap();
    assert_eq!(reactor.stats().timers, 1, "the one of all streams with timeouts");
    let keys: Vec<Key> = reactor.registrations().map(|one| one.key).collect();
    assert_eq!(keys, [stream]);
}

fn members_of_a_paused_group_are_listed_with_it(build: Build) {
    let mut reactor = build().build().unwrap();
    let group = Group::new(()).fd(readable(), idle(), |(): &mut ()| {});
    let group = group.every(LATER, |(): &mut ()| {}).register_into(&mut reactor).unwrap();
    reactor.pause_group(group.group).unwrap();
    for member in group.members {
        assert_eq!(listed(&reactor, member).unwrap().group, Some(group.group.key()));
    }
}

scenarios! {
    timers_of_the_reactors_own_are_not_listed,
    members_of_a_paused_group_are_listed_with_it,
    registrations_of_every_kind_are_listed,
    every_kind_takes_a_name_and_loses_it,
    a_name_goes_with_what_it_names,
    a_destructor_that_panics_takes_the_name_along,
    a_rejected_registration_keeps_its_name,
    a_handler_lists_and_names_too,
    the_watchdog_tells_whose_handler_was_the_slowest,
}
