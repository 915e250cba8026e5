//! Masking (RFC 6455 section 5.3). A client combines every byte it sends with one of the four bytes
//! of a key.
//!
//! # Protocol
//!
//! Every function here transforms `len` bytes from `src` to `dst`. The rules:
//!
//! 1. `src` is valid for reads, and `dst` for writes, of `len` bytes.
//! 2. `dst` is not above `src`, or the two do not overlap.
//! 3. The bytes are processed in ascending order. The first and the last block are loaded before
//!    the first store and kept in registers. Any other block is loaded before anything is stored at
//!    or above its own place in `src`. By rule 2 a store to `dst + i` touches no byte of `src` from
//!    `i` plus the block's size on, so no block is read after it was overwritten.
//! 4. The first and last blocks overlap those in the middle. Both write the same values there, so
//!    their order does not matter.
//!
//! The code uses no vector intrinsics. A block is an array of words. A function compiled with AVX2
//! combines and stores eight words with one instruction each. With SSE2 or NEON a block is four
//! words.

#![allow(
    unsafe_code,
    reason = "overlapping blocks at any address, moved while they are combined: no safe form is \
              as fast"
)]

use alloc::vec::Vec;

/// How many blocks one round processes. This many fit into registers, and the loop's overhead is
/// small beside them.
const UNROLLED: usize = 8;

/// Up to this length, at most two overlapping blocks of 16 bytes are enough.
const SMALL_MAX: usize = 32;

/// Masks or unmasks `bytes`. The first byte of `bytes` belongs to the first byte of `key`.
///
/// Source: RFC 6455 section 5.3.
///
/// ```
/// let mut bytes = *b"hello";
/// windlass_ws::mask(&mut bytes, [1, 2, 3, 4]);
/// assert_eq!(bytes, *b"igohn");
/// windlass_ws::mask(&mut bytes, [1, 2, 3, 4]);
/// assert_eq!(bytes, *b"hello", "masking twice gives the original");
/// ```
#[inline]
pub fn mask(bytes: &mut [u8], key: [u8; 4]) {
    let start = bytes.as_mut_ptr();
    // SAFETY: rule 1: the slice is valid for reads and writes. Rule 2: source and destination are
    // the same.
    unsafe { transform(start, start, bytes.len(), u32::from_ne_bytes(key)) }
}

/// The key for the bytes after the first `phase` bytes.
#[inline]
pub(crate) const fn rotate(key: [u8; 4], phase: usize) -> [u8; 4] {
    rotate_word(u32::from_ne_bytes(key), phase).to_ne_bytes()
}

/// Unmasks the `len` bytes that begin `gap` bytes behind `at` of `buffer`, and moves them to `head`
/// bytes behind `start`. Returns these `head` bytes and the payload at its new place.
///
/// # Panics
///
/// Unless `start <= at`, `head <= gap`, and the bytes are within the buffer.
#[inline(always)]
pub(crate) fn unmask_down(
    buffer: &mut [u8],
    start: usize,
    head: usize,
    at: usize,
    gap: usize,
    len: usize,
    key: [u8; 4],
) -> (&mut [u8], &mut [u8]) {
    // Written like the checks in the callers, so that the compiler sees that they are the same and
    // drops them.
    let fits = at <= buffer.len() && gap <= buffer.len() - at && len <= buffer.len() - at - gap;
    assert!(fits && head <= gap && start <= at, "a frame lies in its buffer");
    let base = buffer.as_mut_ptr();
    // SAFETY: `at + gap` is within the slice, as asserted.
    let from = unsafe { base.add(at + gap) };
    // SAFETY: `start + head` is not above `at + gap`, as asserted, so it is within the slice.
    let to = unsafe { base.add(start + head) };
    // SAFETY: rule 1: `at + gap + len` is within the slice, as asserted. `start + head + len` is
    // too, because `start + head <= at + gap`. That inequality is also rule 2.
    unsafe { transform(from, to, len, u32::from_ne_bytes(key)) };
    // SAFETY: `start` is not above `at`, as asserted, so it is within the slice.
    let front = unsafe { base.add(start) };
    // SAFETY: `start + head` is within the slice. The slice is borrowed for as long as the returned
    // parts, and the payload begins behind this part. The checks of `split_at_mut` would be a
    // noticeable part of a short echo's instructions (suite `engine`).
    let front = unsafe { core::slice::from_raw_parts_mut(front, head) };
    // SAFETY: `start + head + len` is within the slice too, and the other part ends where this one
    // begins.
    let payload = unsafe { core::slice::from_raw_parts_mut(to, len) };
    (front, payload)
}

