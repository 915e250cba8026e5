//! The HTTP side of a connection: the request, and the responses in a stream of bytes.
//!
//! 1. All requests are the same GET. Up to `--depth` of them are in flight (pipelining).
//! 2. A head is bounded in bytes and in fields. Heads with status 1xx are skipped, up to
//!    `--informational-max` of them before a response.
//! 3. A body ends by Content-Length, or it is chunked (RFC 9112 section 6). A body that ends with
//!    the connection cannot be told from one that was cut off, so it is a fault.
//! 4. Only a status 2xx is a correct answer. Others are counted by their number.
//! 5. A server may end a connection between two responses, announced or not (RFC 9112 section 9.3).
//!    The requests without a response are then sent again on another connection.

use httparse::{EMPTY_HEADER, Header, ParserConfig, Status};

use super::{
    exchange::Exchange,
    fault::{Fault, FaultKind},
    header::RequestHeader,
    target::Resource,
    tls,
};

/// Maximum length of a head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximum number of a head's fields.
const FIELDS_MAX: usize = 100;
/// Maximum length of a line of chunked coding: a size with extensions, or a trailer field.
const LINE_BYTES_MAX: usize = 8 << 10;
/// Maximum number of lines in a trailer.
const TRAILER_LINES_MAX: usize = FIELDS_MAX;

/// The name of this program in requests.
const USER_AGENT: &str = concat!("windlass/", env!("CARGO_PKG_VERSION"));

/// Returns the headers of each request, with those that have a default.
pub(crate) fn with_defaults(headers: &[RequestHeader]) -> impl Iterator<Item = (&str, &str)> {
    let defaults = [("User-Agent", USER_AGENT), ("Accept", "*/*")];
    let is_missing = move |(name, _): &(&str, &str)| !headers.iter().any(|header| header.is(name));
    let given = headers.iter().map(|header| (header.name.as_str(), header.value.as_str()));
    defaults.into_iter().filter(is_missing).chain(given)
}

/// Checks the length of a body. Only that of a correct answer counts.
///
/// # Errors
///
/// The fault, if it is another one than `--body-size`.
pub(crate) fn check_body(
    due: u64,
    status: u16,
    bytes: u64,
    expected: Option<u64>,
) -> Result<(), Fault> {
    let is_good = (200..300).contains(&status);
    let Some(expected) = expected.filter(|&size| is_good && size != bytes) else { return Ok(()) };
    Err(Fault::new(
        FaultKind::WrongContent,
        format_args!(
            "the body of response {due} has {bytes} bytes instead of {expected} (--body-size)"
        ),
    ))
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct HttpSetup {
    /// The request, of which every connection sends copies.
    pub(crate) request: Vec<u8>,
    /// The length that every body must have.
    body_size: Option<u64>,
    /// Maximum number of heads with status 1xx before a response.
    informational_max: u32,
}

impl HttpSetup {
    pub(crate) fn new(
        resource: &Resource,
        headers: &[RequestHeader],
        body_size: Option<u64>,
        informational_max: u32,
    ) -> Self {
        let Resource { host, path } = resource;
        let mut request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n");
        for (name, value) in with_defaults(headers) {
            request += &format!("{name}: {value}\r\n");
        }
        request += "\r\n";
        Self { request: request.into_bytes(), body_size, informational_max }
    }
}

/// The responses of one connection.
#[derive(Debug, Default)]
pub(crate) struct Responses {
    part: Part,
    /// An incomplete head or line.
    partial: Vec<u8>,
    /// The response that is being received.
    status: u16,
    body_bytes: u64,
    /// Number of heads with status 1xx since the last response.
    informational: u32,
    /// Number of complete responses.
    complete: u64,
    /// The server has announced that it closes the connection after this response.
    is_last: bool,
}

/// What is expected next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Head,
    /// So many bytes of a body with a length.
    Body(u64),
    ChunkSize,
    /// So many bytes of a chunk.
    Chunk(u64),
    /// The line break after a chunk.
    ChunkEnd,
    /// Lines up to an empty one; so many have been received.
    Trailer(usize),
}

/// The framing of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyFraming {
    Length(u64),
    Chunked,
}

impl Responses {
    /// Handles a received piece: notes every response that is complete.
    ///
    /// # Errors
    ///
    /// The fault, if the bytes are no response to a request, or not the expected one.
    #[inline]
    pub(crate) fn read(
        &mut self,
        mut input: &[u8],
        setup: &HttpSetup,
        exchange: &mut Exchange<'_>,
    ) -> Result<(), Fault> {
        while !input.is_empty() && !self.has_ended() {
            exchange.expect_answer(input.len())?;
            let used = self.take(input, setup, exchange)?;
            input = &input[used..];
            if self.is_complete() {
                self.complete(setup, exchange)?;
            }
        }
        Ok(())
    }

