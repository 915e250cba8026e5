//! Subscribers in and out: erased, boxed, taken back by type or by descriptor, and returned when
//! the reactor is taken apart.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    os::unix::net::UnixStream,
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{
    Backend, Event, Group, Interest, NotFound, Reactor, ReactorOps, Subscriber, Subscription,
    TakeError, Turn, interest,
    stream::{Connector, Listener, Peer, StreamOptions},
};

use crate::{
    Build,
    bed::{Log, NOW, Noted, Shared, counter, drain, edge, noting, readable, ready, ring, run_dry},
    script::{Script, tcp},
};

struct ByHand {
    fd: Shared,
    log: Log<&'static str>,
    name: &'static str,
}

impl Subscriber for ByHand {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn interest(&self) -> Interest {
        readable()
    }

    fn handle(&mut self, _: Event, _: Turn<'_>) {
        drain(&self.fd);
        self.log.note(self.name);
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        self.log.note("dropped");
    }
}

fn by_hand(log: &Log<&'static str>, name: &'static str) -> ByHand {
    ByHand { fd: ready(), log: log.clone(), name }
}

fn a_subscriber_is_taken_back_by_its_type(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let key = reactor.add(by_hand(&log, "fired")).unwrap();
    reactor.run_once(None).unwrap();
    let back: ByHand = reactor.take(key).unwrap();
    assert_eq!(log.take(), ["fired"], "not dropped");
    ring(&back.fd);
    assert_eq!(run_dry(&mut reactor), 0);
    assert_eq!(reactor.delete(key), Err(NotFound));
    let again = reactor.add(back).expect("its number is free");
    assert_ne!(again, key);
    assert_eq!(run_dry(&mut reactor), 1);
}

fn a_wrong_type_leaves_it_registered(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let key = reactor.add(by_hand(&log, "fired")).unwrap();
    assert_eq!(reactor.take::<Box<dyn Subscriber>>(key).err(), Some(TakeError::WrongType));
    assert_eq!(
        reactor.take_fd::<Shared>(key).err(),
        Some(TakeError::WrongType),
        "it was not made by with_fd"
    );
    let built = noting(&mut reactor, &ready(), &log, "built");
    assert_eq!(reactor.take_fd::<UnixStream>(built).err(), Some(TakeError::WrongType));
    assert_eq!(reactor.take::<ByHand>(built).err(), Some(TakeError::WrongType));
    assert_eq!(run_dry(&mut reactor), 2);
    let mut notes = log.take();
    notes.sort_unstable();
    assert_eq!(notes, ["built", "fired"]);
    assert_eq!(std::io::Error::from(TakeError::WrongType).kind(), std::io::ErrorKind::InvalidInput);
}

fn a_descriptor_is_taken_back_open_and_its_handler_dropped(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = Noted(log.clone(), "handler");
    let handler = move || {
        let _ = &noted;
    };
    let key = edge(&reactor, interest().read()).with_fd(counter(3)).with_handler(handler);
    let key = key.register_into(&mut reactor).unwrap();
    let fd: OwnedFd = reactor.take_fd(key).unwrap();
    assert_eq!(log.take(), ["handler"]);
    assert_eq!(drain(&fd), 3, "open");
    assert_eq!(reactor.take_fd::<OwnedFd>(key).err(), Some(TakeError::NotFound));
}

fn a_boxed_subscriber_goes_in_and_comes_back(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let boxed: Box<dyn Subscriber> = Box::new(by_hand(&log, "fired"));
    let address = (&raw const *boxed).addr();
    let key = reactor.add(boxed).unwrap();
    assert_eq!(run_dry(&mut reactor), 1);
    let back = reactor.take_boxed(key).unwrap();
    assert_eq!((&raw const *back).addr(), address, "the very box");
    assert_eq!(log.take(), ["fired"]);
    let key = reactor.add(back).unwrap();
    let typed: Box<dyn Subscriber> = reactor.take(key).expect("a box is its type");
    drop(typed);
    assert_eq!(log.take(), ["dropped"]);
}

fn a_boxed_registration_gives_its_descriptor_back(build: Build) {
    let mut reactor = build().build().unwrap();
    let fd = ready();
    let registration = readable().with_fd(fd.clone()).with_handler(|fd: &mut Shared| _ = drain(fd));
    let boxed = registration.into_subscription::<Reactor, _>().into_boxed();
    let key = reactor.add(boxed).unwrap();
    assert_eq!(run_dry(&mut reactor), 1);
    assert!(Rc::ptr_eq(&reactor.take_fd::<Shared>(key).unwrap(), &fd));
}

