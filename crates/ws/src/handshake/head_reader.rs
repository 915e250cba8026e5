//! Heads that arrive in pieces.

use alloc::vec::Vec;
use core::fmt;

use super::client::HandshakeError;
use super::head::{HeadError, HeadLimits, HeadScanner};
use super::rejection::Rejection;
use super::request::Request;
use super::response::Response;

/// Collects a head from pieces of any size and examines each byte once. It rejects wrong line ends
/// and heads that are too long at once. It parses the lines when the head is complete.
///
/// A head that arrives whole is not copied. Otherwise the reader buffers at most `head_bytes_max`
/// bytes. The caller must limit the time.
///
/// ```
/// use windlass_ws::handshake::{HeadLimits, HeadReader};
///
/// let mut reader = HeadReader::new(HeadLimits::DEFAULT);
/// assert!(reader.request(b"GET / HTTP/1.1\r\nHo")?.is_none());
/// let more = b"st: a\r\n\r\nwhat follows";
/// let (request, used) = reader.request(more)?.unwrap();
/// assert_eq!(request.header("host"), Some("a"));
/// assert_eq!(more[used..], *b"what follows");
/// # Ok::<(), windlass_ws::handshake::Rejection>(())
/// ```
pub struct HeadReader {
    limits: HeadLimits,
    scanner: HeadScanner,
    /// The received bytes of an incomplete head.
    buffer: Vec<u8>,
    /// The head was complete. The next byte starts another head.
    is_done: bool,
}

impl HeadReader {
    /// A new reader. It has allocated nothing.
    #[must_use]
    pub const fn new(limits: HeadLimits) -> Self {
        Self { limits, scanner: HeadScanner::new(), buffer: Vec::new(), is_done: false }
    }

    /// How many bytes of an incomplete head have arrived.
    #[must_use]
    pub fn buffered(&self) -> usize {
        if self.is_done { 0 } else { self.buffer.len() }
    }

    /// Takes the next bytes of a request. Returns the request, and how many of these bytes belong
    /// to its head; the following bytes are the caller's. `None` means that all bytes were taken
    /// and more are needed.
    ///
    /// After a request the reader is ready for the next one.
    ///
    /// # Errors
    ///
    /// The same as [`Request::parse`]. The reader cannot be used again.
    pub fn request<'a>(
        &'a mut self,
        input: &'a [u8],
    ) -> Result<Option<(Request<'a>, usize)>, Rejection> {
        let limits = self.limits;
        match self.head(input)? {
            Some((head, used)) => Ok(Some((Request::from_head(head, &limits)?, used))),
            None => Ok(None),
        }
    }

    /// Takes the next bytes of a response, like [`request`](Self::request).
    /// [`ClientRequest::check`](super::ClientRequest::check) says whether it accepts the request.
    ///
    /// # Errors
    ///
    /// The same as [`Response::parse`]. The reader cannot be used again.
    pub fn response<'a>(
        &'a mut self,
        input: &'a [u8],
    ) -> Result<Option<(Response<'a>, usize)>, HandshakeError> {
        match self.head(input)? {
            Some((head, used)) => Ok(Some((Response::from_head(head)?, used))),
            None => Ok(None),
        }
    }

    fn head<'a>(&'a mut self, input: &'a [u8]) -> Result<Option<(&'a [u8], usize)>, HeadError> {
        if self.is_done {
            self.scanner = HeadScanner::new();
            self.buffer.clear();
            self.is_done = false;
        }
        let found = self.scanner.scan(input, &self.limits)?;
        self.is_done = found.is_some();
        match found {
            Some(used) if self.buffer.is_empty() => Ok(Some((&input[..used], used))),
            Some(used) => {
                self.buffer.extend_from_slice(&input[..used]);
                Ok(Some((&self.buffer, used)))
            }
            None => {
                self.buffer.extend_from_slice(input);
                Ok(None)
            }
        }
    }
}

impl fmt::Debug for HeadReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeadReader")
            .field("limits", &self.limits)
            .field("buffered", &self.buffered())
            .finish_non_exhaustive()
    }
}
