//! The fuzz targets: functions that take bytes and panic on a fault.
//!
//! The workspace `fuzz` runs them under libFuzzer. The test program `corpus` runs them with every
//! file of the committed corpora.

mod input;
mod socket_pair;
mod socket_peer;
mod stream;

/// A target takes the fuzzer's bytes.
pub(crate) type Target = fn(&[u8]);

/// Every target by name. Its corpus has the same name.
pub(crate) const TARGETS: &[(&str, Target)] =
    &[("socket_pair", socket_pair::run), ("socket_peer", socket_peer::run)];

/// The target of that name, if it is one of these.
pub(crate) fn find(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(other, _)| *other == name).map(|(_, target)| *target)
}

/// The target of that name.
///
/// # Panics
///
/// If there is no such target.
pub(crate) fn named(name: &str) -> Target {
    find(name).unwrap_or_else(|| panic!("no target {name}"))
}
