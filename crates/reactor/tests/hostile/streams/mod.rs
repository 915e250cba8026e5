//! Random programs of streams. They make every call in every callback, on the callback's own stream
//! and on others. The peers read, write, end and reset at random.
//!
//! The tests check these properties. The seeds are set as for the other programs.
//!
//! - Bytes arrive in order and unchanged, in both directions.
//! - Accepted output arrives if the stream ends in order.
//! - Callbacks come in the order that the trait promises, never nested, and never after the end.
//! - Every handler is dropped once and every socket is closed.
//! - The loop becomes idle, and no stream stays open forever.

mod acts;
mod world;

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::Reactor;

use self::world::{PeerSaw, World, survive};
use crate::{
    Build,
    program::{Named, setting},
};

const STEPS: usize = 120;

fn turn(reactor: &mut Reactor) -> (usize, bool) {
    let mut count = 0;
    let panicked = survive(|| count = reactor.run_once(Duration::ZERO).unwrap());
    (count, panicked)
}

/// Runs turns until several in a row had no work.
fn quiet(reactor: &mut Reactor) {
    let mut idle = 0;
    for _ in 0..2_000 {
        match turn(reactor) {
            (0, false) => idle += 1,
            _ => idle = 0,
        }
        if idle == 4 {
            return;
        }
    }
    panic!("the loop spins");
}

/// Closes every stream in order, and waits for the end. The peers read to the end.
fn close_all(world: &Rc<World>, reactor: &mut Reactor) {
    for _ in 0..1_000 {
        // Deferred calls may start others meanwhile.
        for (listener, _) in world.listeners.take() {
            if let Ok(listening) = reactor.listener(listener) {
                listening.delete();
            }
        }
        for id in 0..world.count() {
            let key = world.with(id, |record| record.key);
            if let Some(mut stream) = key.and_then(|key| reactor.stream(key).ok()) {
                stream.close();
                world.with(id, |record| record.closing = true);
            }
        }
        quiet(reactor);
        if reactor.stats().subscribers == 0 {
            return;
        }
        acts::between_turns(world, reactor);
        world.let_peers_finish();
    }
    let records = world.records.borrow();
    let left: Vec<_> = records.iter().enumerate().filter(|(_, record)| !record.is_over()).collect();
    panic!("{} subscribers stay: {left:#?}", reactor.stats().subscribers);
}

fn program(build: Build, seed: u64, panics: bool) -> (u64, u64) {
    let world = Rc::new(World::new(seed));
    let (start, time) = (Instant::now(), Rc::clone(&world));
    let mut reactor = build()
        .events_per_turn(1 + world.index(9))
        .subscribers_max(25)
        .clock(move || start + time.passed())
        .build()
        .unwrap();
    world.panics.set(panics);
    for _ in 0..STEPS {
        acts::between_turns(&world, &mut reactor);
        for _ in 0..1 + world.index(3) {
            turn(&mut reactor);
        }
    }
    world.panics.set(false);
    let is_cut = world.one_in(5);
    if !is_cut {
        close_all(&world, &mut reactor);
    }
    world.panics.set(panics && is_cut);
    survive(|| drop(reactor));
    world.panics.set(false);
    world.let_peers_finish();
    if !is_cut {
        world.verdict();
    }
    for record in world.records.borrow().iter() {
        let is_open = record.peer.is_some() && record.peer_saw == PeerSaw::Nothing;
        assert!(record.is_over() && !is_open, "{record:?}");
    }
    (world.calls.get(), world.received.get())
}

fn run(build: Build, panics: bool, seeds: u64) {
    let first = setting("WINDLASS_HOSTILE_FIRST").unwrap_or(1);
    let count = setting("WINDLASS_HOSTILE_SEEDS").unwrap_or(seeds);
    let (mut calls, mut received) = (0, 0);
    for seed in first..first + count {
        let named = Named(seed);
        let sum = program(build, seed, panics);
        calls += sum.0;
        received += sum.1;
        drop(named);
    }
    println!("{calls} callbacks, {received} bytes received");
    assert!(count < 20 || (calls > 1000 && received > 100_000), "the programs do nothing");
}

fn a_random_program_of_streams_loses_nothing_and_ends(build: Build) {
    run(build, false, 60);
}

fn a_random_program_of_streams_that_panics_everywhere_loses_nothing_of_others(build: Build) {
    run(build, true, 60);
}

scenarios! {
    #[cfg_attr(miri, ignore = "sockets")]
    a_random_program_of_streams_loses_nothing_and_ends,
    #[cfg_attr(miri, ignore = "sockets")]
    a_random_program_of_streams_that_panics_everywhere_loses_nothing_of_others,
}
