//! simdutf8 for the workloads of `windlass-bench`, called once for each piece. Pieces that end
//! within a character are extended, which a user of a stream could not do.

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

/// Returns the start of the character that contains the byte at `place`.
fn start_of_character(text: &[u8], mut place: usize) -> usize {
    while place > 0 && text[place] & 0xc0 == 0x80 {
        place -= 1;
    }
    place
}
