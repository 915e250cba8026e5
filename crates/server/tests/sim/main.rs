//! The server in a simulation: sessions under faults, for many seeds.

#![allow(clippy::unwrap_used, reason = "what fails in a test ends it")]

mod bed;
mod churn;
mod client;
mod cluster;
mod judge;
mod memory;
mod sessions;
mod speed;
mod strangers;
mod workers;
