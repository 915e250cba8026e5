//! The parts of the parser that can be called alone.

use std::ffi::c_char;
use std::ops::Range;

use windlass_bench_driver::Error;
use windlass_bench_driver::unmask::UnmaskSubject;
use windlass_bench_driver::utf8::Utf8Subject;

unsafe extern "C" {
    fn windlass_bench_unmask(payload: *mut c_char, length: usize, mask: *const u8) -> u32;
    fn windlass_bench_is_valid_utf8(text: *const u8, length: usize) -> bool;
}

/// Unmasks as for whole frames: down over the header.
pub(crate) struct Unmask;

impl UnmaskSubject for Unmask {
    fn new(_: usize) -> Result<Self, Error> {
        Ok(Self)
    }

    fn unmask(&mut self, buffer: &mut [u8], payload: Range<usize>, key: [u8; 4]) -> usize {
        assert!(
            payload.start >= 64 && payload.end + 64 <= buffer.len(),
            "there is room on both sides"
        );
        let data = buffer[payload.start..].as_mut_ptr().cast();
        // SAFETY: it writes the mask and 14 bytes at most in front of the payload, and 8 at most
        // behind it, where there are 64.
        let moved = unsafe { windlass_bench_unmask(data, payload.len(), key.as_ptr()) };
        payload.start - moved as usize
    }
}

pub(crate) struct Utf8;

impl Utf8Subject for Utf8 {
    fn is_valid(text: &[u8], _: &[usize]) -> bool {
        // SAFETY: it reads the text alone.
        unsafe { windlass_bench_is_valid_utf8(text.as_ptr(), text.len()) }
    }
}
