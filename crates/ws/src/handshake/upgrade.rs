//! The server's side of an upgrade (RFC 6455 section 4.2).

use alloc::vec::Vec;
use core::fmt;

#[cfg(feature = "deflate")]
use super::answer;
use super::extensions::Extensions;
use super::fields::{FieldError, Headers, KnownName, check_own, write_line};
use super::rejection::Rejection;
use super::request::{BodyLength, Request};
use super::syntax::{ascii, elements, is_token, trim};
use super::{PROTOCOLS_MAX, key};
#[cfg(feature = "deflate")]
use crate::deflate::{Agreement, DeflateConfig};

/// A valid upgrade request, which can be accepted.
///
/// ```
/// use windlass_ws::handshake::{AcceptOptions, HeadLimits, Request};
///
/// let received = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
///     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
///     Sec-WebSocket-Protocol: chat, log\r\n\r\n";
/// let (request, _) = Request::parse(received, &HeadLimits::DEFAULT)?.unwrap();
/// let upgrade = request.upgrade()?;
/// let mut response = Vec::new();
/// upgrade.accept(&AcceptOptions::DEFAULT.protocol(Some("chat")), &mut response)?;
/// assert!(response.starts_with(b"HTTP/1.1 101 "));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Upgrade<'a> {
    request: Request<'a>,
    key: &'a [u8; key::KEY_LEN],
}

/// The subprotocols that a client offers, in its order of preference.
///
/// ```
/// # use windlass_ws::handshake::{HeadLimits, Request};
/// #
/// # let received = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
/// #     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
/// #     Sec-WebSocket-Protocol: chat, log\r\n\r\n";
/// # let (request, _) = Request::parse(received, &HeadLimits::DEFAULT)?.unwrap();
/// # let upgrade = request.upgrade()?;
/// // The request has the header `Sec-WebSocket-Protocol: chat, log`.
/// assert_eq!(upgrade.protocols().collect::<Vec<_>>(), ["chat", "log"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Protocols<'a> {
    headers: Headers<'a>,
    /// The rest of the current header.
    value: &'a [u8],
}

impl<'a> Iterator for Protocols<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            if self.value.is_empty() {
                self.value = self.headers.find(is_protocol_header)?.value;
            }
            let end = self.value.iter().position(|&byte| byte == b',').unwrap_or(self.value.len());
            let element = trim(&self.value[..end]);
            self.value = self.value.get(end + 1..).unwrap_or_default();
            if !element.is_empty() {
                return Some(ascii(element));
            }
        }
    }
}

fn is_protocol_header(header: &super::Header<'_>) -> bool {
    header.name.eq_ignore_ascii_case("Sec-WebSocket-Protocol")
}

/// The server's choices for its answer.
///
/// ```
/// use windlass_ws::{deflate::DeflateConfig, handshake::AcceptOptions};
///
/// let deflate = DeflateConfig::DEFAULT;
/// let options = AcceptOptions::DEFAULT
///     .protocol(Some("chat"))
///     .deflate(Some(&deflate))
///     .headers(&[("Server", "example")]);
/// assert_eq!(options.protocol, Some("chat"));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AcceptOptions<'a> {
    /// One of the subprotocols that the client offers, or none.
    pub protocol: Option<&'a str>,
    /// If set, answers offers of permessage-deflate.
    #[cfg(feature = "deflate")]
    pub deflate: Option<&'a DeflateConfig>,
    /// Additional headers. The handshake's own (Upgrade, Connection, Sec-WebSocket-*) and those
    /// that describe a body are rejected.
    pub headers: &'a [(&'a str, &'a str)],
}

impl<'a> AcceptOptions<'a> {
    /// No subprotocol, no extension, no additional headers.
    pub const DEFAULT: Self = Self {
        protocol: None,
        #[cfg(feature = "deflate")]
        deflate: None,
        headers: &[],
    };

    /// Sets the subprotocol.
    #[must_use]
    pub const fn protocol(self, protocol: Option<&'a str>) -> Self {
        Self { protocol, ..self }
    }

    /// Enables permessage-deflate.
    #[cfg(feature = "deflate")]
    #[must_use]
    pub const fn deflate(self, config: Option<&'a DeflateConfig>) -> Self {
        Self { deflate: config, ..self }
    }

    /// Replaces the additional headers.
    #[must_use]
    pub const fn headers(self, headers: &'a [(&'a str, &'a str)]) -> Self {
        Self { headers, ..self }
    }
}