/// Appends `bytes`, masked or unmasked, to `out`.
#[inline]
pub(crate) fn copy_masked(bytes: &[u8], out: &mut Vec<u8>, key: [u8; 4]) {
    out.reserve(bytes.len());
    let filled = out.len();
    let room = out.spare_capacity_mut().as_mut_ptr().cast::<u8>();
    // SAFETY: rule 1: the slice is valid for reads, and `reserve` has made room for as many bytes.
    // Rule 2: the vector is borrowed mutably, so nothing else points into its room.
    unsafe { transform(bytes.as_ptr(), room, bytes.len(), u32::from_ne_bytes(key)) };
    // SAFETY: this many bytes have been written behind the old end, within the capacity.
    unsafe { out.set_len(filled + bytes.len()) };
}

/// Copies `bytes`, masked or unmasked, to `out`.
///
/// # Panics
///
/// Unless both are equally long.
#[inline(always)]
pub(crate) fn mask_to(bytes: &[u8], out: &mut [u8], key: [u8; 4]) {
    assert!(bytes.len() == out.len(), "the copy is as long as the bytes");
    let key = u32::from_ne_bytes(key);
    // SAFETY: rule 1: both slices have `bytes.len()` bytes, as asserted. Rule 2: `out` is borrowed
    // mutably, so they do not overlap.
    unsafe { transform(bytes.as_ptr(), out.as_mut_ptr(), bytes.len(), key) };
}

/// The word whose bytes in memory are those of `key`, rotated by `phase` bytes.
#[inline(always)]
const fn rotate_word(key: u32, phase: usize) -> u32 {
    let bits = (phase as u32 & 3) * 8;
    if cfg!(target_endian = "little") { key.rotate_right(bits) } else { key.rotate_left(bits) }
}

/// The whole transformation.
///
/// # Safety
///
/// Rules 1 and 2.
#[inline(always)]
unsafe fn transform(src: *const u8, dst: *mut u8, len: usize, key: u32) {
    if len > SMALL_MAX {
        // SAFETY: the caller guarantees rules 1 and 2; there are more than 32 bytes.
        unsafe { large(src, dst, len, key) }
    } else if len >= 16 {
        // SAFETY: the caller guarantees rules 1 and 2; there are at least 16 and at most 32 bytes.
        unsafe { ends::<4>(src, dst, len, key) }
    } else if len >= 8 {
        // SAFETY: the caller guarantees rules 1 and 2; there are at least 8 and at most 16 bytes.
        unsafe { ends::<2>(src, dst, len, key) }
    } else {
        // SAFETY: the caller guarantees rules 1 and 2.
        unsafe { tiny(src, dst, len, key) }
    }
}

/// Transforms fewer than eight bytes, one by one.
///
/// # Safety
///
/// Rules 1 and 2.
#[inline(always)]
unsafe fn tiny(src: *const u8, dst: *mut u8, len: usize, key: u32) {
    let key = key.to_ne_bytes();
    for at in 0..len {
        // SAFETY: `at` is below `len` (rule 1).
        let from = unsafe { src.add(at) };
        // SAFETY: the same.
        let to = unsafe { dst.add(at) };
        // SAFETY: rule 1 makes the byte valid for reads, and a byte is always aligned.
        let byte = unsafe { from.read() };
        // SAFETY: rule 1 makes the byte valid for writes. By rule 2 the store does not touch a byte
        // that is still to be read.
        unsafe { to.write(byte ^ key[at & 3]) };
    }
}

/// Transforms one to two blocks of `N` words: the first and the last, which may overlap.
///
/// # Safety
///
/// Rules 1 and 2, and `4 * N <= len <= 8 * N`.
#[inline(always)]
unsafe fn ends<const N: usize>(src: *const u8, dst: *mut u8, len: usize, key: u32) {
    let last = len - 4 * N;
    // SAFETY: the block is within the `len` bytes.
    let first_block = unsafe { load::<N>(src, 0, key) };
    // SAFETY: the block ends at the end of the `len` bytes.
    let last_block = unsafe { load::<N>(src, last, rotate_word(key, last)) };
    // SAFETY: the block is within the `len` bytes. Both loads are done (rule 3).
    unsafe { store(dst, 0, first_block) };
    // SAFETY: the block is within the `len` bytes. Rule 4 covers the overlap.
    unsafe { store(dst, last, last_block) };
}

/// Transforms more than 32 bytes, with the widest blocks of this processor.
///
/// # Safety
///
/// Rules 1 and 2, and `len >= 32`.
#[inline(never)]
unsafe fn large(src: *const u8, dst: *mut u8, len: usize, key: u32) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: the processor has AVX2; the caller guarantees the rest.
        return unsafe { avx2(src, dst, len, key) };
    }
    // SAFETY: the caller guarantees rules 1 and 2, and at least 16 bytes.
    unsafe { blocks::<BASE_WORDS>(src, dst, len, key) }
}

