//! Compression of one message.

use alloc::vec::Vec;

use zlib_rs::{Deflate, DeflateFlush};

/// The end of a flushed block. It is not sent (RFC 7692 section 7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// The free space that zlib needs to write a flush only once (zlib.h, at `deflate`), plus some
/// more.
const SLACK: usize = 64;

/// zlib collects 2^(this + 6) symbols before it writes a block. A larger number compresses slightly
/// better and takes seven bytes per symbol.
pub(super) const MEM_LEVEL_SHARED: i32 = 8;
/// Like [`MEM_LEVEL_SHARED`], if each connection has a compressor.
pub(super) const MEM_LEVEL_DEDICATED: i32 = 5;

/// A compressor for raw streams, without header and trailer. `bits` must be 9 to 15, `level` 1 to
/// 9.
pub(super) fn new(bits: u8, level: u8, mem_level: i32) -> Deflate {
    Deflate::new_with_config(zlib_rs::DeflateConfig {
        level: i32::from(level),
        // In zlib, a negative number means "without header".
        window_bits: -i32::from(bits),
        mem_level,
        ..zlib_rs::DeflateConfig::default()
    })
}

/// Appends `payload` to `out`, compressed, without the tail. Returns `false` if the result would
/// not be shorter than `payload`, or if zlib fails. Nothing is appended then, and `deflate` must be
/// reset.
pub(super) fn if_smaller(deflate: &mut Deflate, payload: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    out.resize(start + payload.len() + TAIL.len(), 0);
    let (taken, made) = (deflate.total_in(), deflate.total_out());
    let result = deflate.compress(payload, &mut out[start..], DeflateFlush::SyncFlush);
    let taken = (deflate.total_in() - taken) as usize;
    let end = start + (deflate.total_out() - made) as usize;
    // If no room is left, zlib may have more to write.
    let whole = result.is_ok()
        && taken == payload.len()
        && end < out.len()
        && out[start..end].ends_with(&TAIL);
    out.truncate(if whole { end - TAIL.len() } else { start });
    whole
}

/// Appends `payload` to `out`, compressed, without the tail, even if it gets longer. Returns
/// `false` if zlib fails. Nothing is appended then, and `deflate` must be reset.
pub(super) fn always(deflate: &mut Deflate, payload: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    let mut taken = 0;
    let mut end = start;
    loop {
        out.resize(end + (payload.len() - taken) + SLACK, 0);
        let (taken_before, made_before) = (deflate.total_in(), deflate.total_out());
        let result = deflate.compress(&payload[taken..], &mut out[end..], DeflateFlush::SyncFlush);
        taken += (deflate.total_in() - taken_before) as usize;
        end += (deflate.total_out() - made_before) as usize;
        let failed = result.is_err();
        if failed || end < out.len() {
            let whole = !failed && taken == payload.len() && out[start..end].ends_with(&TAIL);
            out.truncate(if whole { end - TAIL.len() } else { start });
            return whole;
        }
    }
}
