//! Fuzz target `socket_pair`. Its code is in `crates/websocket/tests/corpus/targets`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| windlass_fuzz::run("socket_pair", data));
