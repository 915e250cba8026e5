//! Reactors in a simulation.

#![allow(clippy::unwrap_used, reason = "what fails in a test ends it")]

mod bounds;
mod building;
mod calls;
mod descriptors;
mod hosts;
mod invariants;
mod kernels;
mod progress;
mod rings;
mod speed;
mod streams;
mod time;
mod tools;
