//! A request, as a server reads it.

use super::fast_path::{self, CompleteHead};
use super::fields::{Headers, KnownName, names};
use super::head::{self, HeadError, HeadLimits, HeadScanner};
use super::rejection::Rejection;
use super::syntax::{ascii, is_token, trim};
use super::target::{self, RequestTarget};
use super::upgrade::Upgrade;

/// The headers that may occur only once in a request. The first three decide where the request goes
/// and how long it is.
const SINGLE: u16 = names(&[
    "Host",
    "Content-Length",
    "Transfer-Encoding",
    "Sec-WebSocket-Key",
    "Sec-WebSocket-Version",
    "Origin",
    "Authorization",
]);

/// The methods of HTTP (RFC 9110 section 9.1, RFC 5789).
const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

impl From<HeadError> for Rejection {
    fn from(error: HeadError) -> Self {
        match error {
            HeadError::ControlCharacter => Self::ControlCharacter,
            HeadError::FoldedLine => Self::FoldedLine,
            HeadError::FirstLineTooLong => Self::TargetTooLong,
            HeadError::TooLong => Self::HeadTooLong,
            HeadError::TooManyHeaders => Self::TooManyHeaders,
            HeadError::HeaderName => Self::HeaderName,
            HeadError::DuplicateHeader => Self::DuplicateHeader,
        }
    }
}

/// The length of a request's body (RFC 9112 section 6.3).
///
/// ```
/// use windlass_ws::handshake::{BodyLength, HeadLimits, Request};
///
/// let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n";
/// let (request, _) = Request::parse(head, &HeadLimits::DEFAULT)?.unwrap();
/// assert_eq!(request.body(), BodyLength::Length(5));
/// # Ok::<(), windlass_ws::handshake::Rejection>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BodyLength {
    /// No body.
    None,
    /// This many bytes, at least one.
    Length(u64),
    /// Chunks, up to the last chunk.
    Chunked,
}

/// A request of HTTP/1.0 or HTTP/1.1 with a well-formed head. It may be an ordinary request or an
/// upgrade: see [`upgrade`](Self::upgrade).
///
/// It borrows the bytes that it was parsed from.
///
/// ```
/// use windlass_ws::handshake::{HeadLimits, Request};
///
/// let received = b"GET /chat?room=1 HTTP/1.1\r\nHost: a.example\r\n\r\n";
/// let (request, head_len) = Request::parse(received, &HeadLimits::DEFAULT)?.unwrap();
/// assert_eq!((request.path(), request.query()), ("/chat", Some("room=1")));
/// assert_eq!((request.host(), head_len), (Some("a.example"), received.len()));
/// # Ok::<(), windlass_ws::handshake::Rejection>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    method: &'a str,
    raw_target: &'a str,
    target: RequestTarget<'a>,
    is_http_1_0: bool,
    pub(super) headers: Headers<'a>,
    body: BodyLength,
}

impl<'a> Request<'a> {
    /// Parses a request at the start of `bytes`, which may hold more than its head. Returns the
    /// request and the length of the head. The body follows, or the client's data after an upgrade.
    /// `None` means that more bytes are needed.
    ///
    /// Each call starts at the first byte. If heads arrive in pieces, use a
    /// [`HeadReader`](super::HeadReader), which examines each byte once.
    ///
    /// # Errors
    ///
    /// The error can come before the head is complete.
    ///
    /// - [`Rejection::ControlCharacter`], [`FoldedLine`](Rejection::FoldedLine),
    ///   [`HeaderName`](Rejection::HeaderName): a line is malformed.
    /// - [`Rejection::RequestLine`], [`Target`](Rejection::Target),
    ///   [`HttpVersion`](Rejection::HttpVersion): the first line is malformed.
    /// - [`Rejection::TargetTooLong`], [`HeadTooLong`](Rejection::HeadTooLong),
    ///   [`TooManyHeaders`](Rejection::TooManyHeaders): a limit is exceeded.
    /// - [`Rejection::DuplicateHeader`], [`NoHost`](Rejection::NoHost),
    ///   [`BadHost`](Rejection::BadHost), [`BodyLength`](Rejection::BodyLength),
    ///   [`TransferCoding`](Rejection::TransferCoding): the headers contradict RFC 9112.
    pub fn parse(bytes: &'a [u8], limits: &HeadLimits) -> Result<Option<(Self, usize)>, Rejection> {
        if let Some(CompleteHead { first_line, headers, len }) =
            fast_path::read(bytes, limits, SINGLE)
        {
            return Ok(Some((Self::of(RequestLine::read(first_line, limits)?, headers)?, len)));
        }
        match HeadScanner::new().scan(bytes, limits)? {
            Some(len) => Ok(Some((Self::from_head(&bytes[..len], limits)?, len))),
            None => Ok(None),
        }
    }

