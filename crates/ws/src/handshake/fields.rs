//! Header lines, received and sent.

use alloc::vec::Vec;
use core::fmt;

use super::head::HeadError;
use super::syntax::{ascii, is_token, is_value_byte, token_len, trim, trim_end, trim_start};

/// One received header line.
///
/// ```
/// use windlass_ws::handshake::{HeadLimits, Request};
///
/// let head = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
/// let (request, _) = Request::parse(head, &HeadLimits::DEFAULT)?.unwrap();
/// let header = request.headers().next().unwrap();
/// assert_eq!((header.name, header.value), ("Host", &b"a.example"[..]));
/// # Ok::<(), windlass_ws::handshake::Rejection>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// The name as the sender wrote it. Compare it ignoring case.
    pub name: &'a str,
    /// The value without leading and trailing blanks: visible characters, spaces, tabs, and bytes
    /// above ASCII, which need not be UTF-8.
    pub value: &'a [u8],
}

impl fmt::Debug for Header<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.name, self.value.escape_ascii())
    }
}

/// The header lines of a request or response, in order.
///
/// ```
/// use windlass_ws::handshake::{HeadLimits, Request};
///
/// let head = b"GET / HTTP/1.1\r\nHost: a\r\nX-Tag: 1\r\nX-Tag: 2\r\n\r\n";
/// let (request, _) = Request::parse(head, &HeadLimits::DEFAULT)?.unwrap();
/// let tags = request.headers().filter(|header| header.name.eq_ignore_ascii_case("x-tag"));
/// assert_eq!(tags.map(|tag| tag.value).collect::<Vec<_>>(), [b"1", b"2"]);
/// # Ok::<(), windlass_ws::handshake::Rejection>(())
/// ```
#[derive(Clone, Copy)]
pub struct Headers<'a> {
    /// Complete lines: each has a token, a colon, a value, and CR LF.
    lines: &'a [u8],
    /// The lines that the iterator has not yielded yet.
    rest: &'a [u8],
    /// The position of the first value of each [known](KNOWN) name.
    value_spans: [ValueSpan; KNOWN.len()],
    /// One bit for each known name that occurs more than once.
    repeated: NameSet,
}

/// The position of a value within the lines, without leading and trailing blanks. It begins at 0 if
/// there is none, because a name precedes each value.
#[derive(Clone, Copy)]
struct ValueSpan {
    start: u32,
    len: u32,
}

impl ValueSpan {
    const NONE: Self = Self { start: 0, len: 0 };
}

/// The names that the handshake uses. They are located once, when the lines are checked.
const KNOWN: [&str; 12] = [
    "Host",
    "Origin",
    "Upgrade",
    "Connection",
    "Authorization",
    "Content-Length",
    "Transfer-Encoding",
    "Sec-WebSocket-Key",
    "Sec-WebSocket-Accept",
    "Sec-WebSocket-Version",
    "Sec-WebSocket-Protocol",
    "Sec-WebSocket-Extensions",
];

/// A set of known names: one bit per index in [`KNOWN`].
pub(super) type NameSet = u16;

/// The index of a known name, ignoring case.
#[inline]
pub(super) fn known(name: &[u8]) -> Option<usize> {
    // Most senders use the standard spelling, so an exact comparison comes first, which is faster.
    // The length selects the candidates.
    macro_rules! candidate {
        ($index:expr) => {{
            const KNOWN_NAME: &[u8] = KNOWN[$index].as_bytes();
            (name == KNOWN_NAME || is_known(name, $index)).then_some($index)
        }};
    }
    match name.len() {
        4 => candidate!(0),
        6 => candidate!(1),
        7 => candidate!(2),
        10 => candidate!(3),
        13 => candidate!(4),
        14 => candidate!(5),
        17 if matches!(name[0], b'T' | b't') => candidate!(6),
        17 => candidate!(7),
        20 => candidate!(8),
        21 => candidate!(9),
        22 => candidate!(10),
        24 => candidate!(11),
        _ => None,
    }
}

#[inline(never)]
fn is_known(name: &[u8], index: usize) -> bool {
    KNOWN[index].as_bytes().eq_ignore_ascii_case(name)
}

/// A known name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownName(usize);

impl KnownName {
    /// The known name in a constant. Fails to compile if the name is not known.
    pub(super) const fn of(name: &str) -> Self {
        let mut index = 0;
        while !is_same(KNOWN[index].as_bytes(), name.as_bytes()) {
            index += 1;
        }
        Self(index)
    }
}

