//! Header lines: those that were received, and those that are to be sent.

use alloc::vec::Vec;
use core::fmt;

use super::head::HeadError;
use super::syntax::{ascii, is_token, is_value_byte, token_len, trim};

/// One header line as it was received.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// The name, in the sender's letters: to be compared ignoring their case.
    pub name: &'a str,
    /// The value without blanks at its ends: visible characters, spaces, tabs, and bytes above ASCII, which need not be
    /// UTF-8.
    pub value: &'a [u8],
}

impl fmt::Debug for Header<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.name, self.value.escape_ascii())
    }
}

/// The header lines of a request or response, in order.
#[derive(Clone, Copy)]
pub struct Headers<'a> {
    /// Whole lines, each of which has a token, a colon, a value, and CR LF.
    lines: &'a [u8],
    /// Those that have not been gone over.
    rest: &'a [u8],
    /// Where the first line of each [known](KNOWN) name begins, and one; 0 if there is none.
    places: [u32; KNOWN.len()],
    /// Known names that are there more than once, a bit each.
    repeated: Names,
}

/// The names that a handshake asks for: they are looked for once, when the lines are checked.
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

/// A set of known names, by their place among them.
type Names = u16;

/// The place of a known name, whatever the case of its letters.
#[inline]
fn known(name: &[u8]) -> Option<usize> {
    let candidates: &[usize] = match name.len() {
        4 => &[0],
        6 => &[1],
        7 => &[2],
        10 => &[3],
        13 => &[4],
        14 => &[5],
        17 => &[6, 7],
        20 => &[8],
        21 => &[9],
        22 => &[10],
        24 => &[11],
        _ => &[],
    };
    // Most write them as the standards do, and that is found out faster.
    let is_it = |&index: &usize| {
        let known = KNOWN[index].as_bytes();
        known == name || known.eq_ignore_ascii_case(name)
    };
    candidates.iter().copied().find(is_it)
}

/// A known name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known(usize);

impl Known {
    /// The name of a constant. It fails to compile where it is not known.
    pub(super) const fn of(name: &str) -> Self {
        let mut index = 0;
        while !is_same(KNOWN[index].as_bytes(), name.as_bytes()) {
            index += 1;
        }
        Self(index)
    }
}

/// The set of these names, which are known ones.
pub(super) const fn names(these: &[&str]) -> Names {
    let (mut set, mut at) = (0, 0);
    while at < these.len() {
        set |= 1 << Known::of(these[at]).0;
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
    /// Checks each line, and that none of the names in `single` is there twice.
    pub(super) fn check(lines: &'a [u8], single: Names) -> Result<Self, HeadError> {
        let mut headers = Self { lines, rest: lines, places: [0; KNOWN.len()], repeated: 0 };
        let mut at = 0;
        while let Some(line @ [_, ..]) = lines.get(at..) {
            let colon = token_len(line);
            // A blank before the colon makes it no token (RFC 9112 section 5.1).
            if colon == 0 || line.get(colon) != Some(&b':') {
                return Err(HeadError::HeaderName);
            }
            if let Some(index) = known(&line[..colon]) {
                let place = &mut headers.places[index];
                if *place == 0 {
                    *place = u32::try_from(at + 1).map_err(|_| HeadError::TooLong)?;
                } else if single & 1 << index != 0 {
                    return Err(HeadError::DuplicateHeader);
                } else {
                    headers.repeated |= 1 << index;
                }
            }
            at += colon + line_len(&line[colon..]) + 2;
        }
        Ok(headers)
    }

    /// The values of all headers of this name.
    pub(super) fn all(&self, name: Known) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let is_repeated = self.repeated & 1 << name.0 != 0;
        let rest = if is_repeated { self.lines } else { &[] };
        let first = if is_repeated { None } else { self.get(name) };
        let others = Self { rest, ..*self }.filter(move |header| header.name.eq_ignore_ascii_case(KNOWN[name.0]));
        first.into_iter().chain(others.map(|header| header.value))
    }

    /// The value of the first header of this name.
    #[inline]
    pub(super) fn get(&self, name: Known) -> Option<&'a [u8]> {
        let place = self.places[name.0] as usize;
        let line = self.lines.get(place.checked_sub(1)?..)?;
        let value = line.get(KNOWN[name.0].len() + 1..)?;
        Some(trim(&value[..line_len(value)]))
    }

    /// The value of the first header of any name.
    pub(super) fn first(&self, name: &str) -> Option<&'a [u8]> {
        match known(name.as_bytes()) {
            Some(index) => self.get(Known(index)),
            None => {
                let mut all = Self { rest: self.lines, ..*self };
                all.find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
            }
        }
    }
}

/// How long a line is, without its end. A CR is always part of that: the scanner has seen to it.
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

/// What is wrong with a header that the application wants to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldError {
    Name,
    Value,
    Reserved,
}

/// Whether the application may add this header: it must not be able to end the line, and what the handshake itself
/// depends on is not the application's to say.
pub(super) fn check_own(name: &str, value: &str, reserved: &[&str]) -> Result<(), FieldError> {
    const ALWAYS_RESERVED: [&str; 5] = ["Upgrade", "Connection", "Content-Length", "Transfer-Encoding", "Trailer"];
    if !is_token(name.as_bytes()) {
        return Err(FieldError::Name);
    }
    let is_reserved = |other: &&str| other.eq_ignore_ascii_case(name);
    let prefix = name.as_bytes().get(..14).is_some_and(|start| start.eq_ignore_ascii_case(b"Sec-WebSocket-"));
    if prefix || ALWAYS_RESERVED.iter().any(is_reserved) || reserved.iter().any(is_reserved) {
        return Err(FieldError::Reserved);
    }
    if value.bytes().all(is_value_byte) { Ok(()) } else { Err(FieldError::Value) }
}

/// Appends `name: value` and the line's end.
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
        for bad in [&b"a\r\n"[..], b":b\r\n", b"a : b\r\n", b"a b: c\r\n", b"\xe4: c\r\n", b"a\r\nb: c\r\n"] {
            assert_eq!(Headers::check(bad, 0).unwrap_err(), HeadError::HeaderName, "{:?}", bad.escape_ascii());
        }
    }

    #[test]
    fn what_may_be_there_once_is_there_once() {
        let lines = b"host: 1\r\nOrigin: 2\r\norigin: 2\r\n";
        assert!(Headers::check(lines, names(&["Host", "Upgrade"])).is_ok());
        let refused = Headers::check(lines, names(&["Host", "Origin"]));
        assert_eq!(refused.unwrap_err(), HeadError::DuplicateHeader);
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

    /// Known or not, once or more often: as one finds them by going over the lines.
    #[test]
    fn headers_are_found_wherever_they_are() {
        let lines = b"upgrade: 1\r\nx: 2\r\nUpgrade: 3\r\nX: 4\r\nHost: 5\r\nUPGRADE:6\r\n";
        let headers = Headers::check(lines, 0).unwrap();
        for (name, expected) in [("Upgrade", "136"), ("X", "24"), ("Host", "5"), ("Origin", ""), ("y", "")] {
            if let Some(index) = known(name.as_bytes()) {
                let all: Vec<u8> = headers.all(Known(index)).map(|value| value[0]).collect();
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