    /// Returns whether the last response is complete, by the server's own announcement. The server
    /// does not answer further requests.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_last && self.status == 0
    }

    /// Returns whether nothing of a response was received that is not complete.
    pub(crate) fn is_between(&self) -> bool {
        self.status == 0 && self.partial.is_empty() && self.informational == 0
    }

    /// Number of complete responses.
    pub(crate) fn complete_count(&self) -> u64 {
        self.complete
    }

    /// The body of the response has ended, and nothing of the next response was received.
    fn is_complete(&self) -> bool {
        self.status != 0 && self.part == Part::Head
    }

    fn complete(&mut self, setup: &HttpSetup, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let (status, bytes) = (std::mem::take(&mut self.status), self.body_bytes);
        check_body(exchange.due(), status, bytes, setup.body_size)?;
        exchange.response(status, bytes);
        self.informational = 0;
        self.complete += 1;
        Ok(())
    }

    /// Takes the next part of a response. Returns the number of bytes used, at least one.
    fn take(
        &mut self,
        input: &[u8],
        setup: &HttpSetup,
        exchange: &Exchange<'_>,
    ) -> Result<usize, Fault> {
        match self.part {
            Part::Head => self.head(input, setup, exchange),
            Part::Body(left) => {
                let (used, left) = self.body(input, left);
                self.part = if left == 0 { Part::Head } else { Part::Body(left) };
                Ok(used)
            }
            Part::Chunk(left) => {
                let (used, left) = self.body(input, left);
                self.part = if left == 0 { Part::ChunkEnd } else { Part::Chunk(left) };
                Ok(used)
            }
            Part::ChunkSize | Part::ChunkEnd | Part::Trailer(_) => self.line(input, exchange),
        }
    }

    /// Takes bytes of a body. Returns how many, and how many are left.
    fn body(&mut self, input: &[u8], left: u64) -> (usize, u64) {
        let used = usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
        self.body_bytes += used as u64;
        (used, left - used as u64)
    }

    fn head(
        &mut self,
        input: &[u8],
        setup: &HttpSetup,
        exchange: &Exchange<'_>,
    ) -> Result<usize, Fault> {
        if self.partial.is_empty()
            && let Some(used) = self.parse_head(input, setup, exchange)?
        {
            return Ok(used);
        }
        // Only as much as a head may have, so that no large body is copied.
        let before = self.partial.len();
        let taken = input.len().min(HEAD_BYTES_MAX - before);
        self.partial.extend_from_slice(&input[..taken]);
        let partial = std::mem::take(&mut self.partial);
        match self.parse_head(&partial, setup, exchange)? {
            Some(used) => Ok(used - before),
            None if partial.len() == HEAD_BYTES_MAX => Err(protocol(
                exchange,
                format_args!("has a head of more than {HEAD_BYTES_MAX} bytes"),
            )),
            None => {
                self.partial = partial;
                Ok(taken)
            }
        }
    }

    /// Parses a head. Returns its length if it is complete.
    fn parse_head(
        &mut self,
        bytes: &[u8],
        setup: &HttpSetup,
        exchange: &Exchange<'_>,
    ) -> Result<Option<usize>, Fault> {
        let mut fields = [EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let used = match ParserConfig::default().parse_response(&mut response, bytes) {
            Ok(Status::Partial) => return Ok(None),
            Ok(Status::Complete(used)) if used <= HEAD_BYTES_MAX => used,
            Ok(Status::Complete(_)) => {
                let text = format_args!("has a head of more than {HEAD_BYTES_MAX} bytes");
                return Err(protocol(exchange, text));
            }
            Err(httparse::Error::TooManyHeaders) => {
                let text = format_args!("has more than {FIELDS_MAX} header fields");
                return Err(protocol(exchange, text));
            }
            Err(_) if tls::is_answer_to_plain_http(bytes) => return Err(speaks_tls()),
            Err(error) => {
                return Err(protocol(exchange, format_args!("is no HTTP/1.1: {error}")));
            }
        };
        let status = response.code.unwrap_or(0);
        match status {
            101 => return Err(protocol(exchange, format_args!("switches the protocol"))),
            // The body mostly comes with the head.
            400 if tls::is_answer_to_plain_http(bytes) => return Err(speaks_tls()),
            100..200 if self.informational == setup.informational_max => {
                let max = setup.informational_max;
                let text = format_args!(
                    "follows more than {max} informational ones (1xx); --informational-max sets \
                     the limit"
                );
                return Err(protocol(exchange, text));
            }
            100..200 => {
                self.informational += 1;
                return Ok(Some(used));
            }
            200..1000 => {}
            _ => return Err(protocol(exchange, format_args!("has the status {status}"))),
        }
        let framing = if matches!(status, 204 | 304) {
            BodyFraming::Length(0)
        } else {
            framing(response.headers).map_err(|text| protocol(exchange, text))?
        };
        self.status = status;
        self.body_bytes = 0;
        self.is_last = is_last(response.version, response.headers);
        self.part = match framing {
            BodyFraming::Length(0) => Part::Head,
            BodyFraming::Length(length) => Part::Body(length),
            BodyFraming::Chunked => Part::ChunkSize,
        };
        Ok(Some(used))
    }

    /// Takes a line of chunked coding, or a part of it.
    fn line(&mut self, input: &[u8], exchange: &Exchange<'_>) -> Result<usize, Fault> {
        let end = input.iter().position(|&byte| byte == b'\n');
        let used = end.map_or(input.len(), |end| end + 1);
        if self.partial.len() + used > LINE_BYTES_MAX {
            let text = format_args!("has a line of chunks of more than {LINE_BYTES_MAX} bytes");
            return Err(protocol(exchange, text));
        }
        self.partial.extend_from_slice(&input[..used]);
        if end.is_none() {
            return Ok(used);
        }
        let Some(line) = self.partial.strip_suffix(b"\r\n") else {
            return Err(protocol(exchange, format_args!("has a line of chunks without CR LF")));
        };
        self.part = match self.part {
            Part::ChunkEnd if line.is_empty() => Part::ChunkSize,
            Part::ChunkEnd => {
                return Err(protocol(exchange, format_args!("has a chunk longer than its size")));
            }
            Part::Trailer(_) if line.is_empty() => Part::Head,
            Part::Trailer(lines) if lines < TRAILER_LINES_MAX => Part::Trailer(lines + 1),
            Part::Trailer(_) => {
                let text = format_args!("has more than {TRAILER_LINES_MAX} trailer fields");
                return Err(protocol(exchange, text));
            }
            _ => match chunk_size(line) {
                Some(0) => Part::Trailer(0),
                Some(size) => Part::Chunk(size),
                None => {
                    return Err(protocol(exchange, format_args!("has a chunk without a size")));
                }
            },
        };
        self.partial.clear();
        Ok(used)
    }
}

