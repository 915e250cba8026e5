//! Models for loom, which runs every interleaving of a small program with threads, with every value
//! that the memory orders permit.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p windlass-flow --profile loom --test loom`
//!
//! A lost wake is a deadlock in a model, which loom reports. No model has a timeout.

#![cfg(loom)]
#![deny(unsafe_code)]

mod counter;
mod latch;
mod mailbox;

/// To lose a wake, two threads must each be preempted once. Three leave a margin of one.
const PREEMPTIONS: usize = 3;

/// Runs a model in all interleavings with at most [`PREEMPTIONS`] preempted threads. For models
/// that take minutes otherwise.
fn bounded(model: impl Fn() + Sync + Send + 'static) {
    preempted(PREEMPTIONS, model);
}

/// Runs a model in all interleavings with at most this number of preempted threads.
fn preempted(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}
