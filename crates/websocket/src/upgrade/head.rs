//! Heads of hyper's requests and responses, as the bytes that the handshake of this crate reads and
//! writes. So one code checks all handshakes.
//!
//! A request of HTTP/2 becomes the request of HTTP/1.1 that means the same, with a fixed key.

use hyper::{
    HeaderMap, Method, Uri, Version,
    header::{self, HeaderName, HeaderValue},
};
use windlass_ws::handshake::{HandshakeError, HeadLimits, Response};

/// Base64 of 16 zeros: HTTP/2 has no key (RFC 8441 section 5).
const NO_KEY: &[u8] = b"AAAAAAAAAAAAAAAAAAAAAA==";

/// The headers that HTTP/2 has not, or in another place.
const NOT_IN_HTTP2: [HeaderName; 5] = [
    header::HOST,
    header::UPGRADE,
    header::CONNECTION,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_ACCEPT,
];

/// Limits for heads that were accepted before, or made here.
const NO_LIMITS: HeadLimits = {
    let mut limits = HeadLimits::DEFAULT;
    (limits.head_bytes_max, limits.headers_max, limits.target_bytes_max) =
        (1 << 24, 1 << 16, 1 << 24);
    limits
};

pub(super) fn is_http1_only(name: &HeaderName) -> bool {
    NOT_IN_HTTP2.contains(name)
}

fn write_headers(headers: &HeaderMap, is_http2: bool, out: &mut Vec<u8>) {
    for (name, value) in headers {
        if !(is_http2 && is_http1_only(name)) {
            write_line(name.as_str(), value.as_bytes(), out);
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn write_line(name: &str, value: &[u8], out: &mut Vec<u8>) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// The head of a request of HTTP/1.
pub(super) fn http1_request(
    method: &Method,
    uri: &Uri,
    version: Version,
    headers: &HeaderMap,
) -> Vec<u8> {
    let minor = if version == Version::HTTP_11 { 1 } else { 0 };
    let mut out = format!("{method} {uri} HTTP/1.{minor}\r\n").into_bytes();
    write_headers(headers, false, &mut out);
    out
}

/// The head of an extended CONNECT of HTTP/2 for a WebSocket. Another request of HTTP/2 becomes one
/// that is no upgrade.
pub(super) fn http2_request(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    is_websocket: bool,
) -> Vec<u8> {
    let method = if is_websocket { &Method::GET } else { method };
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let path = match uri.path_and_query() {
        Some(path) => path.as_str(),
        None if *method == Method::CONNECT => host,
        None => "/",
    };
    let mut out = format!("{method} {path} HTTP/1.1\r\n").into_bytes();
    // A client may send Host in the place of :authority (RFC 9113 section 8.3.1).
    match headers.get(header::HOST).filter(|_| host.is_empty()) {
        Some(host) => write_line("Host", host.as_bytes(), &mut out),
        None => write_line("Host", host.as_bytes(), &mut out),
    }
    if is_websocket {
        out.extend_from_slice(b"Upgrade: websocket\r\nConnection: Upgrade\r\n");
        write_line("Sec-WebSocket-Key", NO_KEY, &mut out);
    }
    write_headers(headers, true, &mut out);
    out
}

/// The head of a response to a client. That of HTTP/2 becomes the one of HTTP/1.1 with this
/// `Sec-WebSocket-Accept`.
pub(super) fn response(status: u16, headers: &HeaderMap, http2_accept: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    match http2_accept {
        Some(accept) if (200..300).contains(&status) => {
            out.extend_from_slice(
                b"HTTP/1.1 101 \r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
            );
            write_line("Sec-WebSocket-Accept", accept.as_bytes(), &mut out);
        }
        _ => out.extend_from_slice(format!("HTTP/1.1 {status} \r\n").as_bytes()),
    }
    write_headers(headers, http2_accept.is_some(), &mut out);
    out
}

/// Reads a response that is whole.
pub(super) fn parse_response(bytes: &[u8]) -> Result<Response<'_>, HandshakeError> {
    let parsed = Response::parse(bytes, &NO_LIMITS)?;
    parsed.map(|(response, _)| response).ok_or(HandshakeError::Malformed)
}

/// The status and the headers of an answer that the handshake has written, for hyper. hyper keeps
/// the connection after a refusal, and knows the length of the body.
pub(super) fn answer(bytes: &[u8], is_http2: bool) -> (u16, HeaderMap) {
    let mut headers = HeaderMap::new();
    let Ok(response) = parse_response(bytes) else { return (500, headers) };
    let status = match response.status() {
        101 if is_http2 => 200,
        // It would need an Upgrade, which HTTP/2 has not.
        426 if is_http2 => 400,
        status => status,
    };
    for line in response.headers() {
        let (Ok(name), Ok(mut value)) =
            (HeaderName::try_from(line.name), HeaderValue::from_bytes(line.value))
        else {
            continue;
        };
        if name == header::CONTENT_LENGTH || (is_http2 && is_http1_only(&name)) {
            continue;
        }
        if name == header::CONNECTION {
            if !line.value.starts_with(b"Upgrade") {
                continue;
            }
            value = HeaderValue::from_static("Upgrade");
        }
        if name == header::ALLOW && is_http2 {
            value = HeaderValue::from_static("CONNECT");
        }
        headers.append(name, value);
    }
    (status, headers)
}
