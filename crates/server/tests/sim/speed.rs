//! Many connections, and many seeds.

use std::{
    fs,
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::sim::{self, Faults, Sim};
use windlass_testkit::own_process::is_own_process;

use crate::bed::{Planned, Session, address, connect, options, serve};

/// Each client sends one message, gets it back, and closes its connection.
fn echo(sim: &Sim, clients: usize) {
    let plan = vec![Planned { is_for_room: false, len: 100 }];
    let session = Rc::new(Session { plans: vec![plan; clients], ..Session::default() });
    let hour = Duration::from_secs(3600);
    let _serving = serve(sim, &session, &options(), (hour, Duration::ZERO));
    let _clients = connect(sim, &session, 0..clients, address());
    sim.run_until(|| session.clients_ended.get() == clients).unwrap();
    assert_eq!(session.clients_done.get(), clients, "a client has not got its message back");
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn thousands_of_connections_use_no_descriptor() {
    if !is_own_process("speed::thousands_of_connections_use_no_descriptor") {
        return;
    }
    let before = descriptors();
    let clients = 3000;
    let plan = vec![Planned { is_for_room: false, len: 100 }];
    let session = Rc::new(Session { plans: vec![plan; clients], ..Session::default() });
    let sim = Sim::new(1, Faults::calm());
    let hour = Duration::from_secs(3600);
    let _serving = serve(&sim, &session, &options(), (hour, Duration::ZERO));
    let _clients = connect(&sim, &session, 0..clients, address());
    sim.run_until(|| session.opened.get() == clients).unwrap();
    assert_eq!(descriptors(), before);
    sim.run_until(|| session.clients_done.get() == clients).unwrap();
    assert_eq!(descriptors(), before);
}

/// `cargo test --release -p windlass-server --features sim --test sim -- --ignored --nocapture`
#[test]
#[ignore = "a measurement, of a release build"]
fn ten_thousand_seeds_of_a_hundred_connections() {
    for faults in [Faults::calm(), Faults::rough()] {
        let begin = Instant::now();
        let check = sim::check(|sim| echo(sim, 100)).seeds(10_000).faults(faults);
        let outcome = check.outcome();
        assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
        println!("{} seeds, {} events: {:?}", outcome.seeds, outcome.events, begin.elapsed());
    }
}

#[test]
fn a_hundred_connections_for_some_seeds() {
    sim::check(|sim| echo(sim, 100)).seeds(10).faults(Faults::rough()).run();
}