fn an_unboxed_subscriber_comes_back_in_a_box(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let key = reactor.add(by_hand(&log, "fired")).unwrap();
    let boxed = reactor.take_boxed(key).unwrap();
    assert_eq!((boxed.interest(), drain(boxed.fd()), log.len()), (readable(), 1, 0));
    drop(boxed);
    assert_eq!(log.take(), ["dropped"]);
}

fn a_subscription_is_what_it_was_made_of(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let subscriber = by_hand(&log, "fired");
    let number = std::os::fd::AsRawFd::as_raw_fd(&subscriber.fd);
    let subscription = Subscription::<Reactor>::new(subscriber);
    assert_eq!((subscription.fd(), subscription.interest()), (number, readable()));
    let subscription =
        subscription.into_inner::<Box<dyn Subscriber>>().err().expect("it is another type");
    let key = reactor.add_cell(subscription).unwrap();
    assert_eq!(run_dry(&mut reactor), 1);
    assert_eq!(log.take(), ["fired"]);
    let boxed = reactor.take_boxed(key).unwrap();
    let subscription = Subscription::from_boxed(boxed);
    let boxed = subscription.into_inner::<Box<dyn Subscriber>>().expect("it was boxed");
    let subscription = Subscription::<Reactor>::new(boxed);
    drop(subscription);
    assert_eq!(log.take(), ["dropped"], "dropping a subscription drops what is in it");
    let back = Subscription::<Reactor>::new(by_hand(&log, "back")).into_inner::<ByHand>().unwrap();
    assert_eq!((back.name, log.len()), ("back", 0));
}

fn a_refused_erased_subscription_comes_back_whole(build: Build) {
    let mut reactor = build().subscribers_max(1).build().unwrap();
    let log = Log::new();
    reactor.add(by_hand(&log, "first")).unwrap();
    let error = reactor.add_cell(Subscription::new(by_hand(&log, "second"))).unwrap_err();
    let back = error.subscriber.into_inner::<ByHand>().unwrap();
    assert_eq!((back.name, log.len()), ("second", 0));
}

fn a_member_of_a_group_is_not_taken(build: Build) {
    let mut reactor = build().build().unwrap();
    let registered = Group::new(())
        .fd(readable(), ready(), |(): &mut (), fd: &mut Shared| _ = drain(fd))
        .register_into(&mut reactor);
    let key = registered.unwrap().members[0];
    assert_eq!(reactor.take_fd::<Shared>(key).err(), Some(TakeError::InGroup));
    assert_eq!(reactor.take_boxed(key).err(), Some(TakeError::InGroup));
    assert_eq!(run_dry(&mut reactor), 1);
}

