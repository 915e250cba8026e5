//! Why a server rejects a request, and the response that says so.

use alloc::vec::Vec;
use core::fmt;

use super::fields::{check_own, decimal, write_line};
use super::upgrade::AcceptError;

/// Why a request is malformed, or is not a valid upgrade to this protocol. Each reason has an HTTP
/// status.
///
/// ```
/// use windlass_ws::handshake::Rejection;
///
/// let mut response = Vec::new();
/// Rejection::NotAnUpgrade.write(&mut response);
/// assert!(response.starts_with(b"HTTP/1.1 426 Upgrade Required\r\n"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rejection {
    /// 400: a line of the head contains a control character, or a CR or LF that is not part of a
    /// line end (RFC 9112 section 2.2).
    ControlCharacter,
    /// 400: a line starts with a space or tab, so it would continue the previous one (RFC 9112
    /// section 5.2).
    FoldedLine,
    /// 400: the first line is not a method, a target and a version with single spaces between them
    /// (RFC 9112 section 3).
    RequestLine,
    /// 400: the form of the target does not match the method (RFC 9112 section 3.2).
    Target,
    /// 414: the target is longer than `target_bytes_max`.
    TargetTooLong,
    /// 505: not HTTP/1, or an upgrade in HTTP/1.0. A minor version above 1 counts as 1 (RFC 9110
    /// section 2.5).
    HttpVersion,
    /// 400: a header line has no colon, or its name is not a token (RFC 9112 section 5.1).
    HeaderName,
    /// 400: a header that may occur only once occurs twice.
    DuplicateHeader,
    /// 431: the head is longer than `head_bytes_max`.
    HeadTooLong,
    /// 431: there are more headers than `headers_max`.
    TooManyHeaders,
    /// 400: an HTTP/1.1 request without a Host (RFC 9112 section 3.2).
    NoHost,
    /// 400: the Host is not a host with an optional port.
    BadHost,
    /// 400: the length of the body is invalid (RFC 9112 section 6). Either the Content-Length is
    /// not a number or comes with a Transfer-Encoding, or HTTP/1.0 has a Transfer-Encoding, or its
    /// last coding is not `chunked`.
    BodyLength,
    /// 501: transfer codings before `chunked`, for example `gzip, chunked` (RFC 9112 section 6.1).
    TransferCoding,
    /// 405: the method is not GET.
    MethodNotAllowed,
    /// 501: the method is not one of HTTP.
    UnknownMethod,
    /// 426: an ordinary request. Its Upgrade header does not list `websocket`.
    NotAnUpgrade,
    /// 400: the Connection header does not name Upgrade (RFC 6455 section 4.2.1, item 4).
    Connection,
    /// 400: an upgrade with a body.
    UnexpectedBody,
    /// 426: the version of the protocol is missing or is not 13.
    WebSocketVersion,
    /// 400: the Sec-WebSocket-Key is missing or is not 16 bytes in base64 (RFC 6455 section 4.2.1,
    /// item 5).
    Key,
    /// 400: the Sec-WebSocket-Protocol is not a list of distinct tokens, or has more than
    /// [`PROTOCOLS_MAX`](super::PROTOCOLS_MAX).
    Protocols,
    /// 408: the request did not arrive in time.
    Timeout,
    /// 400: the Sec-WebSocket-Extensions do not follow the grammar (RFC 6455 section 9.1).
    Extensions,
}

