//! The executor from outside.

#![deny(unsafe_code)]

#[path = "../../../reactor/tests/common/backend.rs"]
mod backend;

#[path = "../common/counting_waker.rs"]
mod counting_waker;

#[path = "../common/leak.rs"]
mod leak;

#[path = "../../../reactor/tests/common/panics.rs"]
mod panics;

mod aborts;
mod blocking;
mod budget;
mod clones;
mod ends;
mod joins;
mod polls;
mod races;
mod reentry;
mod scenarios;
mod send_sync;
mod sets;
mod spawning;
mod tasks;
mod tools;
mod wakers;
