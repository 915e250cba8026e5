//! The executor from outside.

#![deny(unsafe_code)]

#[path = "../../../reactor/tests/common/panics.rs"]
mod panics;

mod aborts;
mod budget;
mod ends;
mod joins;
mod sets;
mod spawning;
mod tasks;
mod tools;
mod wakers;
