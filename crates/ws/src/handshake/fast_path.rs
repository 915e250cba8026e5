//! The fast path for complete, common heads: one function finds, checks and splits them.
//!
//! It accepts a subset of the heads that the [`HeadScanner`](super::head::HeadScanner) and
//! [`Headers::check`] accept. To other heads, which are incomplete, wrong or unusual, it returns
//! `None`, and they decide.

use super::fields::{Headers, NameSet, known};
use super::head::{HeadLimits, first_line_max};
use super::syntax::{is_token, is_value_byte};

/// The position of a head in the received bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompleteHead<'a> {
    pub(super) first_line: &'a [u8],
    pub(super) headers: Headers<'a>,
    /// The length of the whole head, including the empty line.
    pub(super) len: usize,
}

/// Splits the head at the start of these bytes. `None` means that the slow path must decide.
pub(super) fn read<'a>(
    bytes: &'a [u8],
    limits: &HeadLimits,
    single: NameSet,
) -> Option<CompleteHead<'a>> {
    let first_end = line_end(bytes, 0)?;
    let is_good =
        first_end > 0 && first_end <= first_line_max(limits) && !matches!(bytes[0], b' ' | b'\t');
    if !is_good {
        return None;
    }
    let lines = &bytes[first_end + 2..];
    let mut headers = Headers::of(lines);
    let (mut at, mut count) = (0, 0);
    loop {
        let line = lines.get(at..)?;
        if line.starts_with(b"\r\n") {
            break;
        }
        // The part before the colon is a token, so it contains no blanks and no line end.
        let colon = colon(line)?;
        let name = &line[..colon];
        let value = at + colon + 1;
        let end = line_end(lines, value)?;
        match known(name) {
            Some(index) => headers.note(index, value, end, single).ok()?,
            None if is_token(name) => {}
            None => return None,
        }
        at = end + 2;
        count += 1;
    }
    let len = first_end + 2 + at + 2;
    let is_within = len <= limits.head_bytes_max && count <= limits.headers_max;
    is_within.then(|| CompleteHead {
        first_line: &bytes[..first_end],
        headers: headers.up_to(at),
        len,
    })
}

/// The end of the line that continues at `from`, if everything before it is valid in a line.
#[inline]
fn line_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += plain_len(bytes.get(at..)?);
        match bytes.get(at..)? {
            [b'\r', b'\n', ..] => return Some(at),
            [b'\t', ..] => at += 1,
            _ => return None,
        }
    }
}

