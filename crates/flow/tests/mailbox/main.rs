//! Black-box tests of the mailbox: its bounds, its ends, waits for room, wake-ups, and user code
//! that panics or calls back.

#![cfg(not(loom))]

mod bounds;
mod closing;
mod drains;
#[path = "../../../reactor/tests/common/panics.rs"]
mod expected_panics;
mod futures;
mod hooks;
mod model;
mod panics;
mod stress;
mod support;
mod waits;
