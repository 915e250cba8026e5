//! The server's side of an upgrade (RFC 6455 section 4.2).

use alloc::vec::Vec;
use core::fmt;

use super::extensions::Extensions;
use super::fields::{FieldError, Headers, Known, check_own, write_line};
#[cfg(feature = "deflate")]
use super::parts;
use super::rejection::Rejection;
use super::request::{Body, Request};
use super::syntax::{ascii, elements, is_token, trim};
use super::{PROTOCOLS_MAX, key};
#[cfg(feature = "deflate")]
use crate::deflate::{Agreement, DeflateConfig};

/// A request that asks for this protocol as it must, and can be accepted.
#[derive(Clone, Copy, Debug)]
pub struct Upgrade<'a> {
    request: Request<'a>,
    key: &'a [u8; key::KEY_LEN],
}

/// The subprotocols that a client offers, in its order of preference.
#[derive(Clone, Debug)]
pub struct Protocols<'a> {
    headers: Headers<'a>,
    /// What is left of the header at hand.
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

/// What a server answers with.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AcceptOptions<'a> {
    /// One of the subprotocols that the client offers, or none.
    pub protocol: Option<&'a str>,
    /// Answers offers of permessage-deflate, if it is there.
    #[cfg(feature = "deflate")]
    pub deflate: Option<&'a DeflateConfig>,
    /// Further headers. The handshake's own (Upgrade, Connection, Sec-WebSocket-*), and those that
    /// speak of a body, are refused.
    pub headers: &'a [(&'a str, &'a str)],
}

impl<'a> AcceptOptions<'a> {
    /// No subprotocol, no extension, no further headers.
    pub const DEFAULT: Self = Self {
        protocol: None,
        #[cfg(feature = "deflate")]
        deflate: None,
        headers: &[],
    };

    /// The same with a subprotocol.
    #[must_use]
    pub const fn protocol(self, protocol: Option<&'a str>) -> Self {
        Self { protocol, ..self }
    }

    /// The same with permessage-deflate.
    #[cfg(feature = "deflate")]
    #[must_use]
    pub const fn deflate(self, config: Option<&'a DeflateConfig>) -> Self {
        Self { deflate: config, ..self }
    }

    /// The same with other further headers.
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

/// What has been agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accepted {
    /// permessage-deflate, if the client has offered it and the server wants it.
    #[cfg(feature = "deflate")]
    pub deflate: Option<Agreement>,
}

/// Why nothing was answered: the answer would not have been one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcceptError {
    /// The subprotocol is none of those that the client offers.
    ProtocolNotOffered,
    /// A further header's name is no token.
    HeaderName,
    /// A further header's value has a control character.
    HeaderValue,
    /// A further header is one that the handshake writes, or speaks of a body.
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
            Self::HeaderName => "the name of a header is no token",
            Self::HeaderValue => "the value of a header has a control character",
            Self::ReservedHeader => "the header is the handshake's own",
        })
    }
}

impl core::error::Error for AcceptError {}

impl<'a> Upgrade<'a> {
    pub(super) fn check(request: &Request<'a>) -> Result<Self, Rejection> {
        let headers = &request.headers;
        request.check_is_get()?;
        if !lists(headers, const { Known::of("Upgrade") }, b"websocket") {
            return Err(Rejection::NotAnUpgrade);
        }
        if request.is_http_1_0() {
            return Err(Rejection::HttpVersion);
        }
        if !lists(headers, const { Known::of("Connection") }, b"upgrade") {
            return Err(Rejection::Connection);
        }
        if request.body() != Body::None {
            return Err(Rejection::UnexpectedBody);
        }
        if headers.get(const { Known::of("Sec-WebSocket-Version") }) != Some(b"13") {
            return Err(Rejection::WebSocketVersion);
        }
        let key = headers
            .get(const { Known::of("Sec-WebSocket-Key") })
            .and_then(key::checked)
            .ok_or(Rejection::Key)?;
        check_protocols(headers)?;
        let extensions = const { Known::of("Sec-WebSocket-Extensions") };
        for value in headers.get(extensions).into_iter().flat_map(|_| headers.all(extensions)) {
            if Extensions::new(value).any(|extension| extension.is_err()) {
                return Err(Rejection::Extensions);
            }
        }
        Ok(Self { request: *request, key })
    }

    /// The request that it is.
    #[must_use]
    pub const fn request(&self) -> &Request<'a> {
        &self.request
    }

    /// The subprotocols that the client offers, the one it likes best first. No two are the same.
    #[must_use]
    pub const fn protocols(&self) -> Protocols<'a> {
        Protocols { headers: self.request.headers, value: &[] }
    }

    /// The origin of the page that opens the connection. Browsers always send it, and a server that
    /// trusts cookies must look at it (RFC 6455 section 10.2).
    #[must_use]
    pub fn origin(&self) -> Option<&'a str> {
        self.request.header("Origin")
    }

    /// Appends the response with which the connection starts.
    ///
    /// # Errors
    ///
    /// [`AcceptError`]; nothing was appended then.
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
        let agreement = parts::answer_offers(
            self.request.headers.all(const { Known::of("Sec-WebSocket-Extensions") }),
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

/// How every answer starts.
fn start(accept: &[u8; key::ACCEPT_LEN]) -> [u8; START.len() + key::ACCEPT_LEN + 2] {
    let mut start = [b'\n'; START.len() + key::ACCEPT_LEN + 2];
    start[..START.len()].copy_from_slice(START);
    start[START.len()..][..key::ACCEPT_LEN].copy_from_slice(accept);
    start[START.len() + key::ACCEPT_LEN] = b'\r';
    start
}

const START: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ";

/// Whether one of the headers of this name lists `wanted`, which is in small letters, whatever the
/// case of its letters.
#[inline]
pub(super) fn lists<const LEN: usize>(
    headers: &Headers<'_>,
    name: Known,
    wanted: &[u8; LEN],
) -> bool {
    debug_assert!(wanted.iter().all(u8::is_ascii_lowercase));
    // Mostly there is one header with one element. The bit that is set here is what sets a small
    // letter apart from a large one, and no other byte becomes one by it.
    let is_it = |value: &[u8; LEN]| {
        value.iter().zip(wanted).fold(true, |all, (byte, other)| all & (byte | 0x20 == *other))
    };
    headers.get(name).and_then(|value| value.try_into().ok()).is_some_and(is_it)
        || is_among(headers, name, wanted)
}

#[inline(never)]
fn is_among(headers: &Headers<'_>, name: Known, wanted: &[u8]) -> bool {
    headers.all(name).flat_map(elements).any(|element| element.eq_ignore_ascii_case(wanted))
}

/// RFC 6455 section 4.1, item 10: at least one where the header is there, each a token, no two the
/// same.
fn check_protocols(headers: &Headers<'_>) -> Result<(), Rejection> {
    if headers.get(const { Known::of("Sec-WebSocket-Protocol") }).is_none() {
        return Ok(());
    }
    let mut seen = [&[][..]; PROTOCOLS_MAX];
    let mut count = 0;
    for value in headers.all(const { Known::of("Sec-WebSocket-Protocol") }) {
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
