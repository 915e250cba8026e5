//! Masked frames. Each is taken for a whole message.

use std::ops::Range;

/// A frame that was received completely.
struct Frame {
    first: u8,
    key: [u8; 4],
    /// The range of its payload.
    payload: Range<usize>,
}

/// Returns the frame at `start`, if it was received completely.
#[inline]
fn next(bytes: &[u8], start: usize) -> Option<Frame> {
    let bytes = bytes.get(start..)?;
    let (&[first, second], rest) = bytes.split_first_chunk()?;
    let (head, length) = match second & 0x7f {
        126 => (8, usize::from(u16::from_be_bytes(*rest.first_chunk()?))),
        127 => (14, u64::from_be_bytes(*rest.first_chunk()?) as usize),
        length => (6, usize::from(length)),
    };
    let key = *bytes.get(head - 4..)?.first_chunk()?;
    if bytes.len() < head + length {
        return None;
    }
    let payload = start + head..start + head + length;
    Some(Frame { first, key, payload })
}

/// Where the answers to received frames are.
#[derive(Debug)]
pub enum Echoed {
    /// The answer to a single frame, within the received bytes.
    InPlace(Range<usize>),
    /// The answers to the first `used` received bytes, in the output.
    InOutput {
        /// Number of received bytes that were answered.
        used: usize,
    },
}

/// Answers every complete frame with its payload.
#[inline]
pub fn echo(received: &mut [u8], output: &mut Output) -> Echoed {
    let Some(frame) = next(received, 0) else { return Echoed::InOutput { used: 0 } };
    if frame.payload.end == received.len() {
        let length = frame.payload.len();
        unmask(&mut received[frame.payload.clone()], frame.key);
        // The header of the answer has no key, so it fits in front of the payload.
        let head = head_bytes(length);
        let start = frame.payload.start - head;
        put_head(&mut received[start..frame.payload.start], frame.first, length);
        return Echoed::InPlace(start..frame.payload.end);
    }
    Echoed::InOutput { used: append(received, output) }
}

/// Returns the number of complete frames.
#[must_use]
pub fn count(received: &[u8]) -> u32 {
    let (mut used, mut count) = (0, 0);
    while let Some(frame) = next(received, used) {
        (used, count) = (frame.payload.end, count + 1);
    }
    count
}

/// Appends every complete frame in the form that a server sends. Returns the number of received
/// bytes that they took.
#[inline]
pub fn append(received: &[u8], output: &mut Output) -> usize {
    let mut used = 0;
    while let Some(frame) = next(received, used) {
        used = frame.payload.end;
        let payload = &received[frame.payload];
        let (head, body) = output.extend(head_bytes(payload.len()), payload.len());
        put_head(head, frame.first, payload.len());
        body.copy_from_slice(payload);
        unmask(body, frame.key);
    }
    used
}

/// Bytes to send in one call: a buffer of fixed size that is filled from the front.
#[derive(Debug)]
pub struct Output {
    buffer: Box<[u8]>,
    length: usize,
}

impl Output {
    /// Creates an empty output with space for so many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self { buffer: vec![0; bytes].into(), length: 0 }
    }

    /// Extends the output by two parts and returns them. They always fit, because the answers to
    /// received bytes are shorter than those.
    #[inline]
    fn extend(&mut self, first: usize, second: usize) -> (&mut [u8], &mut [u8]) {
        let start = self.length;
        self.length += first + second;
        self.buffer[start..self.length].split_at_mut(first)
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.extend(0, bytes.len()).1.copy_from_slice(bytes);
    }

    /// Returns the bytes to send.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    /// Removes all bytes.
    #[inline]
    pub fn clear(&mut self) {
        self.length = 0;
    }
}

#[inline]
fn unmask(payload: &mut [u8], key: [u8; 4]) {
    let mut wide = [0; 16];
    wide.chunks_exact_mut(4).for_each(|quarter| quarter.copy_from_slice(&key));
    let mut chunks = payload.chunks_exact_mut(16);
    for chunk in &mut chunks {
        chunk.iter_mut().zip(wide).for_each(|(byte, key)| *byte ^= key);
    }
    chunks.into_remainder().iter_mut().zip(wide).for_each(|(byte, key)| *byte ^= key);
}

#[inline]
fn head_bytes(length: usize) -> usize {
    match length {
        ..126 => 2,
        126..=0xffff => 4,
        _ => 10,
    }
}

#[inline]
fn put_head(head: &mut [u8], first: u8, length: usize) {
    head[0] = first;
    match head.len() {
        2 => head[1] = length as u8,
        4 => {
            head[1] = 126;
            head[2..].copy_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            head[1] = 127;
            head[2..].copy_from_slice(&(length as u64).to_be_bytes());
        }
    }
}
