//! Listeners that their own closures let rest.

use std::{cell::Cell, time::Duration};

use windlass::{Reactor, stream::Listener};

use crate::{
    Build,
    bed::{HandClock, Log, run_dry},
    script::{Peer, Script, until, until_subscribers},
    streams_listeners::{address, anywhere, connect},
};

fn the_closure_lets_its_listener_rest(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let log = Log::new();
    let listener = Listener::tcp(anywhere()).unwrap();
    let (to, noted) = (address(&listener), log.clone());
    // Every second connection is rejected. It has the same effect.
    let count = Cell::new(0);
    let accept = move |peer: &windlass::stream::Peer<'_>| {
        peer.rest_listener(Duration::from_secs(10));
        (count.replace(count.get() + 1) % 2 == 0).then(|| Script::echo(&noted))
    };
    let key = listener.register(accept, &mut reactor).unwrap();
    let mut peers: Vec<Peer> = (0..3).map(|_| connect(to)).collect();
    let seen = |reactor: &mut Reactor| {
        // The timer that ends a rest is no event, and the listener is watched in the next turn.
        (0..4).for_each(|_| _ = run_dry(reactor));
        let listening = reactor.listener(key).unwrap();
        (listening.accepted(), listening.refused())
    };
    until(&mut reactor, &log, 1);
    assert_eq!(seen(&mut reactor), (1, 0), "the others wait in the backlog");
    // A connection that ends does not shorten the rest.
    drop(peers.remove(0));
    until_subscribers(&mut reactor, 1);
    clock.advance(Duration::from_secs(9));
    assert_eq!(seen(&mut reactor), (1, 0));
    clock.advance(Duration::from_secs(1));
    assert_eq!(seen(&mut reactor), (1, 1));
    clock.advance(Duration::from_secs(10));
    assert_eq!(seen(&mut reactor), (2, 1));
    assert_eq!(reactor.listener(key).unwrap().rests(), 0, "it lacks no resource");
}

scenarios! {
    #[cfg_attr(miri, ignore = "sockets")]
    the_closure_lets_its_listener_rest,
}
