//! Reactors with a ring: streams by completion, and descriptors by polls.

use std::{
    cell::RefCell,
    io::{Read, Write},
    rc::Rc,
};

use windlass::{
    Key, Turn,
    sim::{Faults, Sim},
    stream::{Input, Listener, Stream, StreamHandler},
};

use crate::{
    invariants::{transfer, whole},
    tools::{Log, address, calm, listen},
};

/// How many requests the rings of a simulation have got.
fn requests(sim: &Sim) -> usize {
    sim.trace().to_string().lines().filter(|line| line.contains("submit")).count()
}

#[test]
fn streams_and_listeners_use_the_ring_of_their_reactor() {
    for has_ring in [false, true] {
        let sim = calm();
        sim.set_ring(has_ring);
        let mut server = sim.reactor().unwrap();
        listen(&mut server, address("127.0.0.1:80"), &Log::new());
        sim.spawn(server);
        let mut client = sim.connect(address("127.0.0.1:80")).unwrap();
        let mut answer = [0; 5];
        for _ in 0..3 {
            client.write_all(b"hello").unwrap();
            client.read_exact(&mut answer).unwrap();
        }
        // The listener's poll, and then one for each wait of the stream for bytes.
        assert!(if has_ring { requests(&sim) >= 4 } else { requests(&sim) == 0 });
        assert_eq!(&answer, b"hello");
    }
}

#[test]
fn no_byte_is_lost_in_calm_weather() {
    let sim = calm();
    sim.set_ring(true);
    assert_eq!(transfer(&sim, 20, 100_000), 40);
}

#[test]
fn no_byte_is_lost_reordered_or_invented() {
    windlass::sim::check(|sim| {
        sim.set_ring(true);
        transfer(sim, 4, 30_000);
    })
    .seeds(200)
    .faults(whole(Faults::rough()))
    .twice()
    .run();
}

#[test]
fn no_byte_is_lost_reordered_or_invented_in_a_hostile_world() {
    windlass::sim::check(|sim| {
        sim.set_ring(true);
        transfer(sim, 3, 10_000);
    })
    .seeds(200)
    .faults(whole(Faults::hostile()))
    .run();
}

/// Notes the streams that have been opened.
struct Opened(Rc<RefCell<Vec<Key>>>);

impl StreamHandler for Opened {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        self.0.borrow_mut().push(stream.key());
    }

    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
}

/// The sockets take a part of each send of a turn. The rest is in completions, and the queue has
/// room for few of them: the others must be fetched before the sends are forgotten.
fn parts_of_sends(sim: &Sim) {
    const PEERS: usize = 30;
    sim.set_ring(true);
    let mut server = sim.builder().ring_entries(64, 4).build().unwrap();
    let opened: Rc<RefCell<Vec<Key>>> = Rc::default();
    let of_listener = Rc::clone(&opened);
    Listener::tcp(address("127.0.0.1:80"))
        .unwrap()
        .with_handler(move |_| Some(Opened(Rc::clone(&of_listener))))
        .register_into(&mut server)
        .unwrap();
    let remote = server.remote();
    sim.spawn(server);
    let connect = |_| sim.connect(address("127.0.0.1:80")).unwrap();
    let mut peers: Vec<_> = (0..PEERS).map(connect).collect();
    sim.run_until(|| opened.borrow().len() == PEERS).unwrap();
    let bytes: Vec<u8> = (0..3000_u32).map(|place| (place % 251) as u8).collect();
    let keys = opened.take();
    let sent = bytes.clone();
    let send = move |mut turn: Turn<'_>| {
        for key in keys {
            turn.stream(key).unwrap().send(&sent).unwrap();
        }
    };
    assert!(remote.try_post(send).is_ok());
    for peer in &mut peers {
        let mut received = vec![0; bytes.len()];
        peer.read_exact(&mut received).unwrap();
        assert_eq!(received, bytes);
    }
}

#[test]
fn parts_of_sends_whose_completions_overflow_are_not_lost() {
    windlass::sim::check(|sim| parts_of_sends(sim))
        .seeds(10)
        .faults(Faults { buffer_min: 1000, buffer_max: 1000, ..Faults::calm() })
        .run();
}
