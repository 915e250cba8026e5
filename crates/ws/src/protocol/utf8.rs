//! UTF-8 that arrives in pieces.

use super::violation::Violation;

/// Validates text that arrives in pieces. It fails at the first byte that no valid text can have
/// there.
///
/// It keeps at most the three bytes of an incomplete character.
///
/// Source: RFC 6455 sections 5.6 and 8.1, RFC 3629.
///
/// ```
/// use windlass_ws::Utf8Validator;
///
/// let mut text = Utf8Validator::new();
/// text.push(b"gr\xc3")?;
/// text.push(b"\xbc\xc3\x9fe")?;
/// text.finish()?;
/// assert!(text.push(b"\xed\xa0").is_err(), "a surrogate, seen before its last byte");
/// # Ok::<(), windlass_ws::Violation>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Utf8Validator {
    /// The first `len` bytes of an incomplete character, the first byte lowest.
    carry: u32,
    /// Below four, or [`FAILED`].
    len: u8,
}

/// The value of `Utf8Validator::len` after an error. The error is permanent.
const FAILED: u8 = u8::MAX;

/// Pieces of at most this number of bytes are tested for ASCII first.
const SHORT_MAX: usize = 34;

impl Utf8Validator {
    /// A validator that has received nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { carry: 0, len: 0 }
    }

    /// Validates the next piece, of any length, split anywhere.
    ///
    /// # Errors
    ///
    /// [`Violation::InvalidUtf8`] if the text is invalid, and on every later call.
    #[inline]
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Violation> {
        #[cfg(target_arch = "x86_64")]
        if self.len != FAILED {
            if let Some(result) = super::utf8_blocks::push(self, piece) {
                return result;
            }
        }
        self.push_by_characters(piece)
    }

    /// Whether the text so far is valid and ends with a whole character.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(super) const fn is_between_characters(&self) -> bool {
        self.len == 0
    }

    /// Keeps the incomplete character at the end of a piece that is longer than a character. Its
    /// bytes are valid after each other, if `valid`, but the last one may begin no character.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(super) fn end_piece(&mut self, piece: &[u8], valid: bool) -> Result<(), Violation> {
        if valid {
            let rest = &piece[piece.len() - incomplete_len(piece)..];
            (self.carry, self.len) = (word(rest), rest.len() as u8);
            if rest.is_empty() || is_lead(rest[0]) {
                return Ok(());
            }
        }
        self.len = FAILED;
        Err(Violation::InvalidUtf8)
    }

    /// The kept bytes, the last one highest. The text has not failed.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(super) fn highest_bytes(&self) -> u32 {
        if self.len == 0 { 0 } else { self.carry << (8 * (4 - u32::from(self.len))) }
    }

    /// Validates a piece by its characters.
    #[inline(never)]
    fn push_by_characters(&mut self, piece: &[u8]) -> Result<(), Violation> {
        // A function pointer and a copy in simdutf8 would take longer than this test.
        if self.len == 0 && piece.len() <= SHORT_MAX && is_ascii(piece) {
            return Ok(());
        }
        let result = self.check_by_characters(piece);
        if result.is_err() {
            self.len = FAILED;
        }
        result
    }

    #[inline]
    fn check_by_characters(&mut self, piece: &[u8]) -> Result<(), Violation> {
        let piece = if self.len == 0 { piece } else { self.complete(piece)? };
        let (whole, rest) = piece.split_at(piece.len() - incomplete_len(piece));
        if !is_text(whole) {
            return Err(Violation::InvalidUtf8);
        }
        if rest.is_empty() { Ok(()) } else { self.keep(rest) }
    }

    /// Ends the text.
    ///
    /// # Errors
    ///
    /// [`Violation::InvalidUtf8`] if the last character is incomplete.
    #[inline]
    pub const fn finish(&self) -> Result<(), Violation> {
        if self.len == 0 { Ok(()) } else { Err(Violation::InvalidUtf8) }
    }

    /// Completes the kept character with bytes from `piece`, and returns the rest.
    #[inline]
    fn complete<'a>(&mut self, piece: &'a [u8]) -> Result<&'a [u8], Violation> {
        if self.len == FAILED {
            return Err(Violation::InvalidUtf8);
        }
        let len = usize::from(self.len);
        let [lead, ..] = self.carry.to_le_bytes();
        let (more, rest) = piece.split_at(piece.len().min(width(lead) - len));
        self.carry |= word(more) << (8 * len);
        let len = len + more.len();
        if !is_start(self.carry, len) {
            return Err(Violation::InvalidUtf8);
        }
        self.len = if len == width(lead) { 0 } else { len as u8 };
        Ok(rest)
    }

    /// Keeps the start of an incomplete character, if it can become valid.
    #[inline]
    fn keep(&mut self, rest: &[u8]) -> Result<(), Violation> {
        (self.carry, self.len) = (word(rest), rest.len() as u8);
        if is_start(self.carry, rest.len()) { Ok(()) } else { Err(Violation::InvalidUtf8) }
    }
}

