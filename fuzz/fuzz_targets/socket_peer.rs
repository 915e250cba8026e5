//! Fuzz target `socket_peer`. Its code is in `crates/websocket/tests/corpus/targets`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| windlass_fuzz::run("socket_peer", data));