    /// Parses a whole head that the scanner has checked.
    pub(super) fn from_head(head: &'a [u8], limits: &HeadLimits) -> Result<Self, Rejection> {
        let (first_line, lines) = head::split(head);
        let first_line = RequestLine::read(first_line, limits)?;
        Self::of(first_line, Headers::check(lines, SINGLE)?)
    }

    fn of(first_line: RequestLine<'a>, headers: Headers<'a>) -> Result<Self, Rejection> {
        let RequestLine { method, raw_target, target, is_http_1_0 } = first_line;
        let body = body(&headers, is_http_1_0)?;
        match headers.get(const { KnownName::of("Host") }) {
            Some(host) if target::is_authority(host) => {}
            Some(_) => return Err(Rejection::BadHost),
            None if is_http_1_0 => {}
            None => return Err(Rejection::NoHost),
        }
        Ok(Self { method, raw_target, target, is_http_1_0, headers, body })
    }

    /// The method, for example `GET`. It may be one that HTTP does not define.
    #[must_use]
    pub const fn method(&self) -> &'a str {
        self.method
    }

    /// The target as it was sent, for example `/chat?room=1`. A client that believes it talks to a
    /// proxy sends `http://example.com/chat`.
    #[must_use]
    pub const fn target(&self) -> &'a str {
        self.raw_target
    }

    /// The path of the target, not decoded. It starts with a slash, but is `*` for `OPTIONS *` and
    /// empty for CONNECT.
    #[must_use]
    pub const fn path(&self) -> &'a str {
        self.target.path
    }

    /// The part of the target after the first question mark.
    #[must_use]
    pub const fn query(&self) -> Option<&'a str> {
        self.target.query
    }

    /// Host and port of the request: from the target if it has them (RFC 9112 section 3.2.2), else
    /// from the Host header. `None` only in HTTP/1.0.
    #[must_use]
    pub fn host(&self) -> Option<&'a str> {
        self.target.authority.or_else(|| self.header("Host"))
    }

    /// Whether the version is HTTP/1.0, which has no upgrades and, by default, no second request on
    /// a connection.
    #[must_use]
    pub const fn is_http_1_0(&self) -> bool {
        self.is_http_1_0
    }

    /// The length of the body.
    #[must_use]
    pub const fn body(&self) -> BodyLength {
        self.body
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

    /// The bytes of the first header with this name. They need not be UTF-8.
    #[must_use]
    pub fn header_bytes(&self, name: &str) -> Option<&'a [u8]> {
        self.headers.first(name)
    }

    /// Checks that the request is an upgrade to this protocol (RFC 6455 section 4.2.1).
    ///
    /// # Errors
    ///
    /// - [`Rejection::NotAnUpgrade`]: the request does not ask for this protocol.
    /// - [`Rejection::MethodNotAllowed`], [`UnknownMethod`](Rejection::UnknownMethod): the method
    ///   is not GET.
    /// - [`Rejection::HttpVersion`]: the version is HTTP/1.0.
    /// - [`Rejection::WebSocketVersion`]: the version of the protocol is not 13.
    /// - [`Rejection::Connection`], [`Key`](Rejection::Key), [`Protocols`](Rejection::Protocols),
    ///   [`Extensions`](Rejection::Extensions): the header is missing or malformed.
    /// - [`Rejection::UnexpectedBody`]: the request has a body.
    pub fn upgrade(&self) -> Result<Upgrade<'a>, Rejection> {
        Upgrade::check(self)
    }

    /// 405 or 501 if the method is not GET.
    pub(super) fn check_is_get(&self) -> Result<(), Rejection> {
        match self.method {
            "GET" => Ok(()),
            known if METHODS.contains(&known) => Err(Rejection::MethodNotAllowed),
            _ => Err(Rejection::UnknownMethod),
        }
    }
}

/// The parts of the first line.
struct RequestLine<'a> {
    method: &'a str,
    raw_target: &'a str,
    target: RequestTarget<'a>,
    is_http_1_0: bool,
}

impl<'a> RequestLine<'a> {
    fn read(line: &'a [u8], limits: &HeadLimits) -> Result<Self, Rejection> {
        let (method, raw_target, is_http_1_0) = match usual(line) {
            Some(raw_target) => ("GET", raw_target, false),
            None => request_line(line)?,
        };
        if raw_target.len() > limits.target_bytes_max {
            return Err(Rejection::TargetTooLong);
        }
        let target = target::parse(method, raw_target).ok_or(Rejection::Target)?;
        Ok(Self { method, raw_target, target, is_http_1_0 })
    }
}

