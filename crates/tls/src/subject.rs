//! The subject of a certificate as text (RFC 4514).
//!
//! Certificates were verified before, but a reader must not panic on any bytes.

use std::fmt::Write;

/// DER tags (X.690) that occur on the way to the subject.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 0x06;
const VERSION: u8 = 0xa0;
const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const IA5: u8 = 0x16;

/// The attributes that RFC 4514 section 3 and RFC 4519 name.
const NAMES: [(&[u8], &str); 9] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 9], "STREET"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1], "UID"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], "DC"),
];

/// The subject of a certificate. `None` if it cannot be read. An empty subject is empty text.
pub(crate) fn subject(der: &[u8]) -> Option<String> {
    // The serial number, the signature's algorithm, the issuer and the validity come before it.
    let rest = before_subject(der, 4)?;
    let (mut names, _) = value(rest, SEQUENCE)?;
    let mut parts = Vec::new();
    while !names.is_empty() {
        let (mut set, next) = value(names, SET)?;
        names = next;
        let mut part = String::new();
        while !set.is_empty() {
            let (attribute, next) = value(set, SEQUENCE)?;
            set = next;
            if !part.is_empty() {
                part.push('+');
            }
            write_attribute(&mut part, attribute)?;
        }
        parts.push(part);
    }
    // RFC 4514 section 2.1: in reverse order.
    parts.reverse();
    Some(parts.join(","))
}

/// The rest of a certificate (RFC 5280 section 4.1) behind its version and so many values more.
pub(crate) fn before_subject(der: &[u8], values: usize) -> Option<&[u8]> {
    let (certificate, _) = value(der, SEQUENCE)?;
    let (mut rest, _) = value(certificate, SEQUENCE)?;
    if rest.first() == Some(&VERSION) {
        rest = value(rest, VERSION)?.1;
    }
    for _ in 0..values {
        rest = any(rest)?.2;
    }
    Some(rest)
}

fn write_attribute(part: &mut String, attribute: &[u8]) -> Option<()> {
    let (oid, rest) = value(attribute, OID)?;
    let (tag, bytes, _) = any(rest)?;
    let name = NAMES.iter().find(|(known, _)| *known == oid);
    let text = core::str::from_utf8(bytes).ok().filter(|_| matches!(tag, UTF8 | PRINTABLE | IA5));
    match (name, text) {
        (Some((_, name)), Some(text)) => {
            part.push_str(name);
            part.push('=');
            write_escaped(part, text);
        }
        _ => {
            write_oid(part, oid);
            part.push_str("=#");
            for byte in &rest[..rest.len() - any(rest)?.2.len()] {
                write!(part, "{byte:02x}").ok()?;
            }
        }
    }
    Some(())
}

/// RFC 4514 section 2.4.
fn write_escaped(part: &mut String, text: &str) {
    let last = text.chars().count().saturating_sub(1);
    for (place, letter) in text.chars().enumerate() {
        let is_special = matches!(letter, '"' | '+' | ',' | ';' | '<' | '>' | '\\' | '=');
        let is_edge =
            (place == 0 && matches!(letter, ' ' | '#')) || (place == last && letter == ' ');
        match letter {
            _ if is_special || is_edge => {
                part.push('\\');
                part.push(letter);
            }
            '\0'..='\x1f' | '\x7f' => {
                part.push_str(&format!("\\{:02x}", u32::from(letter)));
            }
            _ => part.push(letter),
        }
    }
}

fn write_oid(part: &mut String, oid: &[u8]) {
    let mut number: u64 = 0;
    let mut is_first = true;
    for byte in oid {
        number = (number << 7) | u64::from(byte & 0x7f);
        if byte & 0x80 != 0 {
            continue;
        }
        let text = if is_first {
            let root = (number / 40).min(2);
            format!("{root}.{}", number - 40 * root)
        } else {
            format!(".{number}")
        };
        part.push_str(&text);
        (number, is_first) = (0, false);
    }
}

/// The content of the first value, which has this tag, and what follows it.
fn value(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = any(der)?;
    (found == tag).then_some((content, rest))
}

/// The tag and the content of the first value, and what follows it.
pub(crate) fn any(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 3))?;
            (bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
        let content = contents.concat();
        let len = content.len();
        let head = match u8::try_from(len) {
            Ok(len) if len < 0x80 => vec![tag, len],
            Ok(len) => vec![tag, 0x81, len],
            Err(_) => vec![tag, 0x82, (len >> 8) as u8, len as u8],
        };
        [head, content].concat()
    }

    fn attribute(oid: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
        der(SET, &[&der(SEQUENCE, &[&der(OID, &[oid]), &der(tag, &[text])])])
    }

    fn certificate(names: &[Vec<u8>]) -> Vec<u8> {
        let empty = der(SEQUENCE, &[]);
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let subject = der(SEQUENCE, &names);
        let version = der(VERSION, &[&[2, 1, 2]]);
        let body = der(SEQUENCE, &[&version, &[2, 1, 9], &empty, &empty, &empty, &subject]);
        der(SEQUENCE, &[&body])
    }

    #[test]
    fn a_subject_is_text_in_reverse_order_and_escaped() {
        let der = certificate(&[
            attribute(&[0x55, 4, 10], UTF8, "Käse, GmbH".as_bytes()),
            attribute(&[0x55, 4, 3], PRINTABLE, b" me#\n"),
        ]);
        assert_eq!(subject(&der).as_deref(), Some("CN=\\ me#\\0a,O=Käse\\, GmbH"));
        assert_eq!(subject(&certificate(&[])).as_deref(), Some(""));
        let unknown = certificate(&[attribute(&[0x55, 4, 0x81, 0x01], UTF8, b"x")]);
        assert_eq!(subject(&unknown).as_deref(), Some("2.5.4.129=#0c0178"));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let whole = certificate(&[attribute(&[0x55, 4, 3], UTF8, &[b'x'; 200])]);
        for len in 0..whole.len() {
            assert_eq!(subject(&whole[..len]), None, "{len}");
            let mut changed = whole.clone();
            for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
                changed[len] = byte;
                let _ = subject(&changed);
            }
        }
    }
}
