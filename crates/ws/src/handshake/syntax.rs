//! Characters, tokens and lists of HTTP (RFC 9110 section 5.6).

/// Whether the byte is a `tchar` of section 5.6.2.
pub(super) const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// [`is_token_byte`] for each byte, as a table, because a head has hundreds of them.
const TOKEN_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = is_token_byte(byte as u8);
        byte += 1;
    }
    table
};

/// The number of leading `tchar`s.
#[inline]
pub(super) fn token_len(bytes: &[u8]) -> usize {
    bytes.iter().position(|&byte| !TOKEN_BYTES[usize::from(byte)]).unwrap_or(bytes.len())
}

/// One or more `tchar`.
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && token_len(bytes) == bytes.len()
}

/// Whether all of them are [value bytes](is_value_byte). The compiler vectorizes the check in
/// blocks. The last block overlaps the one before it.
pub(super) fn are_value_bytes(bytes: &[u8]) -> bool {
    match bytes.len() {
        16.. => blocks_are_value_bytes::<16>(bytes),
        8.. => blocks_are_value_bytes::<8>(bytes),
        _ => bytes.iter().all(|&byte| is_value_byte(byte)),
    }
}

/// Like [`are_value_bytes`], for at least `N` bytes.
#[inline(always)]
fn blocks_are_value_bytes<const N: usize>(bytes: &[u8]) -> bool {
    let is_good = |block: &[u8; N]| block.iter().fold(true, |all, &byte| all & is_value_byte(byte));
    let mut blocks = bytes.chunks_exact(N).filter_map(|block| block.first_chunk());
    bytes.last_chunk().is_some_and(is_good) && blocks.all(is_good)
}

/// The bytes allowed in a field's value and in a line (section 5.5): anything visible, anything
/// above ASCII, space and tab.
pub(super) const fn is_value_byte(byte: u8) -> bool {
    matches!(byte, b'\t' | 0x20..=0x7e | 0x80..)
}

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Removes the spaces and tabs at both ends.
pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    trim_end(trim_start(bytes))
}

/// Removes the leading ones.
#[inline]
pub(super) fn trim_start(mut bytes: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = bytes {
        if !is_blank(*first) {
            break;
        }
        bytes = rest;
    }
    bytes
}

/// Removes the trailing ones.
#[inline]
pub(super) fn trim_end(mut bytes: &[u8]) -> &[u8] {
    while let [rest @ .., last] = bytes {
        if !is_blank(*last) {
            break;
        }
        bytes = rest;
    }
    bytes
}

/// The text of bytes that are known to be ASCII, for example tokens.
pub(super) fn ascii(bytes: &[u8]) -> &str {
    core::str::from_utf8(bytes).expect("checked to be ASCII")
}

/// The elements of a list, without the empty ones that senders may produce (section 5.6.1.2). For
/// lists whose elements have no quoted strings.
pub(super) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim).filter(|element| !element.is_empty())
}

/// A position in a field's value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn skip_blanks(&mut self) {
        while let Some((&first, rest)) = self.rest.split_first() {
            if !is_blank(first) {
                break;
            }
            self.rest = rest;
        }
    }

    /// Takes `byte` and the blanks around it, if it comes next.
    pub(super) fn take(&mut self, byte: u8) -> bool {
        self.skip_blanks();
        let Some(rest) = self.rest.strip_prefix(&[byte]) else {
            return false;
        };
        self.rest = rest;
        self.skip_blanks();
        true
    }

    /// Takes a token, if one comes next.
    pub(super) fn token(&mut self) -> Option<&'a [u8]> {
        let len = token_len(self.rest);
        let (token, rest) = self.rest.split_at(len);
        self.rest = rest;
        (len > 0).then_some(token)
    }

    /// Takes a quoted string up to its closing quote, with its escapes. The opening quote was taken
    /// before.
    pub(super) fn quoted(&mut self) -> Option<&'a [u8]> {
        let mut escaped = false;
        for (at, &byte) in self.rest.iter().enumerate() {
            if byte == b'"' && !escaped {
                let quoted = &self.rest[..at];
                self.rest = &self.rest[at + 1..];
                return Some(quoted);
            }
            escaped = byte == b'\\' && !escaped;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn tokens_have_no_separators() {
        for byte in 0..=255_u8 {
            let separator = b"()<>@,;:\\\"/[]?={} \t".contains(&byte);
            assert_eq!(is_token_byte(byte), byte.is_ascii_graphic() && !separator, "{byte}");
        }
        assert!(!is_token(b"") && is_token(b"a") && !is_token(b"a b"));
    }

    #[test]
    #[cfg_attr(miri, ignore = "long loops over safe code")]
    fn a_byte_that_is_none_of_a_value_is_found_at_every_place() {
        for len in 0..50 {
            let mut bytes = std::vec![b'a'; len];
            assert!(are_value_bytes(&bytes));
            for at in 0..len {
                for bad in [0, 0x1f, 0x7f, b'\n'] {
                    bytes[at] = bad;
                    assert!(!are_value_bytes(&bytes), "{bad} at {at} of {len}");
                }
                bytes[at] = if at % 2 == 0 { b'\t' } else { 0xff };
            }
            assert!(are_value_bytes(&bytes));
        }
    }

    #[test]
    fn lists_may_have_empty_elements() {
        let all: Vec<&[u8]> = elements(b" , a,, b\t,c d,").collect();
        assert_eq!(all, [&b"a"[..], b"b", b"c d"]);
        assert_eq!(elements(b"").count(), 0);
    }

    #[test]
    fn a_quoted_string_ends_at_the_quote_that_is_not_escaped() {
        let mut cursor = Cursor { rest: br#"a\"b\\" ; c"# };
        assert_eq!(cursor.quoted(), Some(&br#"a\"b\\"#[..]));
        assert!(cursor.take(b';'));
        assert_eq!(cursor.token(), Some(&b"c"[..]));
        assert_eq!(cursor.token(), None);
        assert_eq!(Cursor { rest: br#"a\""# }.quoted(), None);
    }
}
