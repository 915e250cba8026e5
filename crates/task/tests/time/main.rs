//! Sleeps, time limits, intervals and the paused clock, on every backend.

#![deny(unsafe_code)]

#[macro_use]
extern crate windlass_testkit;

use windlass_testkit::scenarios;

#[path = "../common/counting_waker.rs"]
mod counting_waker;

mod clocks;
mod fairness;
mod hostile;
#[cfg(feature = "hyper")]
mod hyper;
mod intervals;
mod paused;
mod places;
mod send_sync;
mod sleeps;
mod timeouts;
mod tools;
mod wakers;
