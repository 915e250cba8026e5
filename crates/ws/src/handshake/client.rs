//! The client's side of a handshake (RFC 6455 section 4.1).

use alloc::vec::Vec;
use core::fmt;

use super::fields::{FieldError, KnownName, check_own, write_line};
use super::head::HeadLimits;
use super::request::content_length;
use super::response::Response;
use super::syntax::{is_token, is_value_byte};
use super::upgrade::lists_token;
use super::{PROTOCOLS_MAX, key, target};
#[cfg(feature = "deflate")]
use super::{answer::check_extensions, negotiate};
#[cfg(feature = "deflate")]
use crate::deflate::{Agreement, DeflateConfig};

/// A client's upgrade request. It also checks the server's response.
///
/// ```
/// use windlass_ws::handshake::{ClientRequest, HeadLimits};
///
/// // 16 random bytes, from `getrandom` or the like.
/// let key = *b"the sample nonce";
/// let request = ClientRequest::new("example.com", "/chat", key).protocol("chat");
/// let mut out = Vec::new();
/// request.write(&mut out)?;
/// assert!(out.starts_with(b"GET /chat HTTP/1.1\r\nHost: example.com\r\n"));
///
/// let received = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
///     Connection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
///     Sec-WebSocket-Protocol: chat\r\n\r\n";
/// let (negotiated, len) = request.read_response(received, &HeadLimits::DEFAULT)?.unwrap();
/// assert_eq!((negotiated.protocol, len), (Some("chat"), received.len()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClientRequest<'a> {
    host: &'a str,
    target: &'a str,
    key: [u8; 16],
    origin: Option<&'a str>,
    protocols: Vec<&'a str>,
    #[cfg(feature = "deflate")]
    deflate: Option<DeflateConfig>,
    headers: Vec<(&'a str, &'a str)>,
}

/// The result of a successful handshake.
///
/// ```
/// use windlass_ws::handshake::{ClientRequest, HeadLimits};
///
/// let request = ClientRequest::new("a.example", "/", *b"the sample nonce");
/// let received = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
///     Connection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
/// let (negotiated, _) = request.read_response(received, &HeadLimits::DEFAULT)?.unwrap();
/// assert!(negotiated.protocol.is_none() && negotiated.deflate.is_none());
/// # Ok::<(), windlass_ws::handshake::HandshakeError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Negotiated<'a> {
    /// The subprotocol that the server chose.
    pub protocol: Option<&'a str>,
    /// permessage-deflate, if the server accepted it.
    #[cfg(feature = "deflate")]
    pub deflate: Option<Agreement>,
    /// The whole response.
    pub response: Response<'a>,
}

/// Why no request was written: it would have been invalid.
///
/// ```
/// use windlass_ws::handshake::{ClientRequest, RequestError};
///
/// let request = ClientRequest::new("a.example", "no slash", [0; 16]);
/// assert_eq!(request.write(&mut Vec::new()), Err(RequestError::Target));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestError {
    /// The host is not a host with an optional port.
    Host,
    /// The target does not start with a slash, or contains a space, a control character, a `#`, or
    /// a non-ASCII character.
    Target,
    /// The origin contains a control character.
    Origin,
    /// A subprotocol is not a token, occurs twice, or exceeds [`PROTOCOLS_MAX`].
    Protocol,
    /// The name of an additional header is not a token.
    HeaderName,
    /// The value of an additional header contains a control character.
    HeaderValue,
    /// An additional header is one that the handshake writes itself, or describes a body.
    ReservedHeader,
}

impl From<FieldError> for RequestError {
    fn from(error: FieldError) -> Self {
        match error {
            FieldError::Name => Self::HeaderName,
            FieldError::Value => Self::HeaderValue,
            FieldError::Reserved => Self::ReservedHeader,
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "malformed host",
            Self::Target => "malformed target",
            Self::Origin => "malformed origin",
            Self::Protocol => "malformed or duplicate subprotocol, or too many of them",
            Self::HeaderName => "a header name is not a token",
            Self::HeaderValue => "a header value contains a control character",
            Self::ReservedHeader => "the handshake writes this header itself",
        })
    }
}

impl core::error::Error for RequestError {}

