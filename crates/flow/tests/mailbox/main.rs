//! Black-box tests of the mailbox: its bounds, its ends, waits for room, wake-ups, and user code
//! that panics or calls back.

#![cfg(not(loom))]

use windlass_testkit::panics as expected_panics;

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
