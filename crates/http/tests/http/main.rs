//! Servers of HTTP with clients of several kinds, on every backend.

#![deny(unsafe_code)]

#[macro_use]
extern crate windlass_testkit;

use windlass_testkit::scenarios;

mod bodies;
mod ecosystem;
mod events;
mod frames;
mod hostile;
mod idle;
mod idle_memory;
mod limits;
mod many;
mod plain;
mod programs;
mod resets;
mod shutdown;
mod stalls;
mod tls;
mod tools;
mod trim;
mod upgrades;
mod versions;
mod websockets;
mod wire;
