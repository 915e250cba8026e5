//! Black-box tests of `EventCounter`. What needs two processes is in `counter_processes`.

#![cfg(not(loom))]
#![deny(unsafe_code)]

mod bed;
mod errors;
mod levels;
mod parts;
mod stress;
mod waits;