/// The first three of these bytes as one number, the first byte lowest.
#[inline]
fn word(bytes: &[u8]) -> u32 {
    match *bytes {
        [] => 0,
        [a] => u32::from(a),
        [a, b] => u32::from_le_bytes([a, b, 0, 0]),
        [a, b, c, ..] => u32::from_le_bytes([a, b, c, 0]),
    }
}

/// Whether the lowest `len` bytes, at least one, begin or are a character of more than one byte
/// (RFC 3629 section 4).
#[inline]
const fn is_start(bytes: u32, len: usize) -> bool {
    let [lead, second, third, fourth] = bytes.to_le_bytes();
    let (low, high) = match lead {
        0xe0 => (0xa0, 0xbf),
        0xed => (0x80, 0x9f),
        0xf0 => (0x90, 0xbf),
        0xf4 => (0x80, 0x8f),
        0xc2..=0xf3 => (0x80, 0xbf),
        _ => return false,
    };
    (len < 2 || (low <= second && second <= high))
        && (len < 3 || is_continuation(third))
        && (len < 4 || is_continuation(fourth))
}

/// Whether a character of more than one byte may begin with this byte.
#[cfg(target_arch = "x86_64")]
const fn is_lead(byte: u8) -> bool {
    matches!(byte, 0xc2..=0xf4)
}

const fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// Whether all of these bytes are ASCII. Inlined, for few bytes: it takes two loads and a test for
/// each 16 bytes.
#[inline(always)]
pub(crate) fn is_ascii(bytes: &[u8]) -> bool {
    const HIGH_BITS: u128 = u128::from_ne_bytes([0x80; 16]);
    let wide = |chunk: &[u8; 16]| u128::from_ne_bytes(*chunk);
    // Blocks overlap, so that all of them are complete.
    let any = if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let middle = if bytes.len() > 32 { &bytes[16..] } else { &[] };
        let middle = middle.chunks_exact(16).filter_map(|chunk| chunk.first_chunk());
        middle.fold(wide(first) | wide(last), |any, chunk| any | wide(chunk))
    } else if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        u128::from(u64::from_ne_bytes(*first) | u64::from_ne_bytes(*last))
    } else {
        bytes.iter().fold(0, |any, byte| any | u128::from(*byte))
    };
    any & HIGH_BITS == 0
}

/// Whether these bytes are UTF-8.
#[inline(never)]
pub(crate) fn is_text(bytes: &[u8]) -> bool {
    // simdutf8 passes fewer bytes to the standard library.
    if bytes.len() < 64 { is_short_text(bytes) } else { simdutf8::basic::from_utf8(bytes).is_ok() }
}

/// [`is_text`] by an automaton that takes one byte after the other, without a branch.
///
/// Source of the method: Per Vognsen, "Shift-based DFAs" (2022). Of the automaton: Unicode 16.0,
/// table 3-7, and RFC 3629 section 4.
fn is_short_text(bytes: &[u8]) -> bool {
    let next = |state: u64, byte: &u8| ROWS[usize::from(*byte)] >> (state & STATE);
    let chunks = bytes.chunks_exact(4);
    let rest = chunks.remainder();
    let state = chunks.fold(START, |state, chunk| chunk.iter().fold(state, next));
    rest.iter().fold(state, next) & STATE == START
}

/// The bits of a state. The others of a number are ignored.
const STATE: u64 = 63;

/// A state is a bit offset into a row. The six bits there are the next state: 0 if the bytes are
/// not UTF-8, which is never left.
const START: u64 = 6;
/// One continuation byte is missing. In the next two: two and three.
const ONE: u64 = 12;
const TWO: u64 = 18;
const THREE: u64 = 24;
/// The second byte after this first byte is restricted.
const E0: u64 = 30;
const ED: u64 = 36;
const F0: u64 = 42;
const F4: u64 = 48;

