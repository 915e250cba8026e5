//! Finds the end of a head and rejects invalid ones. It examines each byte once, however the bytes
//! are split.

use super::syntax::{are_value_bytes, is_value_byte};

/// Limits on the size of a head.
///
/// ```
/// use windlass_ws::handshake::{HeadLimits, Rejection, Request};
///
/// let mut limits = HeadLimits::DEFAULT;
/// limits.headers_max = 1;
/// let head = b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n";
/// assert_eq!(Request::parse(head, &limits).err(), Some(Rejection::TooManyHeaders));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeadLimits {
    /// The whole head, in bytes, including the empty line. Default: 8192.
    pub head_bytes_max: usize,
    /// The number of header lines. Default: 64.
    pub headers_max: usize,
    /// The target of a request, in bytes. Default: 4096.
    pub target_bytes_max: usize,
}

impl HeadLimits {
    /// The defaults that the fields document.
    pub const DEFAULT: Self =
        Self { head_bytes_max: 8192, headers_max: 64, target_bytes_max: 4096 };
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Why the head of a request or response is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadError {
    ControlCharacter,
    FoldedLine,
    FirstLineTooLong,
    TooLong,
    TooManyHeaders,
    HeaderName,
    DuplicateHeader,
}

/// The most bytes of a first line beside the target: the longest method and version, and the
/// spaces.
const FIRST_LINE_EXTRA: usize = 32;

/// The longest first line, in bytes.
pub(super) const fn first_line_max(limits: &HeadLimits) -> usize {
    limits.target_bytes_max.saturating_add(FIRST_LINE_EXTRA)
}

/// The state of the scan of a head.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadScanner {
    /// Bytes scanned.
    total: usize,
    /// Complete lines, without a leading empty one.
    lines: usize,
    /// Bytes of the incomplete line.
    line_len: usize,
    after_cr: bool,
    skipped_empty: bool,
}

impl HeadScanner {
    /// A scanner at the start of a head.
    pub(super) const fn new() -> Self {
        Self { total: 0, lines: 0, line_len: 0, after_cr: false, skipped_empty: false }
    }

    /// Scans the next bytes. Returns how many of them belong to the head, if it ends here.
    pub(super) fn scan(
        &mut self,
        bytes: &[u8],
        limits: &HeadLimits,
    ) -> Result<Option<usize>, HeadError> {
        let first_line_max = first_line_max(limits);
        let mut rest = bytes;
        while let Some((&first, _)) = rest.split_first() {
            if let (Some(after), false, true) =
                (rest.strip_prefix(b"\r\n"), self.after_cr, self.total + 2 <= limits.head_bytes_max)
            {
                self.total += 2;
                rest = after;
                if self.line_ends(limits)? {
                    return Ok(Some(bytes.len() - rest.len()));
                }
                continue;
            }
            let run =
                if self.after_cr { 0 } else { memchr::memchr(b'\r', rest).unwrap_or(rest.len()) };
            let is_plain = self.total.saturating_add(run) <= limits.head_bytes_max
                && (self.lines > 0 || self.line_len.saturating_add(run) <= first_line_max)
                && (self.line_len > 0 || !matches!(first, b' ' | b'\t'))
                && are_value_bytes(&rest[..run]);
            if run > 0 && is_plain {
                self.total += run;
                self.line_len += run;
                rest = &rest[run..];
                continue;
            }
            // The run ends with a line end, or with an invalid byte.
            let (some, others) = rest.split_at(run.max(1));
            if let Some(used) = self.step_through(some, first_line_max, limits)? {
                return Ok(Some(bytes.len() - rest.len() + used));
            }
            rest = others;
        }
        Ok(None)
    }

    /// Like [`scan`](Self::scan), but byte by byte.
    fn step_through(
        &mut self,
        bytes: &[u8],
        first_line_max: usize,
        limits: &HeadLimits,
    ) -> Result<Option<usize>, HeadError> {
        for (index, &byte) in bytes.iter().enumerate() {
            self.total += 1;
            if self.total > limits.head_bytes_max {
                return Err(HeadError::TooLong);
            }
            if self.after_cr {
                // A bare CR. Some programs treat it as a line end (RFC 9112 section 2.2).
                if byte != b'\n' {
                    return Err(HeadError::ControlCharacter);
                }
                self.after_cr = false;
                if self.line_ends(limits)? {
                    return Ok(Some(index + 1));
                }
            } else if byte == b'\r' {
                self.after_cr = true;
            } else if !is_value_byte(byte) {
                return Err(HeadError::ControlCharacter);
            } else {
                if self.line_len == 0 && matches!(byte, b' ' | b'\t') {
                    return Err(HeadError::FoldedLine);
                }
                self.line_len += 1;
                if self.lines == 0 && self.line_len > first_line_max {
                    return Err(HeadError::FirstLineTooLong);
                }
            }
        }
        Ok(None)
    }

    /// Whether this line ends the head.
    fn line_ends(&mut self, limits: &HeadLimits) -> Result<bool, HeadError> {
        if self.line_len == 0 {
            if self.lines > 0 {
                return Ok(true);
            }
            // One empty line before a request may be left over from the previous one (RFC 9112
            // section 2.2).
            if self.skipped_empty {
                return Err(HeadError::ControlCharacter);
            }
            self.skipped_empty = true;
            return Ok(false);
        }
        self.lines += 1;
        self.line_len = 0;
        if self.lines - 1 > limits.headers_max { Err(HeadError::TooManyHeaders) } else { Ok(false) }
    }
}