/// The set of these names, which must be known.
pub(super) const fn names(these: &[&str]) -> NameSet {
    let (mut set, mut at) = (0, 0);
    while at < these.len() {
        set |= 1 << KnownName::of(these[at]).0;
        at += 1;
    }
    set
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    one.len() == other.len() && at == one.len()
}

impl<'a> Headers<'a> {
    /// All of these lines, none of them yielded yet.
    pub(super) const fn of(lines: &'a [u8]) -> Self {
        Self { lines, rest: lines, value_spans: [ValueSpan::NONE; KNOWN.len()], repeated: 0 }
    }

    /// Only the first `len` bytes of the lines.
    pub(super) fn up_to(self, len: usize) -> Self {
        let lines = &self.lines[..len];
        Self { lines, rest: lines, ..self }
    }

    /// Checks each line, and that no name in `single` occurs twice.
    pub(super) fn check(lines: &'a [u8], single: NameSet) -> Result<Self, HeadError> {
        let mut headers = Self::of(lines);
        let mut at = 0;
        while let Some(line @ [_, ..]) = lines.get(at..) {
            let colon = token_len(line);
            // A blank before the colon means that the name is not a token (RFC 9112 section 5.1).
            if colon == 0 || line.get(colon) != Some(&b':') {
                return Err(HeadError::HeaderName);
            }
            let value = at + colon + 1;
            let end = value + line_len(&lines[value..]);
            if let Some(index) = known(&line[..colon]) {
                headers.note(index, value, end, single)?;
            }
            at = end + 2;
        }
        Ok(headers)
    }

    /// Records the position of the value of a known header, with the blanks around it.
    #[inline]
    pub(super) fn note(
        &mut self,
        index: usize,
        value: usize,
        end: usize,
        single: NameSet,
    ) -> Result<(), HeadError> {
        let span = &mut self.value_spans[index];
        if span.start == 0 {
            let begun = trim_start(&self.lines[value..end]);
            let number = |at: usize| u32::try_from(at).map_err(|_| HeadError::TooLong);
            *span = ValueSpan {
                start: number(end - begun.len())?,
                len: number(trim_end(begun).len())?,
            };
        } else if single & 1 << index != 0 {
            return Err(HeadError::DuplicateHeader);
        } else {
            self.repeated |= 1 << index;
        }
        Ok(())
    }

    /// The values of all headers with this name.
    pub(super) fn all(&self, name: KnownName) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let is_repeated = self.repeated & 1 << name.0 != 0;
        let rest = if is_repeated { self.lines } else { &[] };
        let first = if is_repeated { None } else { self.get(name) };
        let others = Self { rest, ..*self }
            .filter(move |header| header.name.eq_ignore_ascii_case(KNOWN[name.0]));
        first.into_iter().chain(others.map(|header| header.value))
    }

    /// The value of the first header with this name.
    #[inline]
    pub(super) fn get(&self, name: KnownName) -> Option<&'a [u8]> {
        let ValueSpan { start, len } = self.value_spans[name.0];
        if start == 0 { None } else { self.lines.get(start as usize..)?.get(..len as usize) }
    }

    /// The value of the first header of any name.
    pub(super) fn first(&self, name: &str) -> Option<&'a [u8]> {
        match known(name.as_bytes()) {
            Some(index) => self.get(KnownName(index)),
            None => {
                let mut all = Self { rest: self.lines, ..*self };
                all.find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
            }
        }
    }
}

/// The length of a line without its end. The scanner has checked that each CR is part of a line
/// end.
fn line_len(lines: &[u8]) -> usize {
    memchr::memchr(b'\r', lines).unwrap_or(lines.len())
}

impl<'a> Iterator for Headers<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        let len = line_len(self.rest);
        let line = &self.rest[..len];
        let colon = memchr::memchr(b':', line)?;
        self.rest = self.rest.get(len + 2..).unwrap_or_default();
        Some(Header { name: ascii(&line[..colon]), value: trim(&line[colon + 1..]) })
    }
}

impl fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

/// Why the application may not send a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldError {
    Name,
    Value,
    Reserved,
}

