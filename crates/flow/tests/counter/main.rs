//! Black-box tests of `EventCounter` in one process. `counter_processes` has those with several.

#![cfg(not(loom))]
#![deny(unsafe_code)]

mod bed;
mod errors;
mod levels;
mod parts;
mod stress;
mod waits;