/// The same byte eight times.
const fn eight(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// The number of bytes before the first one whose top bit is set in its mask. Eight bytes are
/// tested as one number. A carry changes only the bytes after its origin, and only the first match
/// counts.
#[inline(always)]
fn len_before(bytes: &[u8], mask: impl Fn(u64) -> u64, is_it: impl Fn(u8) -> bool) -> usize {
    let mut at = 0;
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        let found = mask(u64::from_le_bytes(*word)) & eight(0x80);
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    at + bytes[at..].iter().position(|&byte| is_it(byte)).unwrap_or(bytes.len() - at)
}

/// The number of leading bytes that are neither below the space nor DEL.
#[inline]
fn plain_len(bytes: &[u8]) -> usize {
    let mask = |word: u64| {
        let control = word.wrapping_sub(eight(b' ')) & !word;
        let other = word ^ eight(0x7f);
        control | (other.wrapping_sub(eight(1)) & !other)
    };
    len_before(bytes, mask, |byte| !is_value_byte(byte) || byte == b'\t')
}

/// The index of the first colon.
#[inline]
fn colon(bytes: &[u8]) -> Option<usize> {
    let mask = |word: u64| {
        let other = word ^ eight(b':');
        other.wrapping_sub(eight(1)) & !other
    };
    let at = len_before(bytes, mask, |byte| byte == b':');
    (at < bytes.len()).then_some(at)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::super::head::{self, HeadScanner};
    use super::*;

    const SINGLE: NameSet = super::super::fields::names(&["Host", "Origin"]);

    /// The result of the slow path: the first line, all headers, and the length.
    fn carefully<'a>(
        bytes: &'a [u8],
        limits: &HeadLimits,
    ) -> Option<(&'a [u8], Headers<'a>, usize)> {
        let len = HeadScanner::new().scan(bytes, limits).ok()??;
        let (first_line, lines) = head::split(&bytes[..len]);
        Some((first_line, Headers::check(lines, SINGLE).ok()?, len))
    }

    fn agree(bytes: &[u8], limits: &HeadLimits) -> bool {
        let Some(whole) = read(bytes, limits, SINGLE) else { return false };
        let (first_line, headers, len) =
            carefully(bytes, limits).expect("it is accepted in one go alone");
        assert_eq!((whole.first_line, whole.len), (first_line, len));
        assert!(whole.headers.eq(headers), "{:?} {headers:?}", whole.headers);
        for name in ["Host", "upgrade", "Connection", "x"] {
            assert_eq!(whole.headers.first(name), headers.first(name));
        }
        true
    }

    const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost:  a.example:80 \t\r\nx-y: \xc3\xa4\tb\r\n\
                          UPGRADE: websocket\r\nConnection:\r\n\r\nrest";

    #[test]
    fn a_head_is_taken_apart_as_the_careful_way_does() {
        assert!(agree(HEAD, &HeadLimits::DEFAULT));
        assert!(agree(b"a\r\n\r\n", &HeadLimits::DEFAULT));
        for len in 0..HEAD.len() - 4 {
            assert!(!agree(&HEAD[..len], &HeadLimits::DEFAULT), "{len}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "long loops over safe code")]
    fn with_any_byte_at_any_place_both_ways_agree() {
        let mut accepted = 0;
        for at in 0..HEAD.len() {
            for byte in 0..=u8::MAX {
                let mut bytes = HEAD.to_vec();
                bytes[at] = byte;
                accepted += usize::from(agree(&bytes, &HeadLimits::DEFAULT));
                let is_right = carefully(&bytes, &HeadLimits::DEFAULT).is_some();
                let is_taken = read(&bytes, &HeadLimits::DEFAULT, SINGLE).is_some();
                assert_eq!(is_taken, is_right, "{:?}", bytes.escape_ascii());
            }
        }
        assert!(accepted > 1000);
    }

    #[test]
    fn limits_are_met_exactly() {
        let with = |head_bytes_max, headers_max, target_bytes_max| HeadLimits {
            head_bytes_max,
            headers_max,
            target_bytes_max,
        };
        let len = HEAD.len() - 4;
        assert!(agree(HEAD, &with(len, 4, 0)));
        assert!(!agree(HEAD, &with(len - 1, 4, 0)));
        assert!(!agree(HEAD, &with(len, 3, 0)));
        let long = |len: usize| [&[b'a'; 100][..len], b"\r\n\r\n"].concat();
        let most = first_line_max(&with(0, 0, 8));
        assert!(agree(&long(most), &with(1000, 0, 8)));
        assert!(!agree(&long(most + 1), &with(1000, 0, 8)));
    }

    #[test]
    fn a_repeated_single_header_is_rejected() {
        assert!(!agree(b"a\r\nHost: a\r\nhost: a\r\n\r\n", &HeadLimits::DEFAULT));
        assert!(agree(b"a\r\nUpgrade: a\r\nupgrade: a\r\n\r\n", &HeadLimits::DEFAULT));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 2_000,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Combines pieces that are likely to form a head with some that spoil it.
        #[test]
        #[cfg_attr(miri, ignore = "long loops over safe code")]
        fn both_ways_agree(pieces in prop::collection::vec(0..14_usize, 1..24)) {
            let parts: [&[u8]; 14] = [
                b"GET / HTTP/1.1", b"\r\n", b"\r\n", b"\r\n", b"Host", b": ", b":", b"Upgrade",
                b"x", b" ", b"\t", b"12345678", b"\r", b"\x7f\x1f\xff",
            ];
            let bytes: Vec<u8> = pieces.iter().flat_map(|&piece| parts[piece]).copied().collect();
            let bytes = [b"GET / HTTP/1.1\r\n", &bytes[..], b"\r\n\r\n"].concat();
            let limits = HeadLimits { headers_max: 3, ..HeadLimits::DEFAULT };
            let is_right = carefully(&bytes, &limits).is_some();
            prop_assert_eq!(agree(&bytes, &limits), is_right);
        }
    }
}
