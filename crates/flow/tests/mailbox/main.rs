//! The mailbox from outside: its bounds, its ends, who waits for room and who is woken when, and
//! what the user's code may do to it.

#![cfg(not(loom))]

mod bounds;
mod closing;
mod drains;
mod futures;
mod hooks;
mod model;
mod panics;
mod stress;
mod support;
mod waits;
