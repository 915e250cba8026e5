//! What was read and is not yet processed.

use std::{fmt, io, io::Read, ops::Range};

use windlass_ws::MessageBuffer;

use crate::shared;

/// Received bytes. It holds a buffer only while they are not processed, or a message in them is
/// lent.
#[derive(Default)]
pub(super) struct Input {
    buffer: Option<Box<[u8]>>,
    /// The bytes from `at` to `end` of the buffer are to be processed.
    at: usize,
    end: usize,
    /// The lent message. It is `None` as soon as bytes are processed or read.
    lent: Option<Lent>,
}

struct Lent {
    is_text: bool,
    /// The buffer of the message, if it has its own.
    message: Option<MessageBuffer>,
    /// Where it lies in the input, if it has not.
    range: Range<usize>,
}

impl Input {
    /// Bytes that were read before.
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        let buffer = (end > 0).then(|| bytes.into_boxed_slice());
        Self { buffer, at: 0, end, lent: None }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.at == self.end
    }

    /// The bytes to process.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.buffer {
            Some(buffer) => &buffer[self.at..self.end],
            None => &[],
        }
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

    /// So many of them were processed, and what was found is lent: a message in a buffer of its
    /// own, or the one at this address and of this length.
    #[inline]
    pub(super) fn lend(
        &mut self,
        count: usize,
        message: Option<MessageBuffer>,
        (is_text, address, len): (bool, usize, usize),
    ) {
        let start = match (&message, &self.buffer) {
            (None, Some(buffer)) if len > 0 => address - buffer.as_ptr().addr(),
            _ => 0,
        };
        self.at += count;
        self.lent = Some(Lent { is_text, message, range: start..start + len });
    }

    /// The lent message, and whether it is text.
    pub(super) fn lent(&self) -> (bool, &[u8]) {
        let Some(Lent { is_text, message, range }) = &self.lent else { return (false, &[]) };
        let bytes = match (message, &self.buffer) {
            (Some(message), _) => message.payload(),
            (None, Some(buffer)) => &buffer[range.clone()],
            (None, None) => &[],
        };
        (*is_text, bytes)
    }

    /// Nothing is lent any more.
    #[inline]
    pub(super) fn take_back(&mut self) {
        if let Some(lent) = self.lent.take() {
            if let Some(message) = lent.message {
                shared::recycle(message);
            }
            if self.is_empty() {
                self.clear();
            }
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

    /// Reads behind the bytes to process until there are `missing` more of them, which fit into the
    /// buffer. Returns how many the last read has read: 0, or an error, if there are fewer.
    pub(super) fn read_more(
        &mut self,
        stream: &mut impl Read,
        missing: usize,
    ) -> io::Result<usize> {
        let Some(buffer) = &mut self.buffer else { return Ok(0) };
        let enough = self.end + missing;
        loop {
            let room = &mut buffer[self.end..];
            let count = stream.read(room)?.min(room.len());
            self.end += count;
            if count == 0 || self.end >= enough {
                return Ok(count);
            }
        }
    }

    /// Whether so many bytes fit behind the bytes to process.
    #[inline]
    pub(super) fn has_room(&self, count: usize) -> bool {
        self.buffer.as_ref().is_some_and(|buffer| count <= buffer.len() - self.end)
    }

    /// Reads once, when everything was processed. Returns how many bytes.
    #[inline]
    pub(super) fn read(&mut self, stream: &mut impl Read) -> io::Result<usize> {
        debug_assert!(self.is_empty(), "unprocessed bytes would be lost");
        let mut buffer = shared::take_read_buffer();
        let result = stream.read(&mut buffer);
        match result {
            Ok(count @ 1..) => {
                (self.at, self.end) = (0, count.min(buffer.len()));
                self.buffer = Some(buffer);
            }
            _ => shared::give_read_buffer(buffer),
        }
        result
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.end - self.at;
        let mut parts = f.debug_struct("Input");
        parts.field("holds_buffer", &self.buffer.is_some()).field("len", &len);
        parts.finish_non_exhaustive()
    }
}
