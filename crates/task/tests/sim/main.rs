//! Executors in a simulation.

#![allow(clippy::unwrap_used, reason = "what fails in a test ends it")]

mod ends;
mod rings;
mod sockets;
mod tasks;
mod tools;
mod transfers;
mod unsupported;
