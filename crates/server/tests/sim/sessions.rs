//! Sessions from the first request to the end of a graceful shutdown.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use windlass::sim::{self, Faults, Sim};

use crate::bed::{BUFFER_MAX, LATE_MAX, Session, address, connect, options, serve};

/// The longest that a drain waits for its connections.
const DRAIN_MAX: Duration = Duration::from_secs(3);

/// Clients with an echo and a room, and a drain at `drain`. Returns how many got everything, and
/// how many were evicted.
fn session(sim: &Sim, clients: usize, messages: u64, drain: Duration) -> (usize, usize) {
    let session = Session::plan(sim, clients, messages, 8_000);
    let mut options = options();
    options.connections_max = clients.div_ceil(2);
    // None is rejected, because a connection that has ended gives its permit back.
    options.connections_per_address_max = Some(options.connections_max);
    let begin = sim.elapsed();
    let serving = serve(sim, &session, &options, (drain, DRAIN_MAX));
    let _clients = connect(sim, &session, 0..clients, address());
    sim.run_until(|| serving.running.has_ended()).unwrap();
    let took = sim.elapsed() - begin;
    assert!(took <= drain + DRAIN_MAX + LATE_MAX, "the drain has ended after {took:?}");
    assert!(session.has_drained.get(), "the end of the drain was not told");
    assert!(session.open.borrow().is_empty(), "{:?} are open", session.open.borrow());
    assert_eq!(session.opened.get(), session.closed.get());
    let stats = serving.service.stats();
    let max = options.connections_max as u64;
    assert!(stats.connections_most <= max, "{} connections", stats.connections_most);
    sim.run_until(|| session.clients_ended.get() == clients).unwrap();
    (session.clients_done.get(), session.evicted.get())
}

/// A session to its end, from which connections are missing only if they were evicted.
fn none_is_lost(sim: &Sim) {
    let (done, evicted) = session(sim, 6, 20, Duration::from_secs(60));
    assert_eq!(done + evicted, 6);
}

#[test]
fn rough_weather_loses_no_message_and_no_connection() {
    sim::check(|sim| none_is_lost(sim)).seeds(10).faults(Faults::rough()).twice().run();
    let calm = session(&Sim::new(1, Faults::calm()), 6, 20, Duration::from_secs(60));
    assert_eq!(calm, (6, 0));
}

/// A drain somewhere within the session.
fn some_time(sim: &Sim) -> Duration {
    Duration::from_micros(sim.kernel().choose(20_000))
}

#[test]
fn a_drain_in_rough_weather_ends_and_tells_each_loss() {
    sim::check(|sim| {
        session(sim, 5, 20, some_time(sim));
    })
    .seeds(60)
    .faults(Faults::rough())
    .run();
}

/// Streams by completion, with few buffers and short queues for some seeds.
#[test]
fn rings_lose_no_message_and_tell_each_loss() {
    sim::check(|sim| {
        sim.set_ring(true);
        none_is_lost(sim);
    })
    .seeds(10)
    .faults(Faults::rough())
    .twice()
    .run();
    sim::check(|sim| {
        sim.set_ring(true);
        session(sim, 5, 20, some_time(sim));
    })
    .seeds(60)
    .faults(Faults::hostile())
    .run();
}

/// Clients whose messages wait while the network is slow, with a budget for one of them. Returns
/// the number of those that were evicted.
fn with_little_memory(sim: &Sim) -> u64 {
    const MEMORY: usize = 32 << 10;
    let session = Session::plan(sim, 8, 20, 8_000);
    let mut options = options();
    options.memory_max = Some(MEMORY);
    let serving = serve(sim, &session, &options, (Duration::from_secs(60), DRAIN_MAX));
    let _clients = connect(sim, &session, 0..8, address());
    sim.run_until(|| serving.running.has_ended()).unwrap();
    let stats = serving.service.stats();
    let most = usize::try_from(stats.memory_most).unwrap();
    assert!(most <= MEMORY + 2 * BUFFER_MAX, "{stats:?}");
    stats.evicted_for_memory
}

#[test]
fn the_budget_is_exceeded_by_no_more_than_one_step_in_any_weather() {
    let evicted = AtomicU64::new(0);
    for faults in [Faults::rough(), Faults::hostile()] {
        let add = |count| evicted.fetch_add(count, Ordering::Relaxed);
        sim::check(|sim| _ = add(with_little_memory(sim))).seeds(40).faults(faults).run();
    }
    assert!(evicted.into_inner() > 0, "no session needs the budget");
}

#[test]
fn a_drain_in_a_hostile_world_ends_and_tells_each_loss() {
    sim::check(|sim| {
        session(sim, 4, 10, some_time(sim) * 10);
    })
    .seeds(100)
    .faults(Faults::hostile())
    .run();
}