/// Why the response was not accepted. Close the connection.
///
/// ```
/// use windlass_ws::handshake::{ClientRequest, HandshakeError, HeadLimits};
///
/// let request = ClientRequest::new("a.example", "/", [0; 16]);
/// let received = b"HTTP/1.1 401 Unauthorized\r\n\r\n";
/// let result = request.read_response(received, &HeadLimits::DEFAULT);
/// assert_eq!(result.err(), Some(HandshakeError::Status(401)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The head is not the head of an HTTP response.
    Malformed,
    /// The version is not HTTP/1.1. A response that does not switch protocols may also be HTTP/1.0.
    HttpVersion,
    /// The head is longer than `head_bytes_max`.
    HeadTooLong,
    /// There are more headers than `headers_max`.
    TooManyHeaders,
    /// A header that may occur only once occurs twice.
    DuplicateHeader,
    /// The server does not switch protocols but answers with this status. [`Response::parse`] reads
    /// such a response, which may redirect (3xx) or require authentication (401).
    Status(u16),
    /// The Upgrade header is missing or is not `websocket`.
    Upgrade,
    /// The Connection header does not name Upgrade.
    Connection,
    /// The Sec-WebSocket-Accept header is missing or does not match the key. The server does not
    /// speak this protocol, or this response answers another request.
    Accept,
    /// The response announces a body, which a 101 cannot have.
    UnexpectedBody,
    /// The server chose a subprotocol that was not offered.
    Protocol,
    /// The server chose an extension that was not offered, or parameters that do not match the
    /// offer.
    Extension,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "malformed response",
            Self::HttpVersion => "the response is not HTTP/1.1",
            Self::HeadTooLong => "the head of the response is longer than head_bytes_max",
            Self::TooManyHeaders => "the response has more headers than headers_max",
            Self::DuplicateHeader => "duplicate header in the response",
            Self::Status(status) => return write!(f, "the server answers with status {status}"),
            Self::Upgrade => "missing or wrong Upgrade in the response",
            Self::Connection => "the Connection header of the response does not name Upgrade",
            Self::Accept => "missing or wrong Sec-WebSocket-Accept",
            Self::UnexpectedBody => "the response announces a body",
            Self::Protocol => "the server chose a subprotocol that was not offered",
            Self::Extension => "the server chose an extension or parameters that were not offered",
        })
    }
}

impl core::error::Error for HandshakeError {}

impl<'a> ClientRequest<'a> {
    /// A request for `target`, which starts with a slash, on `host`, which may have a port. `key`
    /// is 16 random bytes, new for each connection.
    #[must_use]
    pub const fn new(host: &'a str, target: &'a str, key: [u8; 16]) -> Self {
        Self {
            host,
            target,
            key,
            origin: None,
            protocols: Vec::new(),
            #[cfg(feature = "deflate")]
            deflate: None,
            headers: Vec::new(),
        }
    }

    /// Adds an Origin header, as browsers send it.
    #[must_use]
    pub const fn origin(mut self, origin: &'a str) -> Self {
        self.origin = Some(origin);
        self
    }

    /// Adds a subprotocol. Subprotocols are in order of preference, the best first.
    #[must_use]
    pub fn protocol(mut self, protocol: &'a str) -> Self {
        self.protocols.push(protocol);
        self
    }

    /// Adds an offer of permessage-deflate.
    #[cfg(feature = "deflate")]
    #[must_use]
    pub const fn deflate(mut self, config: &DeflateConfig) -> Self {
        self.deflate = Some(*config);
        self
    }

    /// Adds a header. [`write`](Self::write) rejects the handshake's own headers (Host, Origin,
    /// Upgrade, Connection, Sec-WebSocket-*) and those that describe a body.
    #[must_use]
    pub fn header(mut self, name: &'a str, value: &'a str) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Appends the request to `out`.
    ///
    /// # Errors
    ///
    /// Nothing is appended on an error.
    ///
    /// - [`RequestError::Host`], [`Target`](RequestError::Target),
    ///   [`Origin`](RequestError::Origin): the value is malformed.
    /// - [`RequestError::Protocol`]: a subprotocol is not a token or occurs twice, or there are
    ///   more than [`PROTOCOLS_MAX`].
    /// - [`RequestError::HeaderName`], [`HeaderValue`](RequestError::HeaderValue),
    ///   [`ReservedHeader`](RequestError::ReservedHeader): an additional header cannot be sent.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), RequestError> {
        self.check_own()?;
        for part in ["GET ", self.target, " HTTP/1.1\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        write_line("Host", self.host.as_bytes(), out);
        out.extend_from_slice(b"Upgrade: websocket\r\nConnection: Upgrade\r\n");
        write_line("Sec-WebSocket-Key", &key::encode(self.key), out);
        out.extend_from_slice(b"Sec-WebSocket-Version: 13\r\n");
        if let Some(origin) = self.origin {
            write_line("Origin", origin.as_bytes(), out);
        }
        if !self.protocols.is_empty() {
            write_line("Sec-WebSocket-Protocol", self.protocols.join(", ").as_bytes(), out);
        }
        #[cfg(feature = "deflate")]
        if let Some(config) = &self.deflate {
            out.extend_from_slice(b"Sec-WebSocket-Extensions: ");
            negotiate::write_offer(config, out);
            out.extend_from_slice(b"\r\n");
        }
        for (name, value) in &self.headers {
            write_line(name, value.as_bytes(), out);
        }
        out.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn check_own(&self) -> Result<(), RequestError> {
        if !target::is_authority(self.host.as_bytes()) {
            return Err(RequestError::Host);
        }
        if !self.target.starts_with('/') || target::parse("GET", self.target).is_none() {
            return Err(RequestError::Target);
        }
        if !self.origin.is_none_or(|origin| origin.bytes().all(is_value_byte)) {
            return Err(RequestError::Origin);
        }
        let is_good = |(index, protocol): (usize, &&str)| {
            is_token(protocol.as_bytes()) && !self.protocols[..index].contains(protocol)
        };
        if self.protocols.len() > PROTOCOLS_MAX || !self.protocols.iter().enumerate().all(is_good) {
            return Err(RequestError::Protocol);
        }
        for (name, value) in &self.headers {
            check_own(name, value, &["Host", "Origin"])?;
        }
        Ok(())
    }

    /// Reads the response at the start of `bytes`, which may hold more than its head, and checks
    /// it. Returns the result and the number of bytes read; the server's first frame follows.
    /// `None` means that more bytes are needed. Interim responses, such as 103, are skipped.
    ///
    /// If responses arrive in pieces, use a [`HeadReader`](super::HeadReader) and
    /// [`check`](Self::check), which examine each byte once.
    ///
    /// # Errors
    ///
    /// Those of [`Response::parse`] and of [`check`](Self::check), possibly before the head is
    /// complete.
    pub fn read_response<'r>(
        &self,
        bytes: &'r [u8],
        limits: &HeadLimits,
    ) -> Result<Option<(Negotiated<'r>, usize)>, HandshakeError> {
        let mut at = 0;
        loop {
            let Some((response, len)) = Response::parse(&bytes[at..], limits)? else {
                return Ok(None);
            };
            at += len;
            // Other 1xx responses are interim; a final one follows (RFC 9110 section 15.2).
            if response.status() == 101 || response.status() >= 200 {
                return Ok(Some((self.check(response)?, at)));
            }
        }
    }

