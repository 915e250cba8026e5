//! Reactors with a ring: streams by completion, and descriptors by polls.

use std::io::{Read, Write};

use windlass::sim::{Faults, Sim};

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
