//! The executor from outside.

#![deny(unsafe_code)]

use windlass_testkit::{backend, panics};

#[path = "../common/counting_waker.rs"]
mod counting_waker;

#[path = "../common/leak.rs"]
mod leak;

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
