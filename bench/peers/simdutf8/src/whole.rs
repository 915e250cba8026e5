//! simdutf8 for the workloads of `windlass-bench`: its `basic` flavour, which only tells whether
//! text is valid.

#![deny(unsafe_code)]

use std::process::ExitCode;

use windlass_bench_driver::utf8::Utf8Subject;
use windlass_bench_driver::{Program, Suite, locked_version};

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "simdutf8");
    Program { version, suites: vec![Suite::utf8::<Basic>()] }.serve()
}

struct Basic;

impl Utf8Subject for Basic {
    fn is_valid(text: &[u8], _: &[usize]) -> bool {
        simdutf8::basic::from_utf8(text).is_ok()
    }
}