/// The words of a block that every processor of the target supports.
const BASE_WORDS: usize =
    if cfg!(any(target_feature = "sse2", target_feature = "neon", target_arch = "aarch64")) {
        4
    } else {
        2
    };

/// Whether AVX2 may be used. With `std` this reads the cached result of the detection, which is a
/// load and a test. Without `std` the build's target features decide.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn has_avx2() -> bool {
    #[cfg(feature = "std")]
    {
        std::is_x86_feature_detected!("avx2")
    }
    #[cfg(not(feature = "std"))]
    {
        cfg!(target_feature = "avx2")
    }
}

/// # Safety
///
/// The processor has AVX2; rules 1 and 2; `len >= 32`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(src: *const u8, dst: *mut u8, len: usize, key: u32) {
    // SAFETY: the caller guarantees rules 1 and 2 and the length.
    unsafe { blocks::<8>(src, dst, len, key) }
}

/// Transforms blocks of `N` words. The stores of the middle blocks are aligned; half of them would
/// otherwise cross a cache line.
///
/// # Safety
///
/// Rules 1 and 2, and `len >= 4 * N`.
#[inline(always)]
unsafe fn blocks<const N: usize>(src: *const u8, dst: *mut u8, len: usize, key: u32) {
    let size = 4 * N;
    let last = len - size;
    // SAFETY: the block is within the `len` bytes.
    let first_block = unsafe { load::<N>(src, 0, key) };
    // SAFETY: the block ends at the end of the `len` bytes.
    let last_block = unsafe { load::<N>(src, last, rotate_word(key, last)) };
    let mut at = size - dst.addr() % size;
    let key = rotate_word(key, at);
    while at + UNROLLED * size <= len {
        // SAFETY: this many blocks are left (rule 1), and nothing has been stored at or above their
        // place yet (rule 3).
        let blocks: [_; UNROLLED] =
            core::array::from_fn(|n| unsafe { load::<N>(src, at + n * size, key) });
        for (n, block) in blocks.into_iter().enumerate() {
            // SAFETY: the blocks are within the `len` bytes (rule 1), and all of them have been
            // loaded (rule 3).
            unsafe { store(dst, at + n * size, block) };
        }
        at += UNROLLED * size;
    }
    while at <= last {
        // SAFETY: a block is left (rule 1), and nothing has been stored at or above its place yet
        // (rule 3).
        let block = unsafe { load::<N>(src, at, key) };
        // SAFETY: the block is within the `len` bytes (rule 1).
        unsafe { store(dst, at, block) };
        at += size;
    }
    // SAFETY: the block ends at the end of the `len` bytes. Rule 4 covers the overlap.
    unsafe { store(dst, last, last_block) };
    // SAFETY: the block is within the `len` bytes. Rule 4 covers the overlap.
    unsafe { store(dst, 0, first_block) };
}

/// The block at `src + at`, combined with the key.
///
/// # Safety
///
/// `4 * N` bytes from there are valid for reads.
#[inline(always)]
unsafe fn load<const N: usize>(src: *const u8, at: usize, key: u32) -> [u32; N] {
    // SAFETY: the caller guarantees that this is within the same bytes.
    let from = unsafe { src.add(at) };
    // SAFETY: the caller guarantees that the bytes are valid. They need no alignment, and any bytes
    // are valid words.
    let mut block = unsafe { from.cast::<[u32; N]>().read_unaligned() };
    for word in &mut block {
        *word ^= key;
    }
    block
}

/// Stores `block` at `dst + at`.
///
/// # Safety
///
/// `4 * N` bytes from there are valid for writes.
#[inline(always)]
unsafe fn store<const N: usize>(dst: *mut u8, at: usize, block: [u32; N]) {
    // SAFETY: the caller guarantees that this is within the same bytes.
    let to = unsafe { dst.add(at) };
    // SAFETY: the caller guarantees that the bytes are valid. They need no alignment.
    unsafe { to.cast::<[u32; N]>().write_unaligned(block) };
}

#[cfg(test)]
mod tests {
    use std::{vec, vec::Vec};

    use super::*;

    fn naive(bytes: &[u8], key: [u8; 4]) -> Vec<u8> {
        bytes.iter().enumerate().map(|(at, byte)| byte ^ key[at % 4]).collect()
    }