fn a_reactor_taken_apart_gives_all_subscribers_and_drops_the_rest(build: Build) {
    let mut reactor = build().build().unwrap();
    let (log, rest) = (Log::new(), Log::new());
    let a = reactor.add(by_hand(&log, "a")).unwrap();
    let gone = reactor.add(by_hand(&log, "gone")).unwrap();
    let b = reactor.add(by_hand(&log, "b")).unwrap();
    reactor.delete(gone).unwrap();
    log.take();
    let [timer, closure, hook, state] =
        ["timer", "closure", "hook", "state"].map(|name| Noted(rest.clone(), name));
    reactor.after(Duration::from_secs(1), keep(timer)).unwrap();
    let mut closure = keep(closure);
    reactor.defer(move |_: Turn<'_, _>| closure()).unwrap();
    let mut hook = keep(hook);
    reactor.after_turn(move |_: Turn<'_, _>| hook()).unwrap();
    Group::new(state)
        .fd(readable(), ready(), |_: &mut Noted<&str>| {})
        .register_into(&mut reactor)
        .unwrap();

    let mut subscribers = reactor.into_subscribers();
    let mut dropped = rest.take();
    dropped.sort_unstable();
    assert_eq!(dropped, ["closure", "hook", "state", "timer"]);
    assert_eq!(log.len(), 0);
    subscribers.sort_by_key(|(key, _)| *key != a);
    let keys: Vec<_> = subscribers.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, [a, b], "with the keys they had");

    // They continue in another reactor.
    let mut next = build().build().unwrap();
    for (_, subscriber) in subscribers {
        next.add(subscriber).unwrap();
    }
    assert_eq!(run_dry(&mut next), 2);
    let mut notes = log.take();
    notes.sort_unstable();
    assert_eq!(notes, ["a", "b"]);

    fn keep(noted: Noted<&'static str>) -> impl FnMut() {
        move || {
            let _ = &noted;
        }
    }
}

// Taken out between turns, while its event is in a batch that a panic interrupted.
fn one_that_is_taken_out_and_added_again_does_not_get_its_kept_event(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let keys: Vec<_> = (0..2)
        .map(|place| {
            let log = log.clone();
            let handler = move |fd: &mut Shared| {
                drain(fd);
                log.note(place);
                panic!("whoever is first");
            };
            readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap()
        })
        .collect();
    crate::bed::panic_of(|| reactor.run_once(None));
    let kept = keys[1 - log.take()[0]];
    let fd: Shared = reactor.take_fd(kept).unwrap();
    drain(&fd);
    noting(&mut reactor, &fd, &log, 2);
    assert_eq!(reactor.run_once(None).unwrap(), 1, "an event for nobody");
    assert_eq!(log.len(), 0);
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
}

// Without `map_err`: `?` needs errors that are `Send` and `Sync`, and no handler here is.
fn every_refusal_goes_into_an_error_of_any_kind(build: Build) {
    let kept = Rc::new(());
    let mut reactor = build().subscribers_max(1).timers_max(1).deferred_max(1).build().unwrap();
    noting(&mut reactor, &ready(), &Log::new(), "it takes the place");
    reactor.after(Duration::from_secs(60), || {}).unwrap();
    reactor.defer(|_| ()).unwrap();
    let reactor = &mut reactor;
    let mut refusals = Vec::new();
    let mut note = |refused: anyhow::Result<()>| refusals.push(refused.unwrap_err().to_string());
    let holding = || {
        let kept = kept.clone();
        move || drop(kept.clone())
    };
    let in_turn = || {
        let kept = kept.clone();
        move |_: Turn<'_>| drop(kept.clone())
    };
    note((|| {
        readable().with_fd(ready()).with_handler(holding()).register_into(reactor)?;
        Ok(())
    })());
    note((|| {
        reactor.add(ByHand { fd: ready(), log: Log::new(), name: "by hand" })?;
        Ok(())
    })());
    let timers: [fn(&mut Reactor, Box<dyn FnMut(Turn<'_>)>) -> anyhow::Result<()>; 3] = [
        |reactor, handler| {
            reactor.after_with(NOW, handler)?;
            Ok(())
        },
        |reactor, handler| {
            reactor.at_with(Instant::now(), handler)?;
            Ok(())
        },
        |reactor, handler| {
            reactor.every_with(Duration::from_secs(1), handler)?;
            Ok(())
        },
    ];
    timers.iter().for_each(|start| note(start(reactor, Box::new(in_turn()))));
    note((|| Ok(reactor.defer(in_turn())?))());
    note((|| {
        Group::new(kept.clone()).after(NOW, |_: &mut Rc<()>| {}).register_into(reactor)?;
        Ok(())
    })());
    let log = Log::new();
    let options = StreamOptions::new();
    note((|| {
        options.with_fd(tcp().0).with_handler(Script::new(&log)).register_into(reactor)?;
        Ok(())
    })());
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    note((|| {
        Connector::tcp(address).connect(Script::new(&log), reactor)?;
        Ok(())
    })());
    let accept = move |_: &Peer<'_>| Some(Script::new(&log));
    note((|| {
        listener.with_handler(accept).register_into(reactor)?;
        Ok(())
    })());
    assert_eq!(refusals.len(), 10);
    assert!(refusals.iter().all(|refusal| refusal.contains("as many")), "{refusals:?}");
    assert_eq!(Rc::strong_count(&kept), 1, "what was rejected is dropped");
}

// A reactor that is rejected is dropped as well.
fn a_reactor_that_cannot_be_embedded_is_an_error_of_any_kind(build: Build) {
    let embed = || -> anyhow::Result<()> {
        build().build()?.embed()?;
        Ok(())
    };
    let is_refused = build().build().unwrap().backend() == Backend::Poll;
    assert_eq!(embed().is_err(), is_refused);
}

scenarios! {
    every_refusal_goes_into_an_error_of_any_kind,
    a_reactor_that_cannot_be_embedded_is_an_error_of_any_kind,
    a_subscriber_is_taken_back_by_its_type,
    a_wrong_type_leaves_it_registered,
    a_descriptor_is_taken_back_open_and_its_handler_dropped,
    a_boxed_subscriber_goes_in_and_comes_back,
    a_boxed_registration_gives_its_descriptor_back,
    an_unboxed_subscriber_comes_back_in_a_box,
    a_subscription_is_what_it_was_made_of,
    a_refused_erased_subscription_comes_back_whole,
    a_member_of_a_group_is_not_taken,
    a_reactor_taken_apart_gives_all_subscribers_and_drops_the_rest,
    one_that_is_taken_out_and_added_again_does_not_get_its_kept_event,
}