impl Default for AcceptOptions<'_> {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The result of an accepted upgrade.
///
/// ```
/// # use windlass_ws::handshake::{AcceptOptions, HeadLimits, Request};
/// #
/// # let received = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
/// #     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
/// #     Sec-WebSocket-Protocol: chat, log\r\n\r\n";
/// # let (request, _) = Request::parse(received, &HeadLimits::DEFAULT)?.unwrap();
/// # let upgrade = request.upgrade()?;
/// let mut response = Vec::new();
/// let accepted = upgrade.accept(&AcceptOptions::DEFAULT, &mut response)?;
/// assert!(accepted.deflate.is_none(), "the client did not offer compression");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accepted {
    /// permessage-deflate, if the client offered it and the server wants it.
    #[cfg(feature = "deflate")]
    pub deflate: Option<Agreement>,
}

/// Why no answer was written: it would have been invalid.
///
/// ```
/// # use windlass_ws::handshake::{AcceptError, AcceptOptions, HeadLimits, Request};
/// #
/// # let received = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
/// #     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
/// #     Sec-WebSocket-Protocol: chat, log\r\n\r\n";
/// # let (request, _) = Request::parse(received, &HeadLimits::DEFAULT)?.unwrap();
/// # let upgrade = request.upgrade()?;
/// let options = AcceptOptions::DEFAULT.protocol(Some("mail"));
/// let result = upgrade.accept(&options, &mut Vec::new());
/// assert_eq!(result, Err(AcceptError::ProtocolNotOffered));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcceptError {
    /// The client did not offer this subprotocol.
    ProtocolNotOffered,
    /// The name of an additional header is not a token.
    HeaderName,
    /// The value of an additional header contains a control character.
    HeaderValue,
    /// An additional header is one that the handshake writes itself, or describes a body.
    ReservedHeader,
}

impl From<FieldError> for AcceptError {
    fn from(error: FieldError) -> Self {
        match error {
            FieldError::Name => Self::HeaderName,
            FieldError::Value => Self::HeaderValue,
            FieldError::Reserved => Self::ReservedHeader,
        }
    }
}

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ProtocolNotOffered => "the client does not offer the subprotocol",
            Self::HeaderName => "a header name is not a token",
            Self::HeaderValue => "a header value contains a control character",
            Self::ReservedHeader => "the handshake writes this header itself",
        })
    }
}

impl core::error::Error for AcceptError {}

impl<'a> Upgrade<'a> {
    pub(super) fn check(request: &Request<'a>) -> Result<Self, Rejection> {
        let headers = &request.headers;
        request.check_is_get()?;
        if !lists_token(headers, const { KnownName::of("Upgrade") }, b"websocket") {
            return Err(Rejection::NotAnUpgrade);
        }
        if request.is_http_1_0() {
            return Err(Rejection::HttpVersion);
        }
        if !lists_token(headers, const { KnownName::of("Connection") }, b"upgrade") {
            return Err(Rejection::Connection);
        }
        if request.body() != BodyLength::None {
            return Err(Rejection::UnexpectedBody);
        }
        if headers.get(const { KnownName::of("Sec-WebSocket-Version") }) != Some(b"13") {
            return Err(Rejection::WebSocketVersion);
        }
        let key = headers
            .get(const { KnownName::of("Sec-WebSocket-Key") })
            .and_then(key::checked)
            .ok_or(Rejection::Key)?;
        check_protocols(headers)?;
        let extensions = const { KnownName::of("Sec-WebSocket-Extensions") };
        for value in headers.get(extensions).into_iter().flat_map(|_| headers.all(extensions)) {
            if Extensions::new(value).any(|extension| extension.is_err()) {
                return Err(Rejection::Extensions);
            }
        }
        Ok(Self { request: *request, key })
    }

