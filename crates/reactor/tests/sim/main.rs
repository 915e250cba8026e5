//! Reactors in a simulation.

#![allow(clippy::unwrap_used, reason = "what fails in a test ends it")]

mod building;
mod descriptors;
mod hosts;
mod invariants;
mod streams;
mod time;
mod tools;
