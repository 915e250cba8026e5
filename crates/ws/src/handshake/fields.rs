//! Header lines: those that were received, and those that are to be sent.

use alloc::vec::Vec;
use core::fmt;

use super::head::HeadError;
use super::syntax::{ascii, is_token, is_value_byte, trim};

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
}

impl<'a> Headers<'a> {
    /// Checks each line, and that none of the names in `single` is there twice. There may be at most 32 of them.
    pub(super) fn check(lines: &'a [u8], single: &[&str]) -> Result<Self, HeadError> {
        let mut seen = 0_u32;
        let mut rest = lines;
        while !rest.is_empty() {
            let (line, after) = next_line(rest);
            let colon = line.iter().position(|&byte| byte == b':').ok_or(HeadError::HeaderName)?;
            // A blank before the colon makes it no token (RFC 9112 section 5.1).
            let name = &line[..colon];
            if !is_token(name) {
                return Err(HeadError::HeaderName);
            }
            if let Some(index) = single.iter().position(|single| single.as_bytes().eq_ignore_ascii_case(name)) {
                if seen & 1 << index != 0 {
                    return Err(HeadError::DuplicateHeader);
                }
                seen |= 1 << index;
            }
            rest = after;
        }
        Ok(Self { lines })
    }

    /// The values of all headers of this name.
    pub(super) fn all(self, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
        self.filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    }

    /// The value of the first header of this name.
    pub(super) fn first(mut self, name: &str) -> Option<&'a [u8]> {
        self.find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    }
}

/// A line without its end, and what follows.
fn next_line(lines: &[u8]) -> (&[u8], &[u8]) {
    // A CR is always part of a line's end: the scanner has seen to it.
    let end = lines.iter().position(|&byte| byte == b'\r').unwrap_or(lines.len());
    (&lines[..end], lines.get(end + 2..).unwrap_or_default())
}

impl<'a> Iterator for Headers<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        let (line, rest) = next_line(self.lines);
        let colon = line.iter().position(|&byte| byte == b':')?;
        self.lines = rest;
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
        let headers = Headers::check(b"A:b\r\nc: \t d e \t\r\nf:\r\n", &[]).unwrap();
        let all: Vec<_> = headers.map(|header| (header.name, header.value)).collect();
        assert_eq!(all, [("A", &b"b"[..]), ("c", b"d e"), ("f", b"")]);
        assert_eq!(headers.first("a"), Some(&b"b"[..]));
        assert_eq!(headers.first("d"), None);
        assert_eq!(Headers::check(b"", &[]).unwrap().count(), 0);
    }

    #[test]
    fn a_line_needs_a_name_and_a_colon() {
        for bad in [&b"a\r\n"[..], b":b\r\n", b"a : b\r\n", b"a b: c\r\n", b"\xe4: c\r\n", b"a\r\nb: c\r\n"] {
            assert_eq!(Headers::check(bad, &[]).unwrap_err(), HeadError::HeaderName, "{:?}", bad.escape_ascii());
        }
    }

    #[test]
    fn what_may_be_there_once_is_there_once() {
        let lines = b"a: 1\r\nB: 2\r\nb: 2\r\n";
        assert!(Headers::check(lines, &["A", "C"]).is_ok());
        assert_eq!(Headers::check(lines, &["a", "b"]).unwrap_err(), HeadError::DuplicateHeader);
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
