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
#[cfg(feature = "tls")]
pub mod any_certificate;
#[cfg(feature = "reactor")]
pub mod backend;
#[cfg(feature = "browser")]
pub mod browser;
#[cfg(feature = "tls")]
pub mod certificates;
#[cfg(feature = "browser")]
pub mod devtools;
#[cfg(feature = "reactor")]
pub mod ends;
pub mod exposition;
pub mod faults;
#[cfg(feature = "reactor")]
pub mod fork;
pub mod frames;
pub mod hypercorn;
#[cfg(feature = "mimic")]
pub mod mimic;
#[cfg(feature = "nats")]
pub mod nats_fake;
#[cfg(feature = "nats")]
pub mod nats_jwt;
#[cfg(feature = "nats")]
pub mod nats_server;
pub mod own_process;
pub mod panics;
pub mod pattern;
pub mod ptrace;
pub mod random;
#[cfg(feature = "reactor")]
pub mod rings;
#[cfg(feature = "reactor")]
pub mod scenarios;
#[cfg(all(feature = "seccomp", target_os = "linux", target_arch = "x86_64"))]
pub mod seccomp;
pub mod signals;
#[cfg(feature = "reactor")]
pub mod vsock;
pub mod waiting;
