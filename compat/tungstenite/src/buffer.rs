//! A buffer between a stream and a parser.

use std::io::{self, Cursor, Read};

use bytes::Buf;

/// Bytes that were read from a stream and are not yet parsed. One read takes at most `CHUNK_SIZE`.
#[derive(Debug)]
pub struct ReadBuffer<const CHUNK_SIZE: usize> {
    /// Parsed up to its position.
    storage: Cursor<Vec<u8>>,
}

impl<const CHUNK_SIZE: usize> ReadBuffer<CHUNK_SIZE> {
    /// An empty buffer with room for one read.
    pub fn new() -> Self {
        Self::with_capacity(CHUNK_SIZE)
    }

    /// An empty buffer with room for so many bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self::from_partially_read(Vec::with_capacity(capacity))
    }

    /// A buffer with bytes that were read before.
    pub fn from_partially_read(part: Vec<u8>) -> Self {
        Self { storage: Cursor::new(part) }
    }

    /// All bytes, and how far they are parsed.
    pub fn as_cursor(&self) -> &Cursor<Vec<u8>> {
        &self.storage
    }

    /// All bytes, and how far they are parsed.
    pub fn as_cursor_mut(&mut self) -> &mut Cursor<Vec<u8>> {
        &mut self.storage
    }

    /// The bytes that are not parsed.
    pub fn into_vec(mut self) -> Vec<u8> {
        self.discard_parsed();
        self.storage.into_inner()
    }

    /// Reads once, and returns how many bytes. Discards those that are parsed.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn read_from<S: Read>(&mut self, stream: &mut S) -> io::Result<usize> {
        self.discard_parsed();
        let bytes = self.storage.get_mut();
        let start = bytes.len();
        bytes.resize(start + CHUNK_SIZE, 0);
        let result = stream.read(&mut bytes[start..]);
        let count = *result.as_ref().unwrap_or(&0);
        bytes.truncate(start + count.min(CHUNK_SIZE));
        result
    }

    fn discard_parsed(&mut self) {
        let parsed = usize::try_from(self.storage.position()).unwrap_or(usize::MAX);
        let bytes = self.storage.get_mut();
        bytes.drain(..parsed.min(bytes.len()));
        self.storage.set_position(0);
    }
}

impl<const CHUNK_SIZE: usize> Buf for ReadBuffer<CHUNK_SIZE> {
    fn remaining(&self) -> usize {
        self.storage.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.storage.chunk()
    }

    fn advance(&mut self, cnt: usize) {
        self.storage.advance(cnt);
    }
}

impl<const CHUNK_SIZE: usize> Default for ReadBuffer<CHUNK_SIZE> {
    fn default() -> Self {
        Self::new()
    }
}
