//! Masking and validation alone.

use std::ops::Range;

use windlass_bench_driver::Error;
use windlass_bench_driver::unmask::UnmaskSubject;
use windlass_bench_driver::utf8::Utf8Subject;
use windlass_ws::{Utf8Validator, mask};

pub(crate) struct Unmask;

impl UnmaskSubject for Unmask {
    fn new(_: usize) -> Result<Self, Error> {
        Ok(Self)
    }

    fn unmask(&mut self, buffer: &mut [u8], payload: Range<usize>, key: [u8; 4]) -> usize {
        let start = payload.start;
        mask(&mut buffer[payload], key);
        start
    }
}

/// Validates the pieces as they arrive.
pub(crate) struct Validator;

impl Utf8Subject for Validator {
    fn is_valid(text: &[u8], cuts: &[usize]) -> bool {
        let mut validator = Utf8Validator::default();
        let mut start = 0;
        for &cut in cuts {
            if validator.push(&text[start..cut]).is_err() {
                return false;
            }
            start = cut;
        }
        validator.push(&text[start..]).is_ok() && validator.finish().is_ok()
    }
}