/// Splits a whole head, as found by the scanner, into the first line and the header lines.
pub(super) fn split(head: &[u8]) -> (&[u8], &[u8]) {
    let head = head.strip_prefix(b"\r\n").unwrap_or(head);
    let head = head.strip_suffix(b"\r\n").unwrap_or(head);
    let end = memchr::memchr(b'\r', head).unwrap_or(head.len());
    (&head[..end], head.get(end + 2..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(bytes: &[u8]) -> Result<Option<usize>, HeadError> {
        HeadScanner::new().scan(bytes, &HeadLimits::DEFAULT)
    }

    #[test]
    fn the_end_is_the_first_empty_line() {
        assert_eq!(scan(b"a\r\nb: c\r\n\r\nd"), Ok(Some(11)));
        assert_eq!(scan(b"a\r\n\r\n"), Ok(Some(5)));
        assert_eq!(scan(b"\r\na\r\n\r\n"), Ok(Some(7)));
        assert_eq!(scan(b"a\r\nb: c\r\n\r"), Ok(None));
        assert_eq!(scan(b""), Ok(None));
    }

    #[test]
    fn errors_are_reported_at_their_byte() {
        assert_eq!(scan(b"a\n"), Err(HeadError::ControlCharacter));
        assert_eq!(scan(b"a\rb"), Err(HeadError::ControlCharacter));
        assert_eq!(scan(b"a\0"), Err(HeadError::ControlCharacter));
        assert_eq!(scan(b"a\x7f"), Err(HeadError::ControlCharacter));
        assert_eq!(scan(b"\x16\x03\x01"), Err(HeadError::ControlCharacter), "a TLS client");
        assert_eq!(scan(b"\r\n\r\n"), Err(HeadError::ControlCharacter));
        assert_eq!(scan(b" "), Err(HeadError::FoldedLine));
        assert_eq!(scan(b"a\r\n\t"), Err(HeadError::FoldedLine));
    }

    /// Scans each head at once, in two pieces, and byte by byte. The results agree, except for the
    /// kind of error.
    #[test]
    #[cfg_attr(miri, ignore = "long loops over safe code")]
    fn the_cut_does_not_matter() {
        let long = [&b"GET /"[..], &[b'x'; 5000], b" HTTP/1.1\r\n\r\n"].concat();
        let heads: [&[u8]; 9] = [
            b"GET / HTTP/1.1\r\nHost: a\r\nX: \xc3\xa4\t b\r\n\r\nrest",
            b"\r\nGET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\nb\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
            b"GET / HTTP/1.1\r\n folded\r\n\r\n",
            b" GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\n\r",
            &long,
        ];
        let limits =
            HeadLimits { head_bytes_max: 5500, target_bytes_max: 4096, ..HeadLimits::DEFAULT };
        for head in heads {
            let mut stepped = HeadScanner::new();
            let first_line_max = limits.target_bytes_max + FIRST_LINE_EXTRA;
            let expected = stepped.step_through(head, first_line_max, &limits);
            for cut in (0..=head.len()).filter(|cut| *cut < 100 || head.len() - cut < 20) {
                let (first, second) = head.split_at(cut);
                let mut scanner = HeadScanner::new();
                let found = match scanner.scan(first, &limits) {
                    Ok(None) => {
                        scanner.scan(second, &limits).map(|used| used.map(|used| used + cut))
                    }
                    found => found,
                };
                assert_eq!(found, expected, "{:?} cut at {cut}", head.escape_ascii());
            }
        }
    }

    #[test]
    fn limits_are_met_exactly() {
        let limits = HeadLimits { head_bytes_max: 20, headers_max: 2, target_bytes_max: 8 };
        let scan = |bytes: &[u8]| HeadScanner::new().scan(bytes, &limits);
        assert_eq!(scan(b"a\r\nb:\r\nc:12345678\r\n\r\n"), Err(HeadError::TooLong));
        assert_eq!(scan(b"a\r\nb:\r\nc:1234567\r\n\r\n"), Ok(Some(20)));
        assert_eq!(scan(b"a\r\nb:\r\nc:\r\nd:\r\n"), Err(HeadError::TooManyHeaders));
        let limits = HeadLimits { target_bytes_max: 8, ..HeadLimits::DEFAULT };
        let scan = |len: usize| HeadScanner::new().scan(&[b'a'; 100][..len], &limits);
        assert_eq!(scan(8 + FIRST_LINE_EXTRA), Ok(None));
        assert_eq!(scan(9 + FIRST_LINE_EXTRA), Err(HeadError::FirstLineTooLong));
    }

    #[test]
    fn a_head_is_split() {
        assert_eq!(split(b"a\r\nb: c\r\nd:\r\n\r\n"), (&b"a"[..], &b"b: c\r\nd:\r\n"[..]));
        assert_eq!(split(b"\r\na\r\n\r\n"), (&b"a"[..], &b""[..]));
    }
}
