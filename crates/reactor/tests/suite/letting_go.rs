//! When `delete` returns, the registration no longer holds its file. This is tested in a handler
//! and outside a turn.

use std::{
    io::{ErrorKind, Read as _},
    net::TcpListener,
    os::unix::net::UnixStream,
};

use windlass::{Interest, Key, Reactor, Turn, interest};

use crate::{
    Build,
    bed::{Log, NOW, Shared, drain, edge, pair, readable, ready, run_dry},
};

const MANNERS: [fn(&Reactor) -> Interest; 3] =
    [|_| readable(), |_| readable().one_shot(), |reactor| edge(reactor, readable())];

/// A registered stream, which the backend watches from now on, and its peer.
fn watched(reactor: &mut Reactor, manner: Interest) -> (Key, UnixStream) {
    let (ours, peer) = pair();
    let key = manner.with_fd(ours).with_handler(|| {}).register_into(reactor).unwrap();
    run_dry(reactor);
    (key, peer)
}

fn is_at_its_end(peer: &mut UnixStream) -> bool {
    match peer.read(&mut [0; 8]) {
        Ok(0) => true,
        Err(e) if e.kind() == ErrorKind::WouldBlock => false,
        other => panic!("{other:?}"),
    }
}

fn a_peer_sees_the_end_within_the_handler_that_deletes(build: Build) {
    for manner in MANNERS {
        let mut reactor = build().build().unwrap();
        let manner = manner(&reactor);
        let (key, mut peer) = watched(&mut reactor, manner);
        let log = Log::new();
        let noted = log.clone();
        let handler = move |fd: &mut Shared, mut turn: Turn<'_, Reactor>| {
            drain(fd);
            let before = is_at_its_end(&mut peer);
            turn.delete(key).unwrap();
            noted.note((before, is_at_its_end(&mut peer)));
        };
        readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
        assert_eq!(reactor.run_once(NOW).unwrap(), 1);
        assert_eq!(log.take(), [(false, true)], "{manner:?}");
    }
}

/// A registration that a handler changed in the same turn does not hold its file either.
fn a_peer_sees_the_end_of_one_that_was_changed_before_it_was_deleted(build: Build) {
    let mut reactor = build().build().unwrap();
    for last in
        [interest(), interest().write(), readable().write(), readable().priority(), readable()]
    {
        let (key, mut peer) = watched(&mut reactor, readable());
        let log = Log::new();
        let noted = log.clone();
        let handler = move |mut turn: Turn<'_, Reactor>| {
            for change in [readable().write(), last] {
                turn.modify(key, change).unwrap();
            }
            turn.delete(key).unwrap();
            noted.note(is_at_its_end(&mut peer));
        };
        reactor.defer(handler).map_err(drop).unwrap();
        reactor.run_once(NOW).unwrap();
        assert_eq!(log.take(), [true], "{last:?}");
        // The same after the interest was extended and reduced again, in turns of their own.
        let (key, mut peer) = watched(&mut reactor, readable());
        for change in [readable().write(), last, readable(), readable().write(), last] {
            reactor.modify(key, change).unwrap();
            reactor.run_once(NOW).unwrap();
        }
        reactor.delete(key).unwrap();
        assert!(is_at_its_end(&mut peer), "{last:?}");
    }
}

fn a_deleted_listeners_port_can_be_bound_in_the_same_handler(build: Build) {
    let mut reactor = build().build().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let key = readable().with_fd(listener).with_handler(|| {}).register_into(&mut reactor).unwrap();
    run_dry(&mut reactor);
    let log = Log::new();
    let noted = log.clone();
    let handler = move |mut turn: Turn<'_, Reactor>| {
        turn.delete(key).unwrap();
        noted.note(TcpListener::bind(address).map(drop).map_err(|e| e.kind()));
    };
    reactor.defer(handler).map_err(drop).unwrap();
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), [Ok(())]);
}

/// A subscriber that deletes itself is dropped when its handler has returned (rule 1).
fn a_peer_sees_the_end_of_one_that_has_deleted_itself_within_the_turn(build: Build) {
    for manner in MANNERS {
        let mut reactor = build().build().unwrap();
        let manner = manner(&reactor);
        let (mut ours, mut peer) = pair();
        let noted = Log::new();
        let log = noted.clone();
        std::io::Write::write_all(&mut peer, b"!").unwrap();
        // Read first, because a close with unread input would be a reset.
        ours.read_exact(&mut [0]).unwrap();
        std::io::Write::write_all(&mut ours, b"!").unwrap();
        let handler =
            move |stream: &mut UnixStream, event: windlass::Event, mut turn: Turn<'_, Reactor>| {
                let _ = stream.read(&mut [0; 8]);
                turn.delete(event.key()).unwrap();
                let (mut peer, noted) = (peer.try_clone().unwrap(), noted.clone());
                let look = move |_: Turn<'_, Reactor>| {
                    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 1);
                    noted.note(is_at_its_end(&mut peer));
                };
                turn.defer(look).map_err(drop).unwrap();
            };
        manner.write().with_fd(ours).with_handler(handler).register_into(&mut reactor).unwrap();
        reactor.run_once(None).unwrap();
        assert_eq!(log.take(), [true], "{manner:?}");
    }
}

scenarios! {
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    a_peer_sees_the_end_within_the_handler_that_deletes,
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    a_peer_sees_the_end_of_one_that_was_changed_before_it_was_deleted,
    #[cfg_attr(miri, ignore = "Miri's TCP is not the kernel's")]
    a_deleted_listeners_port_can_be_bound_in_the_same_handler,
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    a_peer_sees_the_end_of_one_that_has_deleted_itself_within_the_turn,
}
