//! Clients and servers in a simulation, over streams of windlass-task.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails in a test ends it")]

mod completing;
mod messages;
mod reconnecting;
mod silence;
mod tools;