/// The target of a line in the most common form.
fn usual(line: &[u8]) -> Option<&str> {
    let target = line.strip_prefix(b"GET ")?.strip_suffix(b" HTTP/1.1")?;
    let is_one = !target.is_empty() && !target.contains(&b' ');
    if is_one { core::str::from_utf8(target).ok() } else { None }
}

/// Method, target, and whether the version is HTTP/1.0.
fn request_line(line: &[u8]) -> Result<(&str, &str, bool), Rejection> {
    let mut parts = line.split(|&byte| byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Rejection::RequestLine);
    };
    if !is_token(method) || target.is_empty() {
        return Err(Rejection::RequestLine);
    }
    let is_http_1_0 = match http_minor(version) {
        Some(minor) => minor.ok_or(Rejection::HttpVersion)? == 0,
        None => return Err(Rejection::RequestLine),
    };
    let target = core::str::from_utf8(target).map_err(|_| Rejection::Target)?;
    Ok((ascii(method), target, is_http_1_0))
}

/// The minor version of `HTTP/1.x`. `Some(None)` for another major version, `None` if it is not a
/// version (RFC 9112 section 2.3).
pub(super) fn http_minor(version: &[u8]) -> Option<Option<u8>> {
    match version.strip_prefix(b"HTTP/")? {
        [major, b'.', minor] if major.is_ascii_digit() && minor.is_ascii_digit() => {
            Some((*major == b'1').then_some(minor - b'0'))
        }
        _ => None,
    }
}

/// RFC 9112 section 6.3, without its tolerances.
fn body(headers: &Headers<'_>, is_http_1_0: bool) -> Result<BodyLength, Rejection> {
    match (
        headers.get(const { KnownName::of("Transfer-Encoding") }),
        headers.get(const { KnownName::of("Content-Length") }),
    ) {
        (None, None) => Ok(BodyLength::None),
        (None, Some(length)) => match content_length(length) {
            Some(0) => Ok(BodyLength::None),
            Some(length) => Ok(BodyLength::Length(length)),
            None => Err(Rejection::BodyLength),
        },
        // A program that uses the other header would see a different request in the following
        // bytes.
        (Some(_), Some(_)) => Err(Rejection::BodyLength),
        (Some(_), None) if is_http_1_0 => Err(Rejection::BodyLength),
        (Some(coding), None) => match chunked_last(coding) {
            Some([]) => Ok(BodyLength::Chunked),
            Some(before) if !before.split(|&byte| byte == b',').any(is_chunked) => {
                Err(Rejection::TransferCoding)
            }
            // Without chunks at the end, the end of the body is undefined.
            _ => Err(Rejection::BodyLength),
        },
    }
}

/// The codings before `chunked`, if `chunked` comes last.
fn chunked_last(codings: &[u8]) -> Option<&[u8]> {
    let end = codings.iter().rposition(|&byte| byte == b',');
    let (before, last) =
        end.map_or((&[][..], codings), |end| (&codings[..=end], &codings[end + 1..]));
    is_chunked(last).then_some(before)
}

fn is_chunked(coding: &[u8]) -> bool {
    trim(coding).eq_ignore_ascii_case(b"chunked")
}

/// Digits only: no sign, no list.
pub(super) fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0_u64, |length, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        length.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_digits() {
        assert_eq!(content_length(b"0"), Some(0));
        assert_eq!(content_length(b"18446744073709551615"), Some(u64::MAX));
        for bad in
            [&b""[..], b"+1", b"-1", b"1,1", b"1 1", b"0x1", b"18446744073709551616", b"\xb2"]
        {
            assert_eq!(content_length(bad), None, "{:?}", bad.escape_ascii());
        }
    }

    #[test]
    fn versions_have_two_digits() {
        assert_eq!(http_minor(b"HTTP/1.1"), Some(Some(1)));
        assert_eq!(http_minor(b"HTTP/1.0"), Some(Some(0)));
        assert_eq!(http_minor(b"HTTP/2.0"), Some(None));
        for bad in
            [&b"HTTP/1"[..], b"HTTP/1.10", b"http/1.1", b"HTTP/1,1", b"HTTP/a.1", b"", b"HTTPS/1.1"]
        {
            assert_eq!(http_minor(bad), None);
        }
    }
}
