//! The fuzz targets. The tests of `windlass-ws` and `windlass-websocket` replay their corpora.

#[path = "../../crates/websocket/tests/corpus/targets/mod.rs"]
mod sockets;
#[path = "../../crates/ws/tests/corpus/targets/mod.rs"]
mod targets;

/// Runs the target `name`, which panics if it finds a defect.
pub fn run(name: &str, data: &[u8]) {
    sockets::find(name).unwrap_or_else(|| targets::named(name))(data);
}
