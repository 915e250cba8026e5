//! The grammar of `Sec-WebSocket-Extensions` (RFC 6455 section 9.1).

use super::syntax::{Cursor, ascii, is_token_byte};

/// The header violates the grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MalformedExtensions;

/// One element of the list: a name, and parameters that have been checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extension<'a> {
    #[cfg_attr(not(any(feature = "deflate", test)), expect(dead_code, reason = "none is known"))]
    pub(crate) name: &'a str,
    parameters: Cursor<'a>,
}

/// A parameter's value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParameterValue<'a> {
    raw: &'a [u8],
}

impl<'a> ParameterValue<'a> {
    /// The unescaped bytes. In quotes, a backslash is removed and the next byte is kept. A token
    /// has no escapes.
    pub(crate) fn bytes(self) -> impl Iterator<Item = u8> + 'a {
        let mut raw = self.raw.iter().copied();
        core::iter::from_fn(move || match raw.next()? {
            b'\\' => raw.next(),
            byte => Some(byte),
        })
    }
}

/// The extensions of one header, in order. The iterator ends after the first error.
pub(super) struct Extensions<'a> {
    cursor: Cursor<'a>,
}

impl<'a> Extensions<'a> {
    pub(super) fn new(value: &'a [u8]) -> Self {
        Self { cursor: Cursor { rest: value } }
    }

    fn element(&mut self) -> Result<Extension<'a>, MalformedExtensions> {
        let name = ascii(self.cursor.token().ok_or(MalformedExtensions)?);
        let mut extension = Extension { name, parameters: self.cursor };
        let mut after = self.cursor;
        while parameter(&mut after)?.is_some() {}
        // Only another element or the end may follow.
        after.skip_blanks();
        if !after.rest.is_empty() && !after.rest.starts_with(b",") {
            return Err(MalformedExtensions);
        }
        let len = self.cursor.rest.len() - after.rest.len();
        extension.parameters.rest = &self.cursor.rest[..len];
        self.cursor = after;
        Ok(extension)
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<Extension<'a>, MalformedExtensions>;

    fn next(&mut self) -> Option<Self::Item> {
        self.cursor.skip_blanks();
        while self.cursor.take(b',') {}
        if self.cursor.rest.is_empty() {
            return None;
        }
        let element = self.element();
        if element.is_err() {
            self.cursor.rest = &[];
        }
        Some(element)
    }
}

impl<'a> Extension<'a> {
    /// Names and values of the parameters, in order.
    #[cfg(any(feature = "deflate", test))]
    pub(crate) fn parameters(self) -> impl Iterator<Item = (&'a str, Option<ParameterValue<'a>>)> {
        let mut cursor = self.parameters;
        core::iter::from_fn(move || parameter(&mut cursor).ok()?)
    }
}

/// Takes `; name` or `; name = value`, if a semicolon comes next.
fn parameter<'a>(
    cursor: &mut Cursor<'a>,
) -> Result<Option<(&'a str, Option<ParameterValue<'a>>)>, MalformedExtensions> {
    if !cursor.take(b';') {
        return Ok(None);
    }
    let name = ascii(cursor.token().ok_or(MalformedExtensions)?);
    if !cursor.take(b'=') {
        return Ok(Some((name, None)));
    }
    let value = if let Some(rest) = cursor.rest.strip_prefix(b"\"") {
        cursor.rest = rest;
        let value = ParameterValue { raw: cursor.quoted().ok_or(MalformedExtensions)? };
        // The unescaped value must be a token.
        let mut bytes = value.bytes().peekable();
        if bytes.peek().is_none() || !bytes.all(is_token_byte) {
            return Err(MalformedExtensions);
        }
        value
    } else {
        ParameterValue { raw: cursor.token().ok_or(MalformedExtensions)? }
    };
    Ok(Some((name, Some(value))))
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    use super::*;

    /// `name[parameter=value,..]` of each element.
    fn read(header: &str) -> Result<Vec<String>, MalformedExtensions> {
        let describe = |extension: Extension<'_>| {
            let parameters: Vec<String> = extension
                .parameters()
                .map(|(name, value)| match value {
                    Some(value) => {
                        format!("{name}={}", String::from_utf8(value.bytes().collect()).unwrap())
                    }
                    None => String::from(name),
                })
                .collect();
            format!("{}[{}]", extension.name, parameters.join(","))
        };
        Extensions::new(header.as_bytes()).map(|extension| extension.map(describe)).collect()
    }

    #[test]
    fn lists_are_read() {
        assert_eq!(read("a").unwrap(), ["a[]"]);
        assert_eq!(read("a; b; c=1, d;e=\"2\"").unwrap(), ["a[b,c=1]", "d[e=2]"]);
        assert_eq!(read(" ,, a ;\tb = \"\\1\\5\" ,").unwrap(), ["a[b=15]"]);
        assert_eq!(read("").unwrap(), [""; 0]);
        assert_eq!(read("a;b=c,a;b=d").unwrap(), ["a[b=c]", "a[b=d]"]);
    }

    #[test]
    fn malformed_lists_are_rejected() {
        for bad in [
            "a b",
            "a;",
            "a; ;b",
            "a;=1",
            "a;b=",
            "a;b=\"\"",
            "a;b=\"1",
            "a;b=\"1 2\"",
            "a;b=\"1\"2",
            "\"a\"",
            ";a",
            "a;b=1 2",
            "a;b=\"\\",
            "a;b==1",
            "a, b;c d",
            "\u{e4}",
            "a=b",
        ] {
            assert_eq!(read(bad).unwrap_err(), MalformedExtensions, "{bad}");
        }
    }
}
