//! A response, as a client reads it.

use super::client::HandshakeError;
use super::fields::{Headers, names};
use super::head::{self, HeadError, HeadLimits, HeadScanner};
use super::request::http_minor;
use super::syntax::is_value_byte;

/// The headers that may occur only once in a response (RFC 6455 sections 11.3 and 4.1; RFC 9112
/// section 6).
const SINGLE: u16 = names(&[
    "Content-Length",
    "Transfer-Encoding",
    "Upgrade",
    "Sec-WebSocket-Accept",
    "Sec-WebSocket-Protocol",
    "Sec-WebSocket-Extensions",
]);

impl From<HeadError> for HandshakeError {
    fn from(error: HeadError) -> Self {
        match error {
            HeadError::TooLong | HeadError::FirstLineTooLong => Self::HeadTooLong,
            HeadError::TooManyHeaders => Self::TooManyHeaders,
            HeadError::DuplicateHeader => Self::DuplicateHeader,
            HeadError::ControlCharacter | HeadError::FoldedLine | HeadError::HeaderName => {
                Self::Malformed
            }
        }
    }
}

/// A response with a well-formed head, of any status.
///
/// It borrows the bytes that it was parsed from.
///
/// ```
/// use windlass_ws::handshake::{HeadLimits, Response};
///
/// let received = b"HTTP/1.1 302 Found\r\nLocation: /there\r\n\r\n";
/// let (response, _) = Response::parse(received, &HeadLimits::DEFAULT)?.unwrap();
/// assert_eq!((response.status(), response.header("location")), (302, Some("/there")));
/// # Ok::<(), windlass_ws::handshake::HandshakeError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    status: u16,
    pub(super) is_http_1_0: bool,
    pub(super) headers: Headers<'a>,
}

impl<'a> Response<'a> {
    /// Parses a response at the start of `bytes`, which may hold more than its head. Returns the
    /// response and the length of the head. `None` means that more bytes are needed. See
    /// [`HeadReader`](super::HeadReader) for heads that arrive in pieces.
    ///
    /// # Errors
    ///
    /// The error can come before the head is complete.
    ///
    /// - [`HandshakeError::Malformed`]: it is not the head of an HTTP response.
    /// - [`HandshakeError::HttpVersion`]: the major version is not 1.
    /// - [`HandshakeError::HeadTooLong`], [`TooManyHeaders`](HandshakeError::TooManyHeaders): a
    ///   limit is exceeded.
    /// - [`HandshakeError::DuplicateHeader`]: a header that may occur only once occurs twice.
    pub fn parse(
        bytes: &'a [u8],
        limits: &HeadLimits,
    ) -> Result<Option<(Self, usize)>, HandshakeError> {
        match HeadScanner::new().scan(bytes, limits)? {
            Some(len) => Ok(Some((Self::from_head(&bytes[..len])?, len))),
            None => Ok(None),
        }
    }

    /// Parses a whole head that the scanner has checked.
    pub(super) fn from_head(head: &'a [u8]) -> Result<Self, HandshakeError> {
        // Only a server may skip a leading empty line.
        if head.starts_with(b"\r\n") {
            return Err(HandshakeError::Malformed);
        }
        let (first_line, lines) = head::split(head);
        let (status, is_http_1_0) = status_line(first_line)?;
        Ok(Self { status, is_http_1_0, headers: Headers::check(lines, SINGLE)? })
    }

    /// The status code. 101 means that the server switches protocols.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// All headers, in order.
    #[must_use]
    pub const fn headers(&self) -> Headers<'a> {
        self.headers
    }

    /// The value of the first header with this name, ignoring case. `None` also if the value is not
    /// UTF-8; [`headers`](Self::headers) has the bytes.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        core::str::from_utf8(self.headers.first(name)?).ok()
    }
}

/// Parses `HTTP/1.1 101 reason`. The reason may be empty, and some servers omit the space before it
/// (RFC 9112 section 4). Returns the status, and whether the version is HTTP/1.0.
fn status_line(line: &[u8]) -> Result<(u16, bool), HandshakeError> {
    let mut parts = line.splitn(3, |&byte| byte == b' ');
    let minor = parts.next().and_then(http_minor).ok_or(HandshakeError::Malformed)?;
    let minor = minor.ok_or(HandshakeError::HttpVersion)?;
    let status = match parts.next() {
        Some(&[a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9']) => {
            u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0')
        }
        _ => return Err(HandshakeError::Malformed),
    };
    debug_assert!(line.iter().copied().all(is_value_byte), "the scanner has looked");
    Ok((status, minor == 0))
}
