//! Its compressor and decompressor, over zlib.

use std::ffi::{c_char, c_void};

// Only for the linker.
use libz_sys as _;
use windlass_bench_driver::deflate::{DeflateSubject, ROOM, Setting};
use windlass_bench_driver::{Error, Unsupported};

unsafe extern "C" {
    safe fn windlass_bench_deflate_new(
        compressor: u16,
        decompressor: u16,
        reset: bool,
    ) -> *mut c_void;
    fn windlass_bench_deflate_free(deflate: *mut c_void);
    fn windlass_bench_compress(
        deflate: *mut c_void,
        plain: *const u8,
        length: usize,
        out: *mut *const u8,
    ) -> usize;
    fn windlass_bench_inflate(
        deflate: *mut c_void,
        compressed: *mut c_char,
        length: usize,
        out: *mut *const u8,
        out_length: *mut usize,
    ) -> bool;
}

pub(crate) struct Deflate(*mut c_void);

/// The `CompressOptions` of a compressor: the bits of its window, and the memory for zlib.
fn compressor(window_bits: u8) -> Result<u16, Error> {
    match window_bits {
        9 => Ok(9 << 4 | 2),
        12 => Ok(12 << 4 | 5),
        15 => Ok(15 << 4 | 8),
        _ => Err(Unsupported("no compressor of this size was asked for").into()),
    }
}

impl DeflateSubject for Deflate {
    fn new(setting: &Setting) -> Result<Self, Error> {
        if setting.level != 6 {
            return Err(Unsupported("it compresses with zlib's default level, 6, alone").into());
        }
        let decompressor = u16::from(setting.window_bits) << 8;
        Ok(Self(windlass_bench_deflate_new(
            compressor(setting.window_bits)?,
            decompressor,
            !setting.takeover,
        )))
    }

    fn compress(&mut self, plain: &[u8]) -> Result<&[u8], Error> {
        let mut out = std::ptr::null();
        // SAFETY: the streams are alive, and the call only reads the message.
        let length =
            unsafe { windlass_bench_compress(self.0, plain.as_ptr(), plain.len(), &raw mut out) };
        // SAFETY: the returned bytes are valid until the next call, for which `self` is borrowed.
        Ok(unsafe { std::slice::from_raw_parts(out, length) })
    }

    fn inflate(&mut self, compressed: &mut [u8], length: usize) -> Result<&[u8], Error> {
        assert!(length + ROOM <= compressed.len(), "there is room behind the message");
        let (mut out, mut out_length) = (std::ptr::null(), 0);
        let data = compressed.as_mut_ptr().cast();
        // SAFETY: the streams are alive; four bytes behind the message are written and restored,
        // and there is room for them.
        let done = unsafe {
            windlass_bench_inflate(self.0, data, length, &raw mut out, &raw mut out_length)
        };
        if !done {
            return Err("it does not inflate".into());
        }
        // SAFETY: the returned bytes are valid until the next call, for which `self` is borrowed.
        Ok(unsafe { std::slice::from_raw_parts(out, out_length) })
    }
}

impl Drop for Deflate {
    fn drop(&mut self) {
        // SAFETY: it was made by `windlass_bench_deflate_new` and is given back once.
        unsafe { windlass_bench_deflate_free(self.0) };
    }
}
