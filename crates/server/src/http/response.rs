//! Responses, appended to the output piece by piece.

use std::time::SystemTime;

use windlass_ws::handshake::Rejection;

use super::date::{write_date, write_value};

/// Appends the status line and the Date.
pub(crate) fn start(status: u16, now: SystemTime, out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 ");
    decimal(usize::from(status), out);
    out.push(b' ');
    out.extend_from_slice(phrase(status).as_bytes());
    out.extend_from_slice(b"\r\n");
    write_date(now, out);
}

/// Appends `Connection: close` if `is_last` is set, the end of the head, and the body.
pub(crate) fn finish(is_last: bool, body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(if is_last { b"Connection: close\r\n\r\n" } else { b"\r\n" });
    out.extend_from_slice(body);
}

/// Appends the handshake's response to a rejected request, with the Date.
pub(crate) fn reject(rejection: Rejection, now: SystemTime, out: &mut Vec<u8>) {
    let mut date = Vec::new();
    write_value(now, &mut date);
    let headers =
        core::str::from_utf8(&date).ok().filter(|date| !date.is_empty()).map(|date| ("Date", date));
    let written = rejection.write_with_headers(headers.as_slice(), out);
    debug_assert!(written.is_ok(), "a date can be sent");
}

/// Removes the body from the response that begins at `start`. The response to HEAD ends with its
/// head, whatever the head says (RFC 9112 section 6.3).
pub(crate) fn without_body(out: &mut Vec<u8>, start: usize) {
    let end = out[start..]
        .windows(4)
        .position(|end| end == b"\r\n\r\n")
        .map_or(out.len(), |end| start + end + 4);
    out.truncate(end);
}

/// Appends the headers of a short text, which gets a line ending.
pub(super) fn text_headers(len: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(
        b"Content-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n\
          Content-Length: ",
    );
    decimal(len + 1, out);
    out.extend_from_slice(b"\r\n");
}

/// Appends a number in decimal.
pub(super) fn decimal(number: usize, out: &mut Vec<u8>) {
    if number >= 10 {
        decimal(number / 10, out);
    }
    out.push(b'0' + (number % 10) as u8);
}

/// Returns the reason phrase, which may be empty (RFC 9112 section 4).
pub(super) const fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        413 => "Content Too Large",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "",
    }
}
