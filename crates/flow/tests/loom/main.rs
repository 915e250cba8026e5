//! Models: loom runs every interleaving of a small program with threads, with every value that the memory orders let a load see.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p windlass-flow --release --test loom`
//!
//! A wake that is lost is a deadlock there, and loom reports it: nothing in a model ends by time.

#![cfg(loom)]
#![deny(unsafe_code)]

mod counter;
