//! The targets, which the ordinary tests replay as well.

#[path = "../../crates/ws/tests/corpus/targets/mod.rs"]
mod targets;

/// Runs the target `name`, which panics when something is wrong.
pub fn run(name: &str, data: &[u8]) {
    targets::named(name)(data);
}
