//! The fuzz targets. The tests of `windlass-ws` replay their corpora.

#[path = "../../crates/ws/tests/corpus/targets/mod.rs"]
mod targets;

/// Runs the target `name`, which panics if it finds a defect.
pub fn run(name: &str, data: &[u8]) {
    targets::named(name)(data);
}
