//! UTF-8 by vectors, for pieces of text.
//!
//! The algorithm is that of simdutf8: Keiser and Lemire, "Validating UTF-8 in less than one
//! instruction per byte" (2021). Three table look-ups by halves of bytes find the errors of each
//! byte and the one before it. simdutf8 copies the bytes at the end that do not fill 64 into a
//! block of zeros. A piece of a message is short, so that copy is a large part of its cost. The
//! code here ends with a block that overlaps the one before. Checking a byte twice does no harm.
//!
//! # Protocol
//!
//! 1. Functions with vectors are called only on a processor with AVX2.
//! 2. Vectors are loaded from arrays of 32 bytes, which the slice has checked.
//! 3. A byte is checked with the three bytes before it: those of the vector before, or those in
//!    memory.

#![allow(
    unsafe_code,
    reason = "vector instructions that are chosen at run time have no safe form in Rust 1.85"
)]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "all operations of a block have the same precondition, rule 1"
)]
// Rust 1.87 made intrinsics without pointers safe in functions with their target feature.
#![allow(unused_unsafe, reason = "the oldest supported compiler needs these blocks")]

use core::arch::x86_64::{
    __m256i, _mm256_alignr_epi8, _mm256_and_si256, _mm256_loadu_si256, _mm256_movemask_epi8,
    _mm256_or_si256, _mm256_permute2x128_si256, _mm256_set_epi32, _mm256_set1_epi8,
    _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi16, _mm256_subs_epu8,
    _mm256_testz_si256, _mm256_xor_si256,
};

use super::{utf8::Utf8Validator, violation::Violation};

/// The bytes of a vector.
const SIZE: usize = 32;

/// The bytes of a block in which ASCII is looked for.
const ASCII_BLOCK: usize = 4 * SIZE;

/// The least length: the last vector has three bytes before it.
const LEN_MIN: usize = SIZE + 3;

/// Validates the next piece of a text that has not failed. `None` if the piece is too short, or if
/// this processor has no AVX2.
#[inline]
pub(super) fn push(text: &mut Utf8Validator, piece: &[u8]) -> Option<Result<(), Violation>> {
    if piece.len() < LEN_MIN || !super::mask::has_avx2() {
        return None;
    }
    let mut start = 0;
    if text.is_between_characters() && begins_with_ascii(piece) {
        // SAFETY: rule 1: the processor has AVX2.
        start = unsafe { ascii_len(piece) };
        if start == piece.len() {
            return Some(Ok(()));
        }
    }
    // SAFETY: rule 1, as above.
    let valid = unsafe { is_text(piece, start, text.highest_bytes()) };
    Some(text.end_piece(piece, valid))
}

/// Whether the first eight bytes are ASCII. Other text is not searched for ASCII.
#[inline(always)]
fn begins_with_ascii(piece: &[u8]) -> bool {
    let first = piece.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    first & u64::from_ne_bytes([0x80; 8]) == 0
}

/// How many bytes at the start are ASCII: all, or those before the first block that is not, as far
/// as that is found out. Loads between both ends are aligned. Half of them would otherwise cross a
/// cache line.
///
/// # Safety
///
/// The processor has AVX2.
///
/// # Panics
///
/// If there are fewer than 32 bytes.
#[inline(never)]
#[target_feature(enable = "avx2")]
unsafe fn ascii_len(piece: &[u8]) -> usize {
    // SAFETY: rule 1 is the caller's promise, for all functions and intrinsics in this block.
    unsafe {
        let Some(tail) = piece.last_chunk::<ASCII_BLOCK>() else {
            let mut ends = _mm256_or_si256(load(piece, 0), load(piece, piece.len() - SIZE));
            if piece.len() > 2 * SIZE {
                let inner = _mm256_or_si256(load(piece, SIZE), load(piece, piece.len() - 2 * SIZE));
                ends = _mm256_or_si256(ends, inner);
            }
            return if is_ascii(ends) { piece.len() } else { 0 };
        };
        if !is_ascii(_mm256_or_si256(load(piece, 0), any_of(tail))) {
            return 0;
        }
        let mut len = SIZE - piece.as_ptr().addr() % SIZE;
        while len < piece.len() - ASCII_BLOCK {
            let block = piece[len..].first_chunk().expect("more than a block is left");
            if !is_ascii(any_of(block)) {
                return len;
            }
            len += ASCII_BLOCK;
        }
        piece.len()
    }
}