/// The next states of all states, for each byte.
static ROWS: [u64; 256] = {
    let mut rows = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        rows[byte] = row(byte as u8);
        byte += 1;
    }
    rows
};

const fn row(byte: u8) -> u64 {
    let continued = ONE << TWO | START << ONE | TWO << THREE;
    match byte {
        ..0x80 => START << START,
        0x80..0x90 => continued | ONE << ED | TWO << F4,
        0x90..0xa0 => continued | ONE << ED | TWO << F0,
        0xa0..0xc0 => continued | ONE << E0 | TWO << F0,
        0xc0 | 0xc1 | 0xf5.. => 0,
        0xe0 => E0 << START,
        0xed => ED << START,
        0xf0 => F0 << START,
        0xf4 => F4 << START,
        0xc2..0xe0 => ONE << START,
        0xe1..0xf0 => TWO << START,
        0xf1..0xf4 => THREE << START,
    }
}

/// The length of a character with this first byte, which is not ASCII.
const fn width(lead: u8) -> usize {
    match lead {
        0xf0.. => 4,
        0xe0.. => 3,
        _ => 2,
    }
}

/// How many bytes at the end belong to an incomplete character: none to three.
#[inline]
const fn incomplete_len(text: &[u8]) -> usize {
    match text {
        [.., 0xc0..=0xff] => 1,
        [.., 0xe0..=0xff, 0x80..=0xbf] => 2,
        [.., 0xf0..=0xff, 0x80..=0xbf, 0x80..=0xbf] => 3,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// The length of the shortest prefix that no further bytes can make valid. `None` if the text
    /// may continue.
    fn earliest_failure(bytes: &[u8]) -> Option<usize> {
        (1..=bytes.len()).find(|&len| match core::str::from_utf8(&bytes[..len]) {
            Ok(_) => false,
            Err(error) => error.error_len().is_some(),
        })
    }

    #[test]
    fn a_byte_above_ascii_is_found_at_every_place() {
        for len in (0..130).step_by(if cfg!(miri) { 5 } else { 1 }) {
            let mut bytes = std::vec![b'a'; len];
            assert!(is_ascii(&bytes), "{len}");
            for at in 0..len {
                bytes[at] = 0x80;
                assert!(!is_ascii(&bytes), "{at} of {len}");
                bytes[at] = 0x7f;
            }
        }
    }

    #[test]
    fn an_error_is_permanent() {
        for wrong in [&b"\xff"[..], b"\xf0\x9f\xa6\xff", b"\xed\xa0"] {
            let mut text = Utf8Validator::new();
            assert!(wrong.iter().any(|byte| text.push(&[*byte]).is_err()));
            for piece in [&b"ok"[..], b"", b"\xf0\x9f\xa6\x80"] {
                assert!(
                    text.push(piece).is_err() && text.finish().is_err(),
                    "{wrong:x?} {piece:x?}"
                );
            }
        }
    }

    fn by_pieces<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<(), Violation> {
        let mut text = Utf8Validator::new();
        for piece in pieces {
            text.push(piece)?;
        }
        text.finish()
    }

    fn failure_byte_by_byte(bytes: &[u8]) -> Option<usize> {
        let mut text = Utf8Validator::new();
        bytes.iter().position(|byte| text.push(&[*byte]).is_err()).map(|at| at + 1)
    }

    fn check(bytes: &[u8]) {
        let valid = core::str::from_utf8(bytes).is_ok();
        assert_eq!(failure_byte_by_byte(bytes), earliest_failure(bytes), "{bytes:x?}");
        assert_eq!(is_short_text(bytes), valid, "{bytes:x?}");
        assert_eq!(is_text(bytes), valid, "{bytes:x?}");
        assert_eq!(by_pieces([bytes].into_iter()).is_ok(), valid, "{bytes:x?}");
        assert_eq!(by_pieces(bytes.chunks(1)).is_ok(), valid, "{bytes:x?} byte by byte");
        let whole_may_go_on = Utf8Validator::new().push(bytes).is_ok();
        assert_eq!(whole_may_go_on, earliest_failure(bytes).is_none(), "{bytes:x?} at once");
        for cut in 0..=bytes.len() {
            let (first, second) = bytes.split_at(cut);
            assert_eq!(
                by_pieces([first, second].into_iter()).is_ok(),
                valid,
                "{bytes:x?} cut at {cut}"
            );
            assert_eq!(
                Utf8Validator::new().push(first).is_ok(),
                earliest_failure(first).is_none(),
                "{first:x?}"
            );
            for again in cut..=bytes.len() {
                let pieces = [first, &bytes[cut..again], &bytes[again..]];
                assert_eq!(
                    by_pieces(pieces.into_iter()).is_ok(),
                    valid,
                    "{bytes:x?} cut at {cut} and {again}"
                );
            }
        }
    }

    #[test]
    fn tricky_text_at_every_split() {
        let tricky: [&[u8]; 22] = [
            b"",
            b"plain",
            "\u{80}\u{7ff}\u{800}\u{ffff}\u{10000}\u{10ffff}".as_bytes(),
            "κόσμε 漢字 🦀!".as_bytes(),
            b"\xc0\xaf",
            b"\xc1\xbf",
            b"\xe0\x80\xaf",
            b"\xe0\x9f\xbf",
            b"\xe0\xa0\x80",
            b"\xed\x9f\xbf",
            b"\xed\xa0\x80",
            b"\xee\x80\x80",
            b"\xf0\x80\x80\x80",
            b"\xf0\x8f\xbf\xbf",
            b"\xf0\x90\x80\x80",
            b"\xf4\x8f\xbf\xbf",
            b"\xf4\x90\x80\x80",
            b"\xf5\x80\x80\x80",
            b"\xff\xfe",
            b"a\x80\x80\x80\x80",
            b"\xf0\x9f\xa6",
            b"\xce\xba\xe1\xbd\xb9\xcf\x83\xed\xa0\x80 edited",
        ];
        for bytes in tricky {
            check(bytes);
        }
    }

    #[test]
    fn every_sequence_of_two_and_the_leads_of_three_bytes() {
        if cfg!(miri) {
            return;
        }
        for first in 0..=255u8 {
            for second in 0..=255u8 {
                check(&[first, second]);
            }
        }
    }

    #[test]
    fn every_sequence_of_three_bytes_fails_where_std_says() {
        if cfg!(miri) {
            return;
        }
        for first in 0x7f..=255u8 {
            for second in 0..=255u8 {
                for third in 0..=255u8 {
                    let bytes = [first, second, third];
                    assert_eq!(
                        failure_byte_by_byte(&bytes),
                        earliest_failure(&bytes),
                        "{bytes:x?}"
                    );
                    assert_eq!(
                        Utf8Validator::new().push(&bytes).is_ok(),
                        earliest_failure(&bytes).is_none(),
                        "{bytes:x?} at once"
                    );
                    let valid = core::str::from_utf8(&bytes).is_ok();
                    assert_eq!(is_short_text(&bytes), valid, "{bytes:x?} by the automaton");
                }
            }
        }
    }

    #[test]
    fn sequences_of_four_bytes_at_every_split() {
        let edges: &[u8] =
            if cfg!(miri) { &[0x7f, 0x80, 0xbf] } else { &[0x7f, 0x80, 0x8f, 0x90, 0xbf, 0xc0] };
        for lead in 0xee..=0xf5 {
            for &second in edges {
                for &third in edges {
                    for &fourth in edges {
                        check(&[lead, second, third, fourth, b'.']);
                    }
                }
            }
            if cfg!(miri) {
                return;
            }
        }
    }

    #[test]
    fn long_text_is_checked_by_vectors_as_by_bytes() {
        let mut text: Vec<u8> =
            "åß∂ƒ©˙∆˚¬…æ 漢字仮名 🦀🚀 plain ".repeat(if cfg!(miri) { 2 } else { 9 }).into_bytes();
        for cut in 0..=text.len() {
            let (first, second) = text.split_at(cut);
            assert_eq!(by_pieces([first, second].into_iter()), Ok(()), "cut at {cut}");
        }
        for at in 0..text.len() {
            let kept = core::mem::replace(&mut text[at], 0xff);
            assert!(by_pieces([&text[..]].into_iter()).is_err(), "broken at {at}");
            text[at] = kept;
        }
    }
}
