//! Nodes that come and go all the time, by the seed: the lists of a node stay bounded, and become
//! those of the nodes that are there.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};

use windlass::sim::{self, Faults, Sim};
use windlass_server::bus::MemoryNetwork;

use crate::{
    bed::{LATE_MAX, Planned, Session, connect},
    cluster::{Member, carry, member},
    judge::{ROOM, payload},
};

/// The publishers that a node follows for a topic.
const PUBLISHERS_MAX: u64 = 256;

/// Nodes beside the first one that may be there at once.
const GUESTS_MAX: u64 = 4;

fn address(node: usize) -> SocketAddr {
    let [high, low] = u16::try_from(node).unwrap().to_be_bytes();
    ([10, 2, high, low], 80).into()
}

/// The first node stays, with a client of the room. So many others come one after the other. A
/// thread speaks at each of them, most have a client that leaves soon, and some end.
fn churn(sim: &Sim, nodes: usize) {
    let choose = |below: u64| sim.kernel().choose(below);
    // The clients of the nodes, and then the threads.
    let mut plans = vec![vec![Planned { is_for_room: true, len: 50 }]; 2 * nodes];
    plans[0].clear();
    let mut session = Session { plans, watchers: vec![0], ..Session::default() };
    session.gaps = Some(RefCell::default());
    let session = Rc::new(session);
    let network = MemoryNetwork::new(choose(1 << 32));
    let idle_us = Rc::new(Cell::new(5_000));
    carry(sim, &network, &idle_us);
    let start = |node: usize| member(sim, &session, &network, (node, address(node)));
    let first = start(0);
    let mut connections = vec![connect(sim, &session, 0..1, address(0))];
    sim.run_for(LATE_MAX).unwrap();
    let mut guests: Vec<Member> = Vec::new();
    for node in 1..nodes {
        let guest = start(node);
        if choose(4) > 0 {
            connections.push(connect(sim, &session, node..node + 1, address(node)));
        }
        let speaker = nodes + node;
        let bytes = payload(speaker, 0, true, session.plans[speaker][0].len);
        guest.running.sender().try_publish(ROOM, &bytes[..]).unwrap();
        sim.run_for(Duration::from_micros(1 + choose(20_000))).unwrap();
        guests.push(guest);
        while guests.len() as u64 > choose(GUESTS_MAX + 1) {
            let old = guests.remove(usize::try_from(choose(guests.len() as u64)).unwrap());
            old.running.stop();
            old.running.join().unwrap();
            assert!(old.bus.subjects().is_empty(), "a subscription of a node that has ended");
        }
        let stats = first.running.stats_handle().cluster_stats().unwrap();
        assert_eq!(stats.subscriptions, 1, "subscriptions of the first node");
        assert!(stats.publishers <= PUBLISHERS_MAX, "{} publishers", stats.publishers);
    }
    // Until the last clients have gone, and the time of their subscriptions has passed.
    sim.run_for(2 * LATE_MAX).unwrap();
    let heard = session.heard.borrow();
    let speaking = |(watcher, client): &(usize, usize)| (*watcher == 0).then_some(*client % nodes);
    let speaking: BTreeSet<usize> = heard.iter().filter_map(speaking).collect();
    assert!(speaking.len() > nodes / 2, "{} nodes are heard", speaking.len());
    let stats = first.running.stats_handle().cluster_stats().unwrap();
    // A node has two workers, which are publishers.
    let heard = speaking.len() as u64;
    let expected = PUBLISHERS_MAX.min(heard)..=PUBLISHERS_MAX.min(2 * heard);
    assert!(expected.contains(&stats.publishers), "{} publishers of {heard}", stats.publishers);
    assert_eq!(stats.subscriptions, 1, "subscriptions of the first node");
    for guest in &guests {
        let stats = guest.running.stats_handle().cluster_stats().unwrap();
        assert_eq!((stats.subscriptions, stats.publishers), (0, 0), "a list of a guest");
        assert!(guest.bus.subjects().is_empty(), "a subscription without a client");
    }
    idle_us.set(0);
}

#[test]
fn the_lists_of_a_node_are_those_of_the_nodes_that_are_there() {
    sim::check(|sim| churn(sim, 30)).seeds(6).faults(Faults::rough()).run();
}

#[test]
fn more_nodes_than_a_node_follows_leave_its_lists_bounded() {
    sim::check(|sim| churn(sim, 280)).seeds(1).faults(Faults::calm()).run();
}