/// The bits that are set in any vector of a block.
///
/// # Safety
///
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn any_of(block: &[u8; ASCII_BLOCK]) -> __m256i {
    // SAFETY: rule 1 is the caller's promise, for all functions and intrinsics in this block.
    unsafe {
        let first = _mm256_or_si256(load(block, 0), load(block, SIZE));
        let second = _mm256_or_si256(load(block, 2 * SIZE), load(block, 3 * SIZE));
        _mm256_or_si256(first, second)
    }
}

/// Whether no byte of this piece is wrong where it is, except perhaps a last byte that begins no
/// character. The last character may be incomplete. The first `start` bytes are ASCII. The highest
/// bytes of `before` are those of an incomplete character before the piece, and the others are
/// zero. If `start` is not zero, all are.
///
/// # Safety
///
/// The processor has AVX2.
///
/// # Panics
///
/// If there are fewer than [`LEN_MIN`] bytes, or fewer than `start`.
#[inline(never)]
#[target_feature(enable = "avx2")]
unsafe fn is_text(piece: &[u8], start: usize, before: u32) -> bool {
    // SAFETY: rule 1 is the caller's promise, for all functions and intrinsics in this block.
    unsafe {
        let mut errors = _mm256_setzero_si256();
        let mut before = last_bytes(before.to_le_bytes());
        let mut blocks = piece[start..].chunks_exact(2 * SIZE);
        for block in &mut blocks {
            let (low, high) = (load(block, 0), load(block, SIZE));
            if is_ascii(_mm256_or_si256(low, high)) {
                errors = _mm256_or_si256(errors, incomplete(before));
            } else {
                errors = _mm256_or_si256(errors, check_after(low, before));
                errors = _mm256_or_si256(errors, check_after(high, low));
            }
            before = high;
        }
        let rest = blocks.remainder();
        if !rest.is_empty() {
            let start = piece.len() - SIZE;
            let last = load(piece, start);
            if rest.len() > SIZE {
                errors = _mm256_or_si256(errors, check_after(load(rest, 0), before));
            }
            let one = load(piece, start - 1);
            let two = load(piece, start - 2);
            let three = load(piece, start - 3);
            errors = _mm256_or_si256(errors, check(last, one, two, three));
        }
        _mm256_testz_si256(errors, errors) == 1
    }
}

/// A vector that ends with these bytes, and is zero before.
///
/// # Safety
///
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn last_bytes(bytes: [u8; 4]) -> __m256i {
    // SAFETY: rule 1 is the caller's promise.
    unsafe { _mm256_set_epi32(i32::from_le_bytes(bytes), 0, 0, 0, 0, 0, 0, 0) }
}