    /// The underlying request.
    #[must_use]
    pub const fn request(&self) -> &Request<'a> {
        &self.request
    }

    /// The subprotocols that the client offers, in its order of preference. All are different.
    #[must_use]
    pub const fn protocols(&self) -> Protocols<'a> {
        Protocols { headers: self.request.headers, value: &[] }
    }

    /// The origin of the page that opens the connection. Browsers always send it. A server that
    /// trusts cookies must check it (RFC 6455 section 10.2).
    #[must_use]
    pub fn origin(&self) -> Option<&'a str> {
        self.request.header("Origin")
    }

    /// Appends the response that starts the connection.
    ///
    /// # Errors
    ///
    /// Nothing is appended on an error.
    ///
    /// - [`AcceptError::ProtocolNotOffered`]: the client does not offer the chosen subprotocol.
    /// - [`AcceptError::HeaderName`], [`HeaderValue`](AcceptError::HeaderValue),
    ///   [`ReservedHeader`](AcceptError::ReservedHeader): an additional header cannot be sent.
    pub fn accept(
        &self,
        accept: &AcceptOptions<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Accepted, AcceptError> {
        if let Some(protocol) = accept.protocol {
            if !self.protocols().any(|offered| offered == protocol) {
                return Err(AcceptError::ProtocolNotOffered);
            }
        }
        for (name, value) in accept.headers {
            check_own(name, value, &[])?;
        }
        out.extend_from_slice(&start(&key::accept(self.key)));
        if let Some(protocol) = accept.protocol {
            write_line("Sec-WebSocket-Protocol", protocol.as_bytes(), out);
        }
        #[cfg(feature = "deflate")]
        let deflate = accept.deflate.and_then(|config| self.answer_deflate(config, out));
        for (name, value) in accept.headers {
            write_line(name, value.as_bytes(), out);
        }
        out.extend_from_slice(b"\r\n");
        Ok(Accepted {
            #[cfg(feature = "deflate")]
            deflate,
        })
    }

    #[cfg(feature = "deflate")]
    fn answer_deflate(&self, config: &DeflateConfig, out: &mut Vec<u8>) -> Option<Agreement> {
        let start = out.len();
        out.extend_from_slice(b"Sec-WebSocket-Extensions: ");
        let agreement = answer::answer_offers(
            self.request.headers.all(const { KnownName::of("Sec-WebSocket-Extensions") }),
            config,
            out,
        );
        if agreement.is_some() {
            out.extend_from_slice(b"\r\n");
        } else {
            out.truncate(start);
        }
        agreement
    }
}

/// The common start of all answers.
fn start(accept: &[u8; key::ACCEPT_LEN]) -> [u8; START.len() + key::ACCEPT_LEN + 2] {
    let mut start = [b'\n'; START.len() + key::ACCEPT_LEN + 2];
    start[..START.len()].copy_from_slice(START);
    start[START.len()..][..key::ACCEPT_LEN].copy_from_slice(accept);
    start[START.len() + key::ACCEPT_LEN] = b'\r';
    start
}

const START: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
      Sec-WebSocket-Accept: ";

/// Whether one of the headers with this name lists `wanted`, ignoring case. `wanted` must be in
/// lower case.
#[inline]
pub(super) fn lists_token<const LEN: usize>(
    headers: &Headers<'_>,
    name: KnownName,
    wanted: &[u8; LEN],
) -> bool {
    debug_assert!(wanted.iter().all(u8::is_ascii_lowercase));
    // Usually there is one header with one element. Setting this bit turns an upper-case letter
    // into lower case, and no other byte becomes a letter by it.
    let is_it = |value: &[u8; LEN]| {
        value.iter().zip(wanted).fold(true, |all, (byte, other)| all & (byte | 0x20 == *other))
    };
    headers.get(name).and_then(|value| value.try_into().ok()).is_some_and(is_it)
        || is_among(headers, name, wanted)
}

#[inline(never)]
fn is_among(headers: &Headers<'_>, name: KnownName, wanted: &[u8]) -> bool {
    headers.all(name).flat_map(elements).any(|element| element.eq_ignore_ascii_case(wanted))
}

/// RFC 6455 section 4.1, item 10: the header, if present, has at least one element; each is a
/// token, and all are different.
fn check_protocols(headers: &Headers<'_>) -> Result<(), Rejection> {
    if headers.get(const { KnownName::of("Sec-WebSocket-Protocol") }).is_none() {
        return Ok(());
    }
    let mut seen = [&[][..]; PROTOCOLS_MAX];
    let mut count = 0;
    for value in headers.all(const { KnownName::of("Sec-WebSocket-Protocol") }) {
        let before = count;
        for element in elements(value) {
            if count == PROTOCOLS_MAX || !is_token(element) || seen[..count].contains(&element) {
                return Err(Rejection::Protocols);
            }
            seen[count] = element;
            count += 1;
        }
        if count == before {
            return Err(Rejection::Protocols);
        }
    }
    Ok(())
}