    fn noise(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 151 + at / 251 * 7 + 13) as u8).collect()
    }

    const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

    fn lens() -> Vec<usize> {
        match cfg!(miri) {
            true => vec![0, 1, 3, 7, 8, 9, 16, 31, 32, 33, 65, 170, 300],
            false => (0..=300).chain([511, 512, 513, 4095]).collect(),
        }
    }

    #[test]
    fn any_length_at_any_address_is_masked() {
        for len in lens() {
            for offset in 0..if cfg!(miri) { 3 } else { 33 } {
                let mut buffer = noise(offset + len + 40);
                let before = buffer.clone();
                mask(&mut buffer[offset..offset + len], KEY);
                assert_eq!(buffer[..offset], before[..offset], "before {len}@{offset}");
                assert_eq!(
                    buffer[offset..offset + len],
                    naive(&before[offset..offset + len], KEY),
                    "{len}@{offset}"
                );
                assert_eq!(buffer[offset + len..], before[offset + len..], "behind {len}@{offset}");
            }
        }
    }

    #[test]
    fn a_rotated_key_goes_on_where_the_last_one_ended() {
        for len in lens().into_iter().filter(|len| *len < 100) {
            let before = noise(len);
            for cut in 0..=len {
                let mut pieces = before.clone();
                let (first, second) = pieces.split_at_mut(cut);
                mask(first, KEY);
                mask(second, rotate(KEY, cut));
                assert_eq!(pieces, naive(&before, KEY), "{len} cut at {cut}");
            }
        }
    }

    #[test]
    fn moving_down_unmasks_the_source() {
        for len in lens() {
            let all: Vec<usize> = (0..=70).chain([127, 128, 300]).collect();
            for &down in if cfg!(miri) { &[0, 4, 33, 300] } else { &all[..] } {
                for dst in if cfg!(miri) { 13..14 } else { 10..14 } {
                    let src = dst + down;
                    let mut buffer = noise(src + len + 9);
                    let before = buffer.clone();
                    let (head, payload) =
                        unmask_down(&mut buffer, dst - 4, 4, src - 4, 4, len, KEY);
                    assert_eq!(head, &before[dst - 4..dst]);
                    assert_eq!(
                        payload,
                        naive(&before[src..src + len], KEY),
                        "{len} bytes {down} down"
                    );
                    assert_eq!(buffer[..dst], before[..dst]);
                    assert_eq!(buffer[src + len..], before[src + len..]);
                }
            }
        }
    }

    #[test]
    fn masking_while_copying_writes_what_it_should() {
        for len in lens() {
            for filled in [0, 1, 14] {
                let bytes = noise(len);
                let mut out = vec![9; filled];
                copy_masked(&bytes, &mut out, KEY);
                assert_eq!(out[..filled], vec![9; filled]);
                assert_eq!(out[filled..], naive(&bytes, KEY));
                let mut out = vec![9; filled + len + 1];
                mask_to(&bytes, &mut out[filled..filled + len], KEY);
                assert_eq!(out[filled..filled + len], naive(&bytes, KEY));
                assert_eq!((&out[..filled], out[filled + len]), (&vec![9; filled][..], 9));
            }
        }
    }

    #[test]
    #[should_panic = "as long as the bytes"]
    fn a_copy_of_another_length_panics() {
        mask_to(&[0; 20], &mut [0; 19], KEY);
    }

    #[test]
    fn every_width_of_block_agrees() {
        for len in lens().into_iter().filter(|len| *len >= 32) {
            let bytes = noise(len);
            for run in 0..3 {
                let mut out = vec![0; len];
                let key = u32::from_ne_bytes(KEY);
                let (src, dst) = (bytes.as_ptr(), out.as_mut_ptr());
                match run {
                    // SAFETY: two separate vectors of `len` bytes, which is 32 or more.
                    0 => unsafe { blocks::<2>(src, dst, len, key) },
                    // SAFETY: the same.
                    1 => unsafe { blocks::<4>(src, dst, len, key) },
                    // SAFETY: the same.
                    _ => unsafe { blocks::<8>(src, dst, len, key) },
                }
                assert_eq!(out, naive(&bytes, KEY), "{len} bytes, width {run}");
            }
        }
    }

    #[test]
    fn a_move_out_of_the_buffer_or_up_panics() {
        let moved = |start, head, at, gap, len| {
            std::panic::catch_unwind(|| {
                unmask_down(&mut [0; 20], start, head, at, gap, len, KEY);
            })
            .is_ok()
        };
        assert!(moved(2, 2, 4, 6, 10) && moved(4, 6, 4, 6, 10) && moved(18, 2, 18, 2, 0));
        for (start, head, at, gap, len) in [
            (2, 2, 4, 6, 11),
            (2, 2, 15, 6, 0),
            (2, 2, 21, 0, 0),
            (2, 2, usize::MAX, 2, 1),
            (2, 2, 2, usize::MAX, 1),
            (2, 2, 4, 6, usize::MAX),
            (5, 2, 4, 6, 10),
            (4, 7, 4, 6, 10),
            (usize::MAX, 2, 4, 6, 10),
        ] {
            assert!(!moved(start, head, at, gap, len), "{start} {head} {at} {gap} {len}");
        }
    }
}