/// Checks a header that the application wants to add. It must not contain a line end, and must not
/// be one that the handshake writes itself.
pub(super) fn check_own(name: &str, value: &str, reserved: &[&str]) -> Result<(), FieldError> {
    const ALWAYS_RESERVED: [&str; 5] =
        ["Upgrade", "Connection", "Content-Length", "Transfer-Encoding", "Trailer"];
    if !is_token(name.as_bytes()) {
        return Err(FieldError::Name);
    }
    let is_reserved = |other: &&str| other.eq_ignore_ascii_case(name);
    let prefix = name
        .as_bytes()
        .get(..14)
        .is_some_and(|start| start.eq_ignore_ascii_case(b"Sec-WebSocket-"));
    if prefix || ALWAYS_RESERVED.iter().any(is_reserved) || reserved.iter().any(is_reserved) {
        return Err(FieldError::Reserved);
    }
    if value.bytes().all(is_value_byte) { Ok(()) } else { Err(FieldError::Value) }
}

/// Appends `name: value` and the line end.
pub(super) fn write_line(name: &str, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends a number in decimal.
pub(crate) fn decimal(number: usize, out: &mut Vec<u8>) {
    if number >= 10 {
        decimal(number / 10, out);
    }
    out.push(b'0' + (number % 10) as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_names_and_values() {
        let headers = Headers::check(b"A:b\r\nc: \t d e \t\r\nf:\r\n", 0).unwrap();
        let all: Vec<_> = headers.map(|header| (header.name, header.value)).collect();
        assert_eq!(all, [("A", &b"b"[..]), ("c", b"d e"), ("f", b"")]);
        assert_eq!(headers.first("a"), Some(&b"b"[..]));
        assert_eq!(headers.first("d"), None);
        assert_eq!(Headers::check(b"", 0).unwrap().count(), 0);
    }

    #[test]
    fn a_line_needs_a_name_and_a_colon() {
        for bad in [
            &b"a\r\n"[..],
            b":b\r\n",
            b"a : b\r\n",
            b"a b: c\r\n",
            b"\xe4: c\r\n",
            b"a\r\nb: c\r\n",
        ] {
            assert_eq!(
                Headers::check(bad, 0).unwrap_err(),
                HeadError::HeaderName,
                "{:?}",
                bad.escape_ascii()
            );
        }
    }

    #[test]
    fn a_repeated_single_header_is_rejected() {
        let lines = b"host: 1\r\nOrigin: 2\r\norigin: 2\r\n";
        assert!(Headers::check(lines, names(&["Host", "Upgrade"])).is_ok());
        let rejected = Headers::check(lines, names(&["Host", "Origin"]));
        assert_eq!(rejected.unwrap_err(), HeadError::DuplicateHeader);
    }

    #[test]
    fn each_known_name_is_found_by_its_length() {
        for (index, name) in KNOWN.iter().enumerate() {
            assert_eq!(known(name.to_ascii_lowercase().as_bytes()), Some(index));
            assert_eq!(known(&name.as_bytes()[1..]), None);
            assert_eq!(names(&[name]), 1 << index);
        }
        assert_eq!(known(b"Accept"), None);
    }

    /// Compares every lookup with a plain search through the lines, for known and unknown names,
    /// single and repeated.
    #[test]
    fn headers_are_found_wherever_they_are() {
        let lines = b"upgrade: 1\r\nx: 2\r\nUpgrade: 3\r\nX: 4\r\nHost: 5\r\nUPGRADE:6\r\n";
        let headers = Headers::check(lines, 0).unwrap();
        for (name, expected) in
            [("Upgrade", "136"), ("X", "24"), ("Host", "5"), ("Origin", ""), ("y", "")]
        {
            if let Some(index) = known(name.as_bytes()) {
                let all: Vec<u8> = headers.all(KnownName(index)).map(|value| value[0]).collect();
                assert_eq!(all, expected.as_bytes(), "{name}");
            }
            assert_eq!(headers.first(name).map(|value| value[0]), expected.bytes().next());
        }
        let mut gone_over = headers;
        assert_eq!(gone_over.by_ref().count(), 6);
        assert_eq!(gone_over.next().map(|header| header.name), None);
        assert_eq!(headers.last().map(|header| header.value), Some(&b"6"[..]));
    }

    #[test]
    fn numbers_are_decimal() {
        for (number, text) in [(0, "0"), (9, "9"), (10, "10"), (431, "431"), (100_200, "100200")] {
            let mut out = Vec::new();
            decimal(number, &mut out);
            assert_eq!(out, text.as_bytes());
        }
    }
}
