//! Models: loom runs every interleaving of a small program with threads, with every value that the
//! memory orders let a load see.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p windlass-flow --release --test loom`
//!
//! A wake that is lost is a deadlock there, and loom reports it: nothing in a model ends by time.

#![cfg(loom)]
#![deny(unsafe_code)]

mod counter;
mod latch;
mod mailbox;

/// A lost wake takes two threads of which each is preempted once; three leave one to spare.
const PREEMPTIONS: usize = 3;

/// Runs a model in all interleavings with at most [`PREEMPTIONS`] preempted threads: for models
/// that take minutes otherwise.
fn bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}
