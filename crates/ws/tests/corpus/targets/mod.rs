//! The fuzz targets: functions from bytes that panic when something is wrong.
//!
//! The workspace `fuzz` runs them under libFuzzer, the test program `corpus` with every file of the
//! committed corpora.

mod deflate;
mod differential;
mod endpoint;
mod frames;
mod handshake;
mod input;
mod messages;
mod session;
mod stream;

/// A target: takes what the fuzzer has made.
pub(crate) type Target = fn(&[u8]);

/// Every target by name, which is also that of its corpus.
pub(crate) const TARGETS: &[(&str, Target)] = &[
    ("deflate", deflate::run),
    ("differential", differential::run),
    ("frames", frames::run),
    ("handshake", handshake::run),
    ("messages", messages::run),
    ("session", session::run),
];

/// The target of that name.
///
/// # Panics
///
/// If there is none.
pub(crate) fn named(name: &str) -> Target {
    let found = TARGETS.iter().find(|(other, _)| *other == name);
    found.unwrap_or_else(|| panic!("no target {name}")).1
}
