//! The fuzz targets: functions that take bytes and panic on a fault.
//!
//! The workspace `fuzz` runs them under libFuzzer. The test program `corpus` runs them with every
//! file of the committed corpora.

mod deflate;
mod differential;
mod endpoint;
mod frames;
mod handshake;
mod input;
mod messages;
mod session;
mod stream;

/// A target takes the fuzzer's bytes.
pub(crate) type Target = fn(&[u8]);

/// Every target by name. Its corpus has the same name.
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
/// If there is no such target.
pub(crate) fn named(name: &str) -> Target {
    let found = TARGETS.iter().find(|(other, _)| *other == name);
    found.unwrap_or_else(|| panic!("no target {name}")).1
}
