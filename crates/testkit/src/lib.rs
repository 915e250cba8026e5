//! Tools that the tests of several crates share. The crate is not published.
//!
//! A tool belongs here as soon as the tests of a second crate need it. No test program includes
//! files of another crate.

#![deny(unsafe_code)]
#![allow(
    missing_docs,
    missing_debug_implementations,
    reason = "tests are the only users, and the names of these tools say what they do"
)]

pub mod alloc;
#[cfg(feature = "reactor")]
pub mod backend;
pub mod exposition;
#[cfg(feature = "reactor")]
pub mod fork;
pub mod frames;
pub mod panics;
pub mod pattern;
pub mod ptrace;
pub mod random;
#[cfg(feature = "reactor")]
pub mod rings;
#[cfg(feature = "reactor")]
pub mod scenarios;
