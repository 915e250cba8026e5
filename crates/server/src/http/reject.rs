//! The response to a rejected upgrade.

use std::{borrow::Cow, time::SystemTime};

use windlass_ws::handshake::AcceptError;

use super::{header::CustomHeaders, response};

/// The response to a rejected upgrade: a status, a line of text, further headers. The connection is
/// closed after it.
///
/// Browsers do not show the response to the page. It is meant for developer tools, logs and other
/// clients.
///
/// ```
/// use windlass_server::http::Reject;
///
/// let rejection = Reject::status(401).text("who are you?").header("WWW-Authenticate", "Bearer");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Reject {
    status: u16,
    text: Cow<'static, str>,
    headers: CustomHeaders,
}

impl Reject {
    /// Creates a rejection with this status, whose text is the reason phrase of the status.
    ///
    /// # Panics
    /// If the status is not in 300 to 599: a client must be able to see the rejection.
    pub fn status(status: u16) -> Self {
        assert!(
            (300..600).contains(&status),
            "the status of a rejection is 300 to 599, and {status} is not"
        );
        let phrase = response::phrase(status);
        Self {
            status,
            text: if phrase.is_empty() { "refused" } else { phrase }.into(),
            headers: CustomHeaders::default(),
        }
    }

    /// Replaces the text. It is sent as UTF-8, and a line ending is added.
    pub fn text(mut self, text: impl Into<Cow<'static, str>>) -> Self {
        self.text = text.into();
        self
    }

    /// Adds a header, for instance `Location`, `Retry-After` or `WWW-Authenticate`. A header is
    /// invalid if its name is not a token, its value has a control character, or the server writes
    /// it itself. An invalid one is detected when the response is [written](Self::write).
    pub fn header(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.headers.push(name.into(), value.into());
        self
    }

    /// The status code.
    #[must_use]
    pub const fn code(&self) -> u16 {
        self.status
    }

    /// Appends the whole response. The connection must be closed after it.
    ///
    /// # Errors
    /// If a header cannot be sent, a response with status 500 is appended instead. The error is
    /// meant for the server's log.
    ///
    /// - [`AcceptError::HeaderName`] if a name is not a token.
    /// - [`AcceptError::HeaderValue`] if a value has a control character.
    /// - [`AcceptError::ReservedHeader`] if the server writes that header itself.
    pub fn write(&self, now: SystemTime, out: &mut Vec<u8>) -> Result<(), AcceptError> {
        let checked = self.headers.check(&["Content-Type", "X-Content-Type-Options"]);
        if checked.is_err() {
            append(
                500,
                "the server's response had an invalid header",
                &CustomHeaders::default(),
                now,
                out,
            );
        } else {
            append(self.status, &self.text, &self.headers, now, out);
        }
        checked
    }
}

fn append(status: u16, text: &str, headers: &CustomHeaders, now: SystemTime, out: &mut Vec<u8>) {
    response::start(status, now, out);
    headers.write(out);
    response::text_headers(text.len(), out);
    response::finish(true, text.as_bytes(), out);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn written(rejection: &Reject) -> (String, Result<(), AcceptError>) {
        let mut out = Vec::new();
        let result = rejection.write(UNIX_EPOCH, &mut out);
        (String::from_utf8(out).unwrap(), result)
    }

    #[test]
    fn the_whole_response() {
        let rejection =
            Reject::status(401).text("who are you?").header("WWW-Authenticate", "Bearer");
        let (text, result) = written(&rejection);
        assert_eq!(result, Ok(()));
        assert_eq!(
            text,
            "HTTP/1.1 401 Unauthorized\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
             WWW-Authenticate: Bearer\r\n\
             Content-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n\
             Content-Length: 13\r\n\
             Connection: close\r\n\r\nwho are you?\n"
        );
    }

    #[test]
    fn without_a_text_it_is_the_phrase() {
        assert!(
            written(&Reject::status(403))
                .0
                .ends_with("Content-Length: 10\r\nConnection: close\r\n\r\nForbidden\n")
        );
        let (unknown, _) = written(&Reject::status(599));
        assert!(
            unknown.starts_with("HTTP/1.1 599 \r\n") && unknown.ends_with("\r\n\r\nrefused\n"),
            "{unknown}"
        );
    }

    #[test]
    fn an_invalid_header_becomes_status_500() {
        for (name, value, error) in [
            ("X", "a\r\nSet-Cookie: b", AcceptError::HeaderValue),
            ("X Y", "a", AcceptError::HeaderName),
            ("content-length", "0", AcceptError::ReservedHeader),
            ("Content-Type", "text/html", AcceptError::ReservedHeader),
        ] {
            let (text, result) = written(&Reject::status(403).header(name, value));
            assert_eq!(result, Err(error));
            assert!(text.starts_with("HTTP/1.1 500 Internal Server Error\r\n"), "{text}");
            assert!(!text.contains("Set-Cookie") && !text.contains("text/html"), "{text}");
        }
    }

    #[test]
    fn a_status_outside_300_to_599_panics() {
        for status in [0, 101, 200, 204, 299, 600] {
            let panic = std::panic::catch_unwind(|| Reject::status(status)).unwrap_err();
            let message = panic.downcast_ref::<String>().unwrap();
            assert!(message.starts_with("the status of a rejection is 300 to 599"), "{message}");
        }
        assert_eq!((Reject::status(300).code(), Reject::status(599).code()), (300, 599));
    }
}
