//! Promises that hold under faults, for many seeds.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use windlass::{
    Key, Reactor, Tick, Turn, interest,
    sim::{Faults, Sim, SimFd, ThreadStep},
    stream::{Connector, ListenOptions, StreamOptions},
};
use windlass_testkit::ends::{Counts, End};

use crate::tools::{address, again};

/// Connections in both directions, between two hosts. Returns how many ends were clean.
pub(crate) fn transfer(sim: &Sim, connections: u8, longest: u64) -> usize {
    let counts = Rc::new(Counts::default());
    let len = || usize::try_from(sim.kernel().choose(longest)).unwrap();
    let lens: Rc<Vec<_>> = Rc::new((0..connections).map(|_| (len(), len())).collect());
    let options = StreamOptions::new()
        .idle_timeout(Some(Duration::from_secs(60)))
        .write_stall_timeout(Some(Duration::from_secs(60)))
        .watermarks(10_000, 60_000);
    let host = sim.host([10, 0, 0, 2].into());
    let mut server = Reactor::builder().sim(&host).build().unwrap();
    let (of_server, lens_of_server) = (Rc::clone(&counts), Rc::clone(&lens));
    again(|| ListenOptions::new().stream(options).tcp(address("10.0.0.2:80")))
        .with_handler(move |_| Some(End::new(None, &lens_of_server, &of_server)))
        .register_into(&mut server)
        .unwrap();
    sim.spawn(server);
    let mut client = sim.reactor().unwrap();
    for number in 0..connections {
        let connector = Connector::tcp(address("10.0.0.2:80")).stream(options);
        again(|| connector.connect(End::new(Some(number), &lens, &counts), &mut client));
    }
    sim.spawn(client);
    let total = usize::from(connections);
    sim.run_until(|| counts.clients_closed.get() == total).unwrap();
    sim.run_until(|| counts.opened.get() == counts.closed.get()).unwrap();
    counts.clean.get()
}

/// Without another owner of a socket, who ends its output behind the stream's back: the peer takes
/// a part for the whole then.
pub(crate) fn whole(faults: Faults) -> Faults {
    Faults { half_close: 0, ..faults }
}

#[test]
fn no_byte_is_lost_in_calm_weather() {
    let sim = Sim::new(1, Faults::calm());
    assert_eq!(transfer(&sim, 20, 100_000), 40);
}

#[test]
fn no_byte_is_lost_reordered_or_invented() {
    windlass::sim::check(|sim| assert_eq!(transfer(sim, 4, 30_000), 8, "an end that is not clean"))
        .seeds(200)
        .faults(whole(Faults::rough()))
        .run();
}

#[test]
fn no_byte_is_lost_reordered_or_invented_in_a_hostile_world() {
    windlass::sim::check(|sim| {
        transfer(sim, 3, 10_000);
    })
    .seeds(400)
    .faults(whole(Faults::hostile()))
    .run();
}

#[test]
fn timers_are_never_early() {
    windlass::sim::check(|sim| {
        let mut reactor = sim.reactor().unwrap();
        let (fired, begin) = (Rc::new(Cell::new(0)), sim.now());
        for _ in 0..20 {
            let span = Duration::from_nanos(1 + sim.kernel().choose(10_000_000_000));
            let counted = Rc::clone(&fired);
            let handler = move |mut turn: Turn<'_, _>| {
                assert!(turn.now() >= begin + span, "early");
                counted.set(counted.get() + 1);
            };
            reactor.after(span, handler).unwrap();
        }
        let late = |tick: Tick, mut turn: Turn<'_, _>| assert!(turn.now() >= tick.deadline);
        reactor.every(Duration::from_millis(37), late).unwrap();
        sim.spawn(reactor);
        sim.run_until(|| fired.get() == 20).unwrap();
    })
    .seeds(200)
    .faults(Faults::hostile())
    .run();
}

#[test]
fn no_handler_runs_after_its_deletion() {
    windlass::sim::check(|sim| {
        let mut reactor = sim.reactor().unwrap();
        let host = sim.host([10, 0, 0, 1].into());
        let keys: Rc<RefCell<Vec<Option<Key>>>> = Rc::default();
        let calls = Rc::new(Cell::new(0));
        for place in 0..8 {
            let counter = again(|| sim.eventfd(0));
            let (keys, calls) = (Rc::clone(&keys), Rc::clone(&calls));
            let (kernel, shared) = (sim.kernel().clone(), Rc::clone(&keys));
            let handler = move |fd: &mut SimFd, mut turn: Turn<'_, _>| {
                assert!(keys.borrow()[place].is_some(), "{place} was deleted");
                let _ = fd.read(&mut [0; 8]);
                calls.set(calls.get() + 1);
                let victim = usize::try_from(kernel.choose(16)).unwrap();
                let key = keys.borrow_mut().get_mut(victim).and_then(Option::take);
                if let Some(key) = key {
                    turn.delete(key).unwrap();
                }
            };
            let (fd, mut writes) = (counter.clone(), 0);
            let registration = interest().read().with_fd(counter).with_handler(handler);
            let key = registration.register_into(&mut reactor).unwrap();
            shared.borrow_mut().push(Some(key));
            sim.thread(&host, move || {
                writes += 1;
                let _ = fd.write(&1u64.to_ne_bytes());
                if writes == 20 {
                    ThreadStep::End
                } else {
                    ThreadStep::After(Duration::from_micros(3))
                }
            });
        }
        sim.spawn(reactor);
        sim.run_for(Duration::from_secs(1)).unwrap();
        assert!(calls.get() > 0);
    })
    .seeds(200)
    .faults(Faults::hostile())
    .run();
}