/// The vector at this place of the text.
///
/// # Safety
///
/// The processor has AVX2.
///
/// # Panics
///
/// If there are fewer than 32 bytes from there.
#[inline(always)]
unsafe fn load(text: &[u8], at: usize) -> __m256i {
    let bytes: &[u8; SIZE] = text[at..].first_chunk().expect("the vector lies in the text");
    // SAFETY: rule 1 is the caller's promise. Rule 2: the reference is to 32 readable bytes, and
    // this load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Whether all of these bytes are ASCII.
///
/// # Safety
///
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn is_ascii(bytes: __m256i) -> bool {
    // SAFETY: rule 1 is the caller's promise.
    unsafe { _mm256_movemask_epi8(bytes) == 0 }
}

/// Not zero if the last character of these bytes is incomplete.
///
/// # Safety
///
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn incomplete(bytes: __m256i) -> __m256i {
    // The largest bytes that may be the last but two, the last but one, and the last.
    const LARGEST: [u8; SIZE] = {
        let mut largest = [0xff; SIZE];
        largest[SIZE - 3] = 0xef;
        largest[SIZE - 2] = 0xdf;
        largest[SIZE - 1] = 0xbf;
        largest
    };
    // SAFETY: rule 1 is the caller's promise.
    unsafe { _mm256_subs_epu8(bytes, load(&LARGEST, 0)) }
}

/// The errors of `bytes`, which follow `before`.
///
/// # Safety
///
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn check_after(bytes: __m256i, before: __m256i) -> __m256i {
    // SAFETY: rule 1 is the caller's promise, for all intrinsics in this block.
    unsafe {
        // The upper half of `before` and the lower half of `bytes`.
        let middle = _mm256_permute2x128_si256::<0x21>(before, bytes);
        let one = _mm256_alignr_epi8::<15>(bytes, middle);
        let two = _mm256_alignr_epi8::<14>(bytes, middle);
        let three = _mm256_alignr_epi8::<13>(bytes, middle);
        check(bytes, one, two, three)
    }
}

/// The errors of `bytes`. The other vectors are the bytes one, two and three before each.
///
/// # Safety
///
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn check(bytes: __m256i, one: __m256i, two: __m256i, three: __m256i) -> __m256i {
    // SAFETY: rule 1 is the caller's promise, for all intrinsics in this block.
    unsafe {
        let first_high = look_up(&table::FIRST_HIGH, high_halves(one));
        let low_halves = _mm256_and_si256(one, _mm256_set1_epi8(0x0f));
        let first_low = look_up(&table::FIRST_LOW, low_halves);
        let second_high = look_up(&table::SECOND_HIGH, high_halves(bytes));
        let of_two = _mm256_and_si256(_mm256_and_si256(first_high, first_low), second_high);
        // The highest bit is set where the third or fourth byte of a character must be.
        let third = _mm256_subs_epu8(two, _mm256_set1_epi8(0x60));
        let fourth = _mm256_subs_epu8(three, _mm256_set1_epi8(0x70));
        let must_continue =
            _mm256_and_si256(_mm256_or_si256(third, fourth), _mm256_set1_epi8(-128));
        // `TWO_CONTINUATIONS` is that bit too. It is an error where none must be, and the other way
        // round.
        _mm256_xor_si256(must_continue, of_two)
    }
}

/// The high half of each byte.
///
/// # Safety
///
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn high_halves(bytes: __m256i) -> __m256i {
    // SAFETY: rule 1 is the caller's promise.
    unsafe { _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), _mm256_set1_epi8(0x0f)) }
}

/// The entries of a table at these places, each below 16.
///
/// # Safety
///
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn look_up(table: &[u8; SIZE], places: __m256i) -> __m256i {
    // SAFETY: rule 1 is the caller's promise.
    unsafe { _mm256_shuffle_epi8(load(table, 0), places) }
}

