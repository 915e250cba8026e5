//! A response other than 101: the start of its body, in bounds.

use windlass_ws::handshake::Response;

use super::error::ServerResponse;

/// The most bytes of a body that an error carries.
pub(super) const BODY_MAX: usize = 4096;

/// Reads the start of a body.
pub(super) struct BodyReader {
    pub(super) response: ServerResponse,
    framing: Framing,
}

/// How the end of the body is found (RFC 9112 section 6.3).
enum Framing {
    /// This many bytes are left.
    Length(u64),
    /// It ends with the connection.
    Close,
    Chunked(Chunk),
}

/// Where the next byte of a chunked body belongs (RFC 9112 section 7.1).
enum Chunk {
    Size {
        size: u64,
        is_extension: bool,
    },
    Data(u64),
    /// The line end behind the data: this many bytes.
    End(u8),
}

/// The status and headers of a response.
pub(super) fn head_of(response: &Response<'_>) -> ServerResponse {
    let headers = response.headers();
    let headers = headers.map(|header| (header.name.to_owned(), header.value.to_vec()));
    ServerResponse { status: response.status(), headers: headers.collect(), body: Vec::new() }
}

impl BodyReader {
    pub(super) fn new(response: &Response<'_>) -> Self {
        let head = head_of(response);
        let coding = head.header("Transfer-Encoding").unwrap_or_default();
        let framing = if matches!(head.status, 204 | 304) {
            Framing::Length(0)
        } else if coding.eq_ignore_ascii_case("chunked") {
            Framing::Chunked(Chunk::Size { size: 0, is_extension: false })
        } else {
            let length = head.header("Content-Length").and_then(|text| text.parse().ok());
            length.map_or(Framing::Close, Framing::Length)
        };
        Self { response: head, framing }
    }

    /// Takes the next bytes. Returns whether nothing more is wanted.
    pub(super) fn input(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() && !self.is_done() {
            bytes = match &mut self.framing {
                Framing::Close => {
                    self.response.body.extend_from_slice(bytes);
                    &[]
                }
                Framing::Length(left) | Framing::Chunked(Chunk::Data(left)) => {
                    let count =
                        usize::try_from(*left).map_or(bytes.len(), |it| it.min(bytes.len()));
                    self.response.body.extend_from_slice(&bytes[..count]);
                    *left -= count as u64;
                    if let Framing::Chunked(chunk @ Chunk::Data(0)) = &mut self.framing {
                        *chunk = Chunk::End(2);
                    }
                    &bytes[count..]
                }
                Framing::Chunked(chunk) => {
                    if !chunk.take(bytes[0]) {
                        // The end, or no chunk.
                        self.framing = Framing::Length(0);
                    }
                    &bytes[1..]
                }
            };
        }
        self.response.body.truncate(BODY_MAX);
        self.is_done()
    }

    pub(super) fn is_done(&self) -> bool {
        self.response.body.len() >= BODY_MAX || matches!(self.framing, Framing::Length(0))
    }
}

impl Chunk {
    /// Takes a byte between the data. Returns whether the body goes on.
    fn take(&mut self, byte: u8) -> bool {
        match self {
            Self::End(left) => {
                *left -= 1;
                if *left == 0 {
                    *self = Self::Size { size: 0, is_extension: false };
                }
            }
            Self::Size { size: 0, .. } if byte == b'\n' => return false,
            Self::Size { size, .. } if byte == b'\n' => *self = Self::Data(*size),
            Self::Size { is_extension: true, .. } => {}
            Self::Size { size, is_extension } => match char::from(byte).to_digit(16) {
                Some(digit) => *size = size.saturating_mul(16).saturating_add(digit.into()),
                None => *is_extension = true,
            },
            Self::Data(_) => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use windlass_ws::handshake::HeadLimits;

    use super::*;

    /// The body that is kept of a response whose body comes in these pieces, and whether it ended.
    fn read(headers: &str, pieces: &[&[u8]]) -> (Vec<u8>, bool) {
        let head = format!("HTTP/1.1 500 Oh\r\n{headers}\r\n");
        let (response, _) = Response::parse(head.as_bytes(), &HeadLimits::DEFAULT)
            .expect("a response")
            .expect("it is whole");
        let mut reader = BodyReader::new(&response);
        let is_done = pieces.iter().any(|piece| reader.input(piece)) || reader.is_done();
        (reader.response.body, is_done)
    }

    #[test]
    fn bodies_end_where_their_framing_says() {
        const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";
        let chunks = b"3\r\nabc\r\n0A;x=1\r\n0123456789\r\n0\r\n\r\n";
        let bytes: Vec<&[u8]> = chunks.chunks(1).collect();
        assert_eq!(read(CHUNKED, &[chunks]), (b"abc0123456789".to_vec(), true));
        assert_eq!(read(CHUNKED, &bytes), (b"abc0123456789".to_vec(), true));
        assert_eq!(read("Content-Length: 3\r\n", &[b"ab", b"cd"]), (b"abc".to_vec(), true));
        assert_eq!(read("Content-Length: 0\r\n", &[]), (Vec::new(), true));
        assert_eq!(read("", &[b"ab", b"cd"]), (b"abcd".to_vec(), false));
    }

    #[test]
    fn no_more_than_the_start_is_kept() {
        let long = vec![b'x'; 3 * BODY_MAX];
        for headers in ["", "Content-Length: 999999\r\n"] {
            let (body, is_done) = read(headers, &[&long]);
            assert!(is_done && body.len() == BODY_MAX);
        }
        let endless = b"ffffffffffffffffffffff\r\n";
        let (body, is_done) = read("Transfer-Encoding: chunked\r\n", &[endless, &long]);
        assert!(is_done && body.len() == BODY_MAX);
        let digits = vec![b'f'; 3 * BODY_MAX];
        assert_eq!(read("Transfer-Encoding: chunked\r\n", &[&digits]), (Vec::new(), false));
    }
}
