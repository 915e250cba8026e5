//! Fuzz target `handshake`. Its code is in `crates/ws/tests/corpus/targets`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| windlass_fuzz::run("handshake", data));