    /// Checks that `response` accepts this request (RFC 6455 section 4.1). It must be the final
    /// response. Of the 1xx statuses, only 101 is final.
    ///
    /// # Errors
    ///
    /// - [`HandshakeError::Status`]: the server does not switch protocols.
    /// - [`HandshakeError::HttpVersion`]: the version is HTTP/1.0.
    /// - [`HandshakeError::Upgrade`], [`Connection`](HandshakeError::Connection): the header is
    ///   missing or wrong.
    /// - [`HandshakeError::Accept`]: the response does not match the key of this request.
    /// - [`HandshakeError::UnexpectedBody`]: the response announces a body.
    /// - [`HandshakeError::Protocol`], [`Extension`](HandshakeError::Extension): the server chose
    ///   something that was not offered.
    pub fn check<'r>(&self, response: Response<'r>) -> Result<Negotiated<'r>, HandshakeError> {
        let headers = response.headers;
        if response.status() != 101 {
            return Err(HandshakeError::Status(response.status()));
        }
        if response.is_http_1_0 {
            return Err(HandshakeError::HttpVersion);
        }
        if !headers
            .get(const { KnownName::of("Upgrade") })
            .is_some_and(|value| value.eq_ignore_ascii_case(b"websocket"))
        {
            return Err(HandshakeError::Upgrade);
        }
        if !lists_token(&headers, const { KnownName::of("Connection") }, b"upgrade") {
            return Err(HandshakeError::Connection);
        }
        let accept = key::accept(&key::encode(self.key));
        if headers.get(const { KnownName::of("Sec-WebSocket-Accept") }) != Some(&accept[..]) {
            return Err(HandshakeError::Accept);
        }
        // RFC 9110 section 8.6 forbids both. Some servers send a length of 0, which announces no
        // body.
        let length = headers.get(const { KnownName::of("Content-Length") });
        if headers.get(const { KnownName::of("Transfer-Encoding") }).is_some()
            || length.is_some_and(|value| content_length(value) != Some(0))
        {
            return Err(HandshakeError::UnexpectedBody);
        }
        let protocol = match headers.get(const { KnownName::of("Sec-WebSocket-Protocol") }) {
            Some(chosen) => {
                let offered = self.protocols.iter().any(|offered| offered.as_bytes() == chosen);
                let text = core::str::from_utf8(chosen).ok().filter(|_| offered);
                Some(text.ok_or(HandshakeError::Protocol)?)
            }
            None => None,
        };
        #[cfg(feature = "deflate")]
        let deflate = self.check_extensions(response)?;
        #[cfg(not(feature = "deflate"))]
        if headers.get(const { KnownName::of("Sec-WebSocket-Extensions") }).is_some() {
            return Err(HandshakeError::Extension);
        }
        Ok(Negotiated {
            protocol,
            #[cfg(feature = "deflate")]
            deflate,
            response,
        })
    }

    /// The one extension that was offered, at most once (RFC 6455 section 9.1).
    #[cfg(feature = "deflate")]
    fn check_extensions(
        &self,
        response: Response<'_>,
    ) -> Result<Option<Agreement>, HandshakeError> {
        let Some(value) = response.headers.get(const { KnownName::of("Sec-WebSocket-Extensions") })
        else {
            return Ok(None);
        };
        let config = self.deflate.as_ref().ok_or(HandshakeError::Extension)?;
        check_extensions(value, config).map(Some).ok_or(HandshakeError::Extension)
    }
}
