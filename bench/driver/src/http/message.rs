//! The messages of the suite `http`: those of the mock in the benchmark of corosio, by their
//! lengths.

use std::io;

/// The request, 62 bytes.
pub const REQUEST: &[u8] =
    b"GET /api HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n";

/// The response of the mock, 52 bytes.
pub const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, World!";

/// The body of every response.
pub const BODY: &str = "Hello, World!";

/// The end of a head.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// The name of the header with the length of the body.
const CONTENT_LENGTH: &[u8] = b"content-length:";

/// Length of a receive buffer. It is longer than any message, so a read that is not full tells that
/// the socket is empty.
const ROOM: usize = 256;

/// The receive buffer of a connection's end.
#[derive(Debug)]
pub struct Received {
    room: [u8; ROOM],
    filled: usize,
}

impl Default for Received {
    fn default() -> Self {
        Self { room: [0; ROOM], filled: 0 }
    }
}

impl Received {
    /// The part of the buffer that is free.
    #[inline]
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.room[self.filled..]
    }

    /// Adds `count` bytes that were read into the [`room`](Self::room), and takes a request out if
    /// it is complete. Returns whether it is.
    ///
    /// # Errors
    ///
    /// If the buffer is full without a whole head.
    #[inline]
    pub fn take_request(&mut self, count: usize) -> io::Result<bool> {
        self.filled += count;
        match head_length(&self.room[..self.filled]) {
            Some(length) => self.take(length),
            None => self.more(),
        }
    }

    /// The same for a response. Its status and its body are compared with the expected ones.
    ///
    /// # Errors
    ///
    /// If it is another response, or does not fit.
    #[inline]
    pub fn take_response(&mut self, count: usize) -> io::Result<bool> {
        self.filled += count;
        let bytes = &self.room[..self.filled];
        let Some(head) = head_length(bytes) else { return self.more() };
        let length = body_length(&bytes[..head]).ok_or_else(|| wrong("a head has no length"))?;
        if length != BODY.len() || !bytes.starts_with(b"HTTP/1.1 200 ") {
            return Err(wrong("another response came"));
        }
        let Some(body) = bytes.get(head..head + length) else { return self.more() };
        if body != BODY.as_bytes() {
            return Err(wrong("another body came"));
        }
        self.take(head + length)
    }

    #[inline]
    fn take(&mut self, length: usize) -> io::Result<bool> {
        self.room.copy_within(length..self.filled, 0);
        self.filled -= length;
        Ok(true)
    }

    fn more(&self) -> io::Result<bool> {
        if self.filled < ROOM { Ok(false) } else { Err(wrong("a message is too long")) }
    }
}

fn wrong(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Returns the length of the head with its empty line, if that has arrived.
#[inline]
fn head_length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(HEAD_END.len()).position(|window| window == HEAD_END)?;
    Some(end + HEAD_END.len())
}

/// Returns the value of Content-Length.
#[inline]
fn body_length(head: &[u8]) -> Option<usize> {
    let mut lines = head.split(|&byte| byte == b'\n');
    let value = lines.find_map(|line| {
        let (name, value) = line.split_at_checked(CONTENT_LENGTH.len())?;
        name.eq_ignore_ascii_case(CONTENT_LENGTH).then_some(value)
    })?;
    let digits = value.trim_ascii();
    let digit = |length: usize, byte: &u8| match byte {
        b'0'..=b'9' => length.checked_mul(10)?.checked_add(usize::from(byte - b'0')),
        _ => None,
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, digit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes the bytes in pieces of this length, and returns how often a message was complete.
    fn taken(
        bytes: &[u8],
        piece: usize,
        take: impl Fn(&mut Received, usize) -> io::Result<bool>,
    ) -> io::Result<usize> {
        let (mut received, mut complete) = (Received::default(), 0);
        for piece in bytes.chunks(piece) {
            received.room()[..piece.len()].copy_from_slice(piece);
            complete += usize::from(take(&mut received, piece.len())?);
        }
        Ok(complete)
    }

    #[test]
    fn the_messages_have_the_lengths_of_the_mock() {
        assert_eq!((REQUEST.len(), RESPONSE.len()), (62, 52));
        assert!(RESPONSE.ends_with(BODY.as_bytes()));
    }

    #[test]
    fn messages_are_complete_however_they_are_cut() {
        for piece in 1..=RESPONSE.len() {
            let both = [REQUEST, REQUEST].concat();
            assert_eq!(taken(&both, piece, Received::take_request).unwrap(), 2, "{piece}");
            let both = [RESPONSE, RESPONSE].concat();
            assert_eq!(taken(&both, piece, Received::take_response).unwrap(), 2, "{piece}");
        }
    }

    #[test]
    fn another_response_is_an_error() {
        for (from, to) in
            [("200", "500"), ("World", "Earth"), ("13", "12"), ("13", "x"), ("C", "D")]
        {
            let text = std::str::from_utf8(RESPONSE).unwrap().replacen(from, to, 1);
            assert!(taken(text.as_bytes(), 52, Received::take_response).is_err(), "{text}");
        }
        assert!(taken(&[b'a'; ROOM], 64, Received::take_request).is_err(), "it has no end");
    }
}