/// A violation of HTTP/1.1 by the response that is due.
#[cold]
fn protocol(exchange: &Exchange<'_>, text: impl std::fmt::Display) -> Fault {
    Fault::new(FaultKind::Protocol, format_args!("response {} {text}", exchange.due()))
}

/// The fault of a server that has TLS, although the URL has none.
#[cold]
fn speaks_tls() -> Fault {
    Fault::new(FaultKind::Protocol, "the server speaks TLS on this port: use https://")
}

/// Returns the framing of a body (RFC 9112 section 6.3), or what is wrong with it.
fn framing(fields: &[Header<'_>]) -> Result<BodyFraming, &'static str> {
    let (mut length, mut coding) = (None, None);
    for field in fields {
        if field.name.eq_ignore_ascii_case("content-length") {
            let value = decimal(field.value).ok_or("has a malformed Content-Length")?;
            if length.replace(value).is_some_and(|before| before != value) {
                return Err("has two different Content-Lengths");
            }
        } else if field.name.eq_ignore_ascii_case("transfer-encoding")
            && coding.replace(field.value).is_some()
        {
            return Err("has two fields Transfer-Encoding");
        }
    }
    match (length, coding) {
        (Some(length), None) => Ok(BodyFraming::Length(length)),
        (None, Some(coding)) if coding.trim_ascii().eq_ignore_ascii_case(b"chunked") => {
            Ok(BodyFraming::Chunked)
        }
        (None, Some(_)) => Err("has a Transfer-Encoding other than `chunked`"),
        (Some(_), Some(_)) => Err("has both Content-Length and Transfer-Encoding"),
        (None, None) => Err("has neither Content-Length nor `Transfer-Encoding: chunked`, so its \
                             end cannot be told from a lost connection"),
    }
}

/// Returns whether the server closes the connection after this response (RFC 9112 section 9.3).
fn is_last(version: Option<u8>, fields: &[Header<'_>]) -> bool {
    let mut options = fields
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case("connection"))
        .flat_map(|field| field.value.split(|&byte| byte == b','))
        .map(<[u8]>::trim_ascii);
    match version {
        Some(1) => options.any(|option| option.eq_ignore_ascii_case(b"close")),
        _ => !options.any(|option| option.eq_ignore_ascii_case(b"keep-alive")),
    }
}

fn decimal(bytes: &[u8]) -> Option<u64> {
    let digits = bytes.trim_ascii();
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(digits).ok()?.parse().ok()).flatten()
}

/// Returns the size of a chunk, without its extensions.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|&byte| byte == b';').next().unwrap_or(line).trim_ascii();
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    let text = is_number.then(|| std::str::from_utf8(digits).ok()).flatten()?;
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
