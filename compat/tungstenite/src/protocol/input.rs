//! What was read and is not yet processed.

use std::{fmt, io, io::Read};

use windlass_ws::HEADER_LEN_MAX;

use crate::shared;

/// Received bytes. It holds a buffer only while they are not processed.
#[derive(Default)]
pub(super) struct Input {
    buffer: Option<Box<[u8]>>,
    /// The bytes from `at` to `end` of the buffer are to be processed.
    at: usize,
    end: usize,
}

impl Input {
    /// Bytes that were read before.
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        let buffer = (end > 0).then(|| bytes.into_boxed_slice());
        Self { buffer, at: 0, end }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.at == self.end
    }

    /// The bytes to process, which processing changes.
    #[inline]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.buffer {
            Some(buffer) => &mut buffer[self.at..self.end],
            None => &mut [],
        }
    }

    /// So many of them were processed.
    #[inline]
    pub(super) fn consume(&mut self, count: usize) {
        self.at += count;
        if self.is_empty() {
            self.clear();
        }
    }

    /// Discards everything.
    #[inline]
    pub(super) fn clear(&mut self) {
        (self.at, self.end) = (0, 0);
        if let Some(buffer) = self.buffer.take() {
            shared::give_read_buffer(buffer);
        }
    }

    /// Reads once, at most `len_max` bytes, when everything was processed. Returns how many.
    #[inline]
    pub(super) fn read(&mut self, stream: &mut impl Read, len_max: usize) -> io::Result<usize> {
        debug_assert!(self.is_empty(), "unprocessed bytes would be lost");
        let mut buffer = shared::take_read_buffer();
        let len = len_max.max(HEADER_LEN_MAX).min(buffer.len());
        let result = stream.read(&mut buffer[..len]);
        match result {
            Ok(count @ 1..) => {
                (self.at, self.end) = (0, count.min(len));
                self.buffer = Some(buffer);
            }
            _ => shared::give_read_buffer(buffer),
        }
        result
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input").field("len", &(self.end - self.at)).finish_non_exhaustive()
    }
}