/// The tables of the paper. A bit that is set in all three is an error of two bytes.
mod table {
    /// A lead byte or ASCII follows a lead byte.
    const TOO_SHORT: u8 = 1 << 0;
    /// A continuation byte follows ASCII.
    const TOO_LONG: u8 = 1 << 1;
    /// `e0` with a second byte below `a0`.
    const OVERLONG_3: u8 = 1 << 2;
    /// `f4` with a second byte above `8f`, or a higher lead byte.
    const TOO_LARGE: u8 = 1 << 3;
    /// `ed` with a second byte above `9f`.
    const SURROGATE: u8 = 1 << 4;
    /// `c0` or `c1`.
    const OVERLONG_2: u8 = 1 << 5;
    /// A lead byte above `f4` with a second byte below `90`.
    const TOO_LARGE_1000: u8 = 1 << 6;
    /// `f0` with a second byte below `90`.
    const OVERLONG_4: u8 = 1 << 6;
    /// Two continuation bytes, which is an error unless the second is a third or fourth byte.
    const TWO_CONTINUATIONS: u8 = 1 << 7;
    /// The errors that do not depend on the low half of the first byte.
    const ANY_LOW: u8 = TOO_SHORT | TOO_LONG | TWO_CONTINUATIONS;
    const LARGE: u8 = ANY_LOW | TOO_LARGE | TOO_LARGE_1000;
    /// The errors of any continuation byte in second place.
    const ANY_SECOND: u8 = TOO_LONG | OVERLONG_2 | TWO_CONTINUATIONS;

    /// By the high half of the first byte.
    pub(super) const FIRST_HIGH: [u8; 32] = twice([
        TOO_LONG,
        TOO_LONG,
        TOO_LONG,
        TOO_LONG,
        TOO_LONG,
        TOO_LONG,
        TOO_LONG,
        TOO_LONG,
        TWO_CONTINUATIONS,
        TWO_CONTINUATIONS,
        TWO_CONTINUATIONS,
        TWO_CONTINUATIONS,
        TOO_SHORT | OVERLONG_2,
        TOO_SHORT,
        TOO_SHORT | OVERLONG_3 | SURROGATE,
        TOO_SHORT | TOO_LARGE | TOO_LARGE_1000 | OVERLONG_4,
    ]);

    /// By the low half of the first byte.
    pub(super) const FIRST_LOW: [u8; 32] = twice([
        ANY_LOW | OVERLONG_3 | OVERLONG_2 | OVERLONG_4,
        ANY_LOW | OVERLONG_2,
        ANY_LOW,
        ANY_LOW,
        ANY_LOW | TOO_LARGE,
        LARGE,
        LARGE,
        LARGE,
        LARGE,
        LARGE,
        LARGE,
        LARGE,
        LARGE,
        LARGE | SURROGATE,
        LARGE,
        LARGE,
    ]);

    /// By the high half of the second byte.
    pub(super) const SECOND_HIGH: [u8; 32] = twice([
        TOO_SHORT,
        TOO_SHORT,
        TOO_SHORT,
        TOO_SHORT,
        TOO_SHORT,
        TOO_SHORT,
        TOO_SHORT,
        TOO_SHORT,
        ANY_SECOND | OVERLONG_3 | TOO_LARGE_1000 | OVERLONG_4,
        ANY_SECOND | OVERLONG_3 | TOO_LARGE,
        ANY_SECOND | SURROGATE | TOO_LARGE,
        ANY_SECOND | SURROGATE | TOO_LARGE,
        TOO_SHORT,
        TOO_SHORT,
        TOO_SHORT,
        TOO_SHORT,
    ]);

    /// The table for each half of a vector.
    const fn twice(table: [u8; 16]) -> [u8; 32] {
        let mut both = [0; 32];
        let mut at = 0;
        while at < both.len() {
            both[at] = table[at % table.len()];
            at += 1;
        }
        both
    }
}

