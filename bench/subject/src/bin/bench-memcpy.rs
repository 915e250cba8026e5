//! The speed of memory: the copy that replaces recv(2), and memcpy(3) instead of unmasking.

#![deny(unsafe_code)]

use std::ops::Range;
use std::process::ExitCode;

use windlass_bench_driver::unmask::UnmaskSubject;
use windlass_bench_driver::{Error, Program, Suite};

fn main() -> ExitCode {
    let suites = vec![Suite::engine_copying(), Suite::unmask::<Copied>()];
    // The version of the C library does not matter here.
    Program { version: "libc".to_owned(), suites }.serve()
}

/// Copies the payload to another buffer.
struct Copied(Vec<u8>);

impl UnmaskSubject for Copied {
    const UNMASKS: bool = false;

    fn new(bytes: usize) -> Result<Self, Error> {
        Ok(Self(vec![0; bytes]))
    }

    fn unmask(&mut self, buffer: &mut [u8], payload: Range<usize>, _: [u8; 4]) -> usize {
        let start = payload.start;
        self.0.copy_from_slice(&buffer[payload]);
        std::hint::black_box(self.0.as_ptr());
        start
    }
}
