//! Nodes on a bus in memory, whose connections break, and which come and go.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};

use windlass::sim::{self, Faults, Sim, ThreadStep};
use windlass_server::{
    RunningServer,
    bus::{Cluster, MemoryBus, MemoryNetwork},
};

use crate::{
    bed::{LATE_MAX, Session, connect, options},
    judge::{ROOM, payload},
    workers::start,
};

const NODES: usize = 3;
/// Clients of each node. The first of them stays until the end.
const CLIENTS: usize = 3;

fn address(node: usize) -> SocketAddr {
    ([10, 0, 1, u8::try_from(node).unwrap()], 80).into()
}

pub(crate) struct Member {
    pub(crate) running: RunningServer,
    pub(crate) bus: MemoryBus,
}

/// Starts a node. Each start has an ID of its own.
pub(crate) fn member(
    sim: &Sim,
    session: &Rc<Session>,
    network: &MemoryNetwork,
    (id, at): (usize, SocketAddr),
) -> Member {
    let bus = RefCell::new(None);
    let cluster = || {
        let new = network.bus();
        *bus.borrow_mut() = Some(new.clone());
        Some(Cluster::new(new).node_id(id as u64))
    };
    let running = start(sim, session, &options(), (at, 2), cluster);
    Member { running, bus: bus.into_inner().unwrap() }
}

/// Delivers what is on the way, with pauses that the seed chooses: those without a message are
/// shorter than `idle_us`. At zero it ends.
pub(crate) fn carry(sim: &Sim, network: &MemoryNetwork, idle_us: &Rc<Cell<u64>>) {
    let host = sim.host([10, 0, 1, 99].into());
    let (kernel, network, idle_us) = (sim.kernel().clone(), network.clone(), Rc::clone(idle_us));
    sim.thread(&host, move || {
        let pause_us = if network.deliver_one() { 10 } else { idle_us.get() };
        match idle_us.get() {
            0 => ThreadStep::End,
            _ => ThreadStep::After(Duration::from_micros(kernel.choose(pause_us))),
        }
    });
}

/// Clients at all nodes. The connections of the nodes break as often as `breaks` says, and a node
/// starts anew as often as `restarts` says. At the end all is whole again, and each node reaches
/// each other. Returns how many publications a client has missed.
fn session(sim: &Sim, breaks: u64, restarts: usize) -> usize {
    let clients = NODES * CLIENTS;
    // The last plans are those of the threads that speak at the end, one for each node.
    let mut session = Session::plan(sim, clients + NODES, 30, 300);
    let fields = Rc::get_mut(&mut session).unwrap();
    fields.gaps = Some(RefCell::default());
    fields.watchers = (0..NODES).map(|node| node * CLIENTS).collect();
    // They come again, and what they send would too.
    fields.watchers.iter().for_each(|watcher| fields.plans[*watcher].clear());
    fields.plans[clients..].iter_mut().for_each(|plan| plan.truncate(1));
    fields.plans.iter_mut().flatten().for_each(|planned| planned.is_for_room = true);
    let network = MemoryNetwork::new(sim.kernel().choose(1 << 32));
    let idle_us = Rc::new(Cell::new(50));
    carry(sim, &network, &idle_us);
    let node = |id| member(sim, &session, &network, (id, address(id % NODES)));
    let mut members: Vec<_> = (0..NODES).map(node).collect();
    let mut connections: Vec<_> = (0..NODES)
        .map(|node| connect(sim, &session, node * CLIENTS..(node + 1) * CLIENTS, address(node)))
        .collect();
    for _ in 0..breaks {
        let node = usize::try_from(sim.kernel().choose(NODES as u64)).unwrap();
        let pause = || Duration::from_micros(sim.kernel().choose(200));
        sim.run_for(pause()).unwrap();
        members[node].bus.disconnect();
        sim.run_for(pause()).unwrap();
        members[node].bus.connect();
    }
    idle_us.set(5_000);
    for restart in 0..restarts {
        let node = restart % NODES;
        let old = members.remove(node);
        old.running.stop();
        old.running.join().unwrap();
        let id = NODES * (restart + 1) + node;
        members.insert(node, member(sim, &session, &network, (id, address(node))));
        // Its client that stays comes again.
        let first = node * CLIENTS;
        connections.push(connect(sim, &session, first..first + 1, address(node)));
    }
    // Until all are connected and subscribed.
    sim.run_for(LATE_MAX).unwrap();
    for (node, member) in members.iter().enumerate() {
        let planned = session.plans[clients + node][0];
        let bytes = payload(clients + node, 0, true, planned.len);
        member.running.sender().try_publish(ROOM, &bytes[..]).unwrap();
    }
    sim.run_for(LATE_MAX).unwrap();
    let heard = session.heard.borrow();
    for watcher in &session.watchers {
        for speaker in clients..clients + NODES {
            assert!(heard.contains(&(*watcher, speaker)), "{watcher} has not heard {speaker}");
        }
    }
    drop(heard);
    idle_us.set(0);
    let gaps = session.gaps.as_ref().unwrap().borrow();
    for (node, member) in members.iter().enumerate() {
        let stats = member.running.stats_handle().cluster_stats().unwrap();
        let told = usize::try_from(stats.missed + stats.receive_full).unwrap();
        let most = gaps.iter().filter(|(client, _)| *client / CLIENTS == node).map(|gap| *gap.1);
        // Those of an earlier start are in no count any more.
        let most = if restarts > 0 { 0 } else { most.max().unwrap_or(0) };
        assert!(most <= told, "a client of node {node} has missed {most}, and {told} are counted");
        assert_eq!(stats.malformed, 0);
    }
    gaps.values().sum()
}

#[test]
fn a_whole_network_loses_nothing() {
    let check = sim::check(|sim| assert_eq!(session(sim, 0, 0), 0));
    check.seeds(4).faults(Faults::rough()).twice().run();
    assert_eq!(session(&Sim::new(1, Faults::calm()), 0, 0), 0);
}

#[test]
fn a_lost_publication_is_counted_and_none_comes_twice() {
    let breaking = |sim: &Sim| session(sim, 8, 0);
    let no_reset = Faults { reset: 0, half_close: 0, aborted_accept: 0, ..Faults::hostile() };
    sim::check(|sim| _ = breaking(sim)).seeds(12).faults(no_reset).run();
    let lost: usize = (0..5).map(|seed| breaking(&Sim::new(seed, Faults::calm()))).sum();
    assert!(lost > 0, "nothing is lost");
}

#[test]
fn nodes_come_and_go() {
    sim::check(|sim| {
        session(sim, 2, 9);
    })
    .seeds(6)
    .faults(Faults::rough())
    .run();
}