impl Rejection {
    /// The status code of the response.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::ControlCharacter
            | Self::FoldedLine
            | Self::RequestLine
            | Self::Target
            | Self::HeaderName
            | Self::DuplicateHeader
            | Self::NoHost
            | Self::BadHost
            | Self::BodyLength
            | Self::Connection
            | Self::UnexpectedBody
            | Self::Key
            | Self::Protocols
            | Self::Extensions => 400,
            Self::MethodNotAllowed => 405,
            Self::Timeout => 408,
            Self::TargetTooLong => 414,
            Self::NotAnUpgrade | Self::WebSocketVersion => 426,
            Self::HeadTooLong | Self::TooManyHeaders => 431,
            Self::UnknownMethod | Self::TransferCoding => 501,
            Self::HttpVersion => 505,
        }
    }

    fn phrase(self) -> &'static str {
        match self.status() {
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            414 => "URI Too Long",
            426 => "Upgrade Required",
            431 => "Request Header Fields Too Large",
            501 => "Not Implemented",
            505 => "HTTP Version Not Supported",
            _ => "Bad Request",
        }
    }

    /// The headers that a status requires.
    fn headers(self) -> &'static str {
        match self.status() {
            405 => "Allow: GET\r\nConnection: close\r\n",
            // RFC 9110 sections 7.8 and 15.5.22; RFC 6455 section 4.4.
            426 => {
                "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nConnection: Upgrade, close\r\n"
            }
            _ => "Connection: close\r\n",
        }
    }

    /// Appends the whole response: the status, the headers that it requires, and one line of text.
    /// Close the connection after it.
    ///
    /// It has no Date, because this crate reads no clock. A server with a clock sends one with
    /// [`write_with_headers`](Self::write_with_headers) (RFC 9110 section 6.6.1).
    pub fn write(self, out: &mut Vec<u8>) {
        self.append(&[], out);
    }

    /// Like [`write`](Self::write), with additional headers, for example a Date.
    ///
    /// # Errors
    ///
    /// Nothing is appended on an error.
    ///
    /// - [`AcceptError::HeaderName`], [`HeaderValue`](AcceptError::HeaderValue): the header is
    ///   malformed.
    /// - [`AcceptError::ReservedHeader`]: the response writes this header itself.
    pub fn write_with_headers(
        self,
        headers: &[(&str, &str)],
        out: &mut Vec<u8>,
    ) -> Result<(), AcceptError> {
        for (name, value) in headers {
            check_own(name, value, &["Allow", "Content-Type"])?;
        }
        self.append(headers, out);
        Ok(())
    }

    fn append(self, headers: &[(&str, &str)], out: &mut Vec<u8>) {
        out.extend_from_slice(b"HTTP/1.1 ");
        decimal(usize::from(self.status()), out);
        for part in [" ", self.phrase(), "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        for (name, value) in headers {
            write_line(name, value.as_bytes(), out);
        }
        out.extend_from_slice(self.headers().as_bytes());
        out.extend_from_slice(b"Content-Type: text/plain; charset=utf-8\r\nContent-Length: ");
        decimal(self.text().len() + 1, out);
        out.extend_from_slice(b"\r\n\r\n");
        out.extend_from_slice(self.text().as_bytes());
        out.push(b'\n');
    }

    fn text(self) -> &'static str {
        match self {
            Self::Timeout => "the request did not come in time",
            Self::ControlCharacter => "control character in the head",
            Self::FoldedLine => "folded header line",
            Self::RequestLine => "malformed request line",
            Self::Target => "malformed target",
            Self::TargetTooLong => "the target is too long",
            Self::HttpVersion => "HTTP/1.1 is required",
            Self::HeaderName => "malformed header name",
            Self::DuplicateHeader => "duplicate header",
            Self::HeadTooLong => "the head is too long",
            Self::TooManyHeaders => "too many headers",
            Self::NoHost => "no Host",
            Self::BadHost => "malformed Host",
            Self::BodyLength => "ambiguous length of the body",
            Self::TransferCoding => "unknown transfer coding",
            Self::MethodNotAllowed => "only GET is allowed",
            Self::UnknownMethod => "unknown method",
            Self::NotAnUpgrade => "this is a WebSocket endpoint",
            Self::Connection => "the Connection header does not name Upgrade",
            Self::UnexpectedBody => "an upgrade has no body",
            Self::WebSocketVersion => "WebSocket version 13 is required",
            Self::Key => "missing or malformed Sec-WebSocket-Key",
            Self::Protocols => "malformed Sec-WebSocket-Protocol",
            Self::Extensions => "malformed Sec-WebSocket-Extensions",
        }
    }
}

/// Appends a response of any status without a body, for a request that the application refuses.
/// Close the connection after it.
///
/// ```
/// let mut response = Vec::new();
/// windlass_ws::handshake::write_refusal(403, &[("X-Reason", "not today")], &mut response)?;
/// assert!(response.starts_with(b"HTTP/1.1 403 \r\nX-Reason: not today\r\n"));
/// # Ok::<(), windlass_ws::handshake::AcceptError>(())
/// ```
///
/// # Errors
///
/// Nothing is appended on an error.
///
/// - [`AcceptError::HeaderName`], [`HeaderValue`](AcceptError::HeaderValue): a header is
///   malformed.
/// - [`AcceptError::ReservedHeader`]: the response writes this header itself.
pub fn write_refusal(
    status: u16,
    headers: &[(&str, &str)],
    out: &mut Vec<u8>,
) -> Result<(), AcceptError> {
    for (name, value) in headers {
        check_own(name, value, &[])?;
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    decimal(usize::from(status), out);
    out.extend_from_slice(b" \r\n");
    for (name, value) in headers {
        write_line(name, value.as_bytes(), out);
    }
    out.extend_from_slice(b"Connection: close\r\nContent-Length: 0\r\n\r\n");
    Ok(())
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl core::error::Error for Rejection {}
