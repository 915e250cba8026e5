//! Response headers of the application.

use std::borrow::Cow;

use windlass_ws::handshake::AcceptError;

/// Headers that the server writes itself, so that responses cannot be misread.
const RESERVED: [&str; 8] = [
    "Connection",
    "Content-Length",
    "Date",
    "Keep-Alive",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
];

/// Names and values, not checked yet. An invalid one is an error when the response is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CustomHeaders(Vec<(Cow<'static, str>, Cow<'static, str>)>);

impl CustomHeaders {
    pub(super) fn push(&mut self, name: Cow<'static, str>, value: Cow<'static, str>) {
        self.0.push((name, value));
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(other, _)| other.eq_ignore_ascii_case(name))
    }

    pub(super) fn pairs(&self) -> Vec<(&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value)).collect()
    }

    /// Checks whether all headers may be sent. `also` lists names that this kind of response writes
    /// itself.
    ///
    /// # Errors
    /// The error of the first invalid header.
    pub(super) fn check(&self, also: &[&str]) -> Result<(), AcceptError> {
        for (name, value) in &self.0 {
            if name.is_empty() || !name.bytes().all(is_token_byte) {
                return Err(AcceptError::HeaderName);
            }
            if !value.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~' | 0x80..)) {
                return Err(AcceptError::HeaderValue);
            }
            if RESERVED.iter().chain(also).any(|reserved| reserved.eq_ignore_ascii_case(name)) {
                return Err(AcceptError::ReservedHeader);
            }
        }
        Ok(())
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        for (name, value) in &self.0 {
            line(name, value, out);
        }
    }
}

/// Appends `name: value` and a line ending.
pub(super) fn line(name: &str, value: &str, out: &mut Vec<u8>) {
    for part in [name, ": ", value, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// `tchar` of RFC 9110 section 5.6.2.
const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_graphic()
        && !matches!(byte, b'(' | b')' | b'<' | b'>' | b'@' | b',' | b';' | b':' | b'\\' | b'"')
        && !matches!(byte, b'/' | b'[' | b']' | b'?' | b'=' | b'{' | b'}')
}

#[cfg(test)]
mod tests {
    use windlass_ws::handshake::{HeadLimits, Request};

    use super::*;

    fn check(name: &str, value: &str) -> Result<(), AcceptError> {
        let mut headers = CustomHeaders::default();
        headers.push(name.to_owned().into(), value.to_owned().into());
        headers.check(&["ETag"])
    }

    #[test]
    fn headers_that_would_change_the_message_are_rejected() {
        assert_eq!(check("X-A", "b c\t\u{e4}"), Ok(()));
        assert_eq!(check("", "b"), Err(AcceptError::HeaderName));
        assert_eq!(check("X A", "b"), Err(AcceptError::HeaderName));
        assert_eq!(check("X\r\nY", "b"), Err(AcceptError::HeaderName));
        assert_eq!(check("X", "b\r\nY: c"), Err(AcceptError::HeaderValue));
        assert_eq!(check("X", "b\0"), Err(AcceptError::HeaderValue));
        for name in RESERVED.into_iter().chain(["etag", "CONTENT-length"]) {
            assert_eq!(check(name, "b"), Err(AcceptError::ReservedHeader), "{name}");
        }
    }

    /// Tests every character, alone and in the middle. A strict parser returns exactly the headers
    /// that pass the check, and rejects or changes the others.
    #[test]
    fn the_check_agrees_with_a_strict_reader() {
        for character in (0..=127).map(char::from).chain(['\u{e4}']) {
            for text in
                [character.to_string(), format!("a{character}b"), format!("{character}{character}")]
            {
                assert_eq!(check(&text, "b").is_ok(), is_read(&text, "b"), "{text:?} as a name");
                assert_eq!(check("a", &text).is_ok(), is_read("a", &text), "{text:?} as a value");
            }
        }
        assert!(!is_read("", "b") && is_read("a", ""));
    }

    fn is_read(name: &str, value: &str) -> bool {
        let mut head = b"GET / HTTP/1.0\r\n".to_vec();
        line(name, value, &mut head);
        head.extend_from_slice(b"\r\n");
        let Ok(Some((request, len))) = Request::parse(&head, &HeadLimits::DEFAULT) else {
            return false;
        };
        let all: Vec<_> = request.headers().map(|header| (header.name, header.value)).collect();
        // Blanks at the ends are not part of a value.
        len == head.len() && all == [(name, value.trim_matches([' ', '\t']).as_bytes())]
    }
}
