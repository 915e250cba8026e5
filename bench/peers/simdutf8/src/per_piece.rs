//! simdutf8 under the workload of `windlass-bench`, called once for each piece: as a stream's user
//! would if pieces ended with a character. Where they do not, the cut is moved.

#![deny(unsafe_code)]

use std::process::ExitCode;

use windlass_bench_driver::utf8::Utf8Subject;
use windlass_bench_driver::{Error, Program, Suite, Unsupported, locked_version};

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "simdutf8");
    Program { version, suites: vec![Suite::utf8::<PerPiece>()] }.serve()
}

struct PerPiece;

impl Utf8Subject for PerPiece {
    fn check_pieces(pieces: usize) -> Result<(), Error> {
        if pieces > 1 {
            Ok(())
        } else {
            Err(Unsupported("one piece is the whole: see simdutf8").into())
        }
    }

    fn is_valid(text: &[u8], cuts: &[usize]) -> bool {
        let mut start = 0;
        for &cut in cuts.iter().chain([&text.len()]) {
            let end = if cut == text.len() { cut } else { start_of_character(text, cut) };
            if simdutf8::basic::from_utf8(&text[start..end]).is_err() {
                return false;
            }
            start = end;
        }
        true
    }
}

/// Where the character begins to which the byte at `place` belongs.
fn start_of_character(text: &[u8], mut place: usize) -> usize {
    while place > 0 && text[place] & 0xc0 == 0x80 {
        place -= 1;
    }
    place
}