// Miri reports a processor without AVX2.
#[cfg(all(test, not(miri)))]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// Compares with the standard library, whole and cut near both ends. Tests nothing on a
    /// processor without AVX2.
    fn check(text: &[u8]) {
        let is_text = core::str::from_utf8(text).is_ok();
        for cut in [0, 1, 2, 3, 33, text.len().saturating_sub(LEN_MIN)] {
            let (first, second) = text.split_at(cut.min(text.len()));
            let mut validator = Utf8Validator::new();
            let valid = validator.push(first).is_ok() && validator.push(second).is_ok();
            let may_continue = core::str::from_utf8(text)
                .map_or_else(|error| error.error_len().is_none(), |_| true);
            assert_eq!(valid, may_continue, "{text:x?} cut at {cut} fails as early as it can");
            assert_eq!(valid && validator.finish().is_ok(), is_text, "{text:x?} cut at {cut}");
        }
    }

    /// Text of `len` bytes with `middle` at `at`.
    fn around(middle: &[u8], at: usize, len: usize) -> Vec<u8> {
        let mut text = std::vec![b'a'; len];
        text[at..at + middle.len()].copy_from_slice(middle);
        text
    }

    #[test]
    fn this_machine_has_vectors_or_the_tests_say_so() {
        let has = crate::protocol::mask::has_avx2();
        let (wrong, mut text) = (Err(Violation::InvalidUtf8), Utf8Validator::new());
        assert_eq!(push(&mut text, &[b'a'; LEN_MIN]), has.then_some(Ok(())));
        assert_eq!(push(&mut text, &[b'a'; LEN_MIN - 1]), None);
        text.push(b"\xc3").unwrap();
        assert_eq!(push(&mut text, &[b'a'; LEN_MIN]), has.then_some(wrong));
    }

    #[test]
    fn every_two_bytes_across_every_boundary() {
        for first in 0..=255_u8 {
            for second in [0, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc2, 0xe1, 0xf1] {
                for at in [0, 31, 32, 62, 63, 64, 65, 96, 97, 98] {
                    check(&around(&[first, second], at, 100));
                }
            }
        }
    }

    #[test]
    fn characters_and_near_misses_at_every_place_of_every_length() {
        let middles: [&[u8]; 16] = [
            "é".as_bytes(),
            "漢".as_bytes(),
            "🦀".as_bytes(),
            b"\xe2\x82",
            b"\xf0\x9f\xa6",
            b"\xc3",
            b"\x80",
            b"\xe0\x9f\x80",
            b"\xed\xa0\x80",
            b"\xed\x9f\xbf",
            b"\xf0\x8f\x80\x80",
            b"\xf4\x90\x80\x80",
            b"\xf4\x8f\xbf\xbf",
            b"\xc1\x80",
            b"\xf5\x80\x80\x80",
            b"\xe2\x82\xac\x80",
        ];
        for len in (LEN_MIN..100).chain(126..132).chain(160..164) {
            for middle in middles {
                for at in 0..=len - middle.len() {
                    check(&around(middle, at, len));
                }
            }
        }
    }

    #[test]
    fn dense_text_with_one_changed_byte() {
        for script in ["é", "漢", "🦀", "aé漢🦀"] {
            let mut text = script.repeat(80).into_bytes();
            for len in [35, 36, 37, 38, 63, 64, 65, 95, 96, 97, 127, 128, 129, 160] {
                for shorter in LEN_MIN..=len {
                    check(&text[..shorter]);
                }
                for at in 0..len {
                    for byte in [0, b'a', 0x80, 0xbf, 0xc3, 0xe2, 0xf0, 0xff] {
                        let kept = core::mem::replace(&mut text[at], byte);
                        check(&text[..len]);
                        text[at] = kept;
                    }
                }
            }
        }
    }

    /// Bytes that are often nearly text.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            any::<char>().prop_map(|char| std::string::String::from(char).into_bytes()),
            "[a-z]{1,40}".prop_map(std::string::String::into_bytes),
            prop::collection::vec(any::<u8>(), 1..3),
            Just(b"\xe2\x82".to_vec()),
        ];
        let weighted = (prop::collection::vec(piece, 1..60), any::<bool>());
        weighted.prop_map(|(pieces, only_text)| {
            let is_wanted = |piece: &&Vec<u8>| !only_text || core::str::from_utf8(piece).is_ok();
            pieces.iter().filter(is_wanted).flatten().copied().collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]
        #[test]
        fn any_bytes_are_judged_as_by_the_standard_library(bytes in bytes()) {
            check(&bytes);
        }
    }
}
