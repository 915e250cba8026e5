//! The bytes to send and the bytes to expect, prepared in advance: some different messages,
//! repeated in a cycle.

use windlass_bench_driver::Error;
use windlass_bench_driver::payload;
use windlass_bench_driver::protocol::Content;
use zlib_rs::{Deflate, DeflateFlush, Inflate, InflateFlush};

/// The properties of a case's messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageSpec {
    pub(crate) content: Content,
    pub(crate) bytes: usize,
    pub(crate) deflate: bool,
}

/// Total length of the messages of a cycle in bytes. They fit into the first-level caches, like the
/// single buffer of a server.
const CYCLE_BYTES: usize = 32 * 1024;

/// Number of different messages in a cycle: enough to detect a lost or misplaced one.
const VARIANTS: std::ops::RangeInclusive<usize> = 3..=8;

impl MessageSpec {
    /// Returns the messages, unmasked and uncompressed.
    pub(crate) fn payloads(self) -> Vec<Vec<u8>> {
        let variants = (CYCLE_BYTES / self.bytes.max(1)).clamp(*VARIANTS.start(), *VARIANTS.end());
        (1..=variants as u64).map(|seed| payload::variant(self.content, self.bytes, seed)).collect()
    }

    fn opcode(self) -> u8 {
        if self.content == Content::Binary { 2 } else { 1 }
    }

    /// Returns a client's frame for a payload.
    pub(crate) fn request(self, payload: &[u8], key: [u8; 4]) -> Result<Vec<u8>, Error> {
        let compressed;
        let (bits, payload) = if self.deflate {
            compressed = deflated(payload)?;
            (0xc0, &compressed[..])
        } else {
            (0x80, payload)
        };
        let mut frame = head(bits | self.opcode(), payload.len(), 0x80);
        frame.extend_from_slice(&key);
        frame.extend(payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
        Ok(frame)
    }

    /// Returns a server's frame for a payload, if it does not compress.
    pub(crate) fn reply(self, payload: &[u8]) -> Vec<u8> {
        let mut frame = head(0x80 | self.opcode(), payload.len(), 0);
        frame.extend_from_slice(payload);
        frame
    }

    /// Returns whether a server's frame contains the message.
    pub(crate) fn is_reply(self, frame: &[u8], payload: &[u8]) -> Result<bool, Error> {
        if frame == self.reply(payload) {
            return Ok(true);
        }
        let (start, length) = split(frame).ok_or("a frame is cut off")?;
        let is_compressed =
            self.deflate && frame[0] == 0xc0 | self.opcode() && frame.len() == start + length;
        Ok(is_compressed && inflated(&frame[start..], payload.len())? == payload)
    }
}

/// Returns the first bytes of a frame, without the masking key.
fn head(first: u8, length: usize, mask: u8) -> Vec<u8> {
    let mut head = vec![first];
    match length {
        ..126 => head.push(mask | length as u8),
        126..=0xffff => {
            head.push(mask | 126);
            head.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            head.push(mask | 127);
            head.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    head
}

/// Returns the offset and the length of a frame's payload, once its header is complete. A frame
/// with a mask is one of the client's own, from a server that echoes bytes.
pub(crate) fn split(frame: &[u8]) -> Option<(usize, usize)> {
    let second = *frame.get(1)?;
    let (start, length) = match second & 0x7f {
        126 => (4, usize::from(u16::from_be_bytes(frame.get(2..4)?.try_into().ok()?))),
        127 => (10, u64::from_be_bytes(frame.get(2..10)?.try_into().ok()?) as usize),
        length => (2, usize::from(length)),
    };
    Some((if second & 0x80 == 0 { start } else { start + 4 }, length))
}

/// Compresses as in RFC 7692 section 7.2.1.
fn deflated(plain: &[u8]) -> Result<Vec<u8>, Error> {
    let mut compressed = vec![0; plain.len() + 64];
    let mut deflate = Deflate::new(6, false, 15);
    deflate
        .compress(plain, &mut compressed, DeflateFlush::SyncFlush)
        .map_err(|_| "cannot be compressed")?;
    compressed.truncate(deflate.total_out() as usize);
    let end = compressed.len().checked_sub(4).ok_or("nothing was compressed")?;
    compressed.truncate(end);
    Ok(compressed)
}

/// Decompresses as in RFC 7692 section 7.2.2.
fn inflated(compressed: &[u8], length: usize) -> Result<Vec<u8>, Error> {
    let mut input = compressed.to_vec();
    input.extend_from_slice(&[0, 0, 0xff, 0xff]);
    let mut plain = vec![0; length + 1];
    let mut inflate = Inflate::new(false, 15);
    inflate
        .decompress(&input, &mut plain, InflateFlush::SyncFlush)
        .map_err(|_| "cannot be inflated")?;
    plain.truncate(inflate.total_out() as usize);
    Ok(plain)
}

/// Frames that repeat in a cycle. Some of the first are stored again at the end, so that several
/// consecutive ones are contiguous.
#[derive(Debug)]
pub(crate) struct FrameCycle {
    bytes: Vec<u8>,
    /// The offset of each frame, and the end of the last.
    starts: Vec<usize>,
    frames: usize,
}

impl FrameCycle {
    /// Creates a cycle of these frames, of which any `run` consecutive ones are contiguous.
    pub(crate) fn new(frames: &[Vec<u8>], run: usize) -> Self {
        let (mut bytes, mut starts) = (Vec::new(), vec![0]);
        for frame in frames.iter().cycle().take(frames.len() + run) {
            bytes.extend_from_slice(frame);
            starts.push(bytes.len());
        }
        Self { bytes, starts, frames: frames.len() }
    }

    /// Returns the range of `count` frames from frame `first`, at most a run.
    pub(crate) fn run(&self, first: usize, count: usize) -> std::ops::Range<usize> {
        self.starts[first]..self.starts[first + count]
    }

    /// Returns the mean length of a frame.
    pub(crate) fn frame_bytes_mean(&self) -> f64 {
        self.starts[self.frames] as f64 / self.frames as f64
    }

    pub(crate) fn bytes(&self, range: std::ops::Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Returns the frame that follows `count` frames after frame `first`.
    pub(crate) fn after(&self, first: usize, count: usize) -> usize {
        let next = first + count;
        if next < self.frames { next } else { next % self.frames }
    }
}

/// The position of a byte stream in a cycle.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CyclePosition {
    /// The next frame, or the incomplete one.
    pub(crate) frame: usize,
    /// Number of its bytes received so far.
    offset: usize,
}

impl CyclePosition {
    /// Compares received bytes with the expected ones. Returns the number of frames that they
    /// complete; `None` if a byte is wrong.
    pub(crate) fn advance(&mut self, cycle: &FrameCycle, mut received: &[u8]) -> Option<u64> {
        let mut ended = 0;
        loop {
            let length = cycle.starts[self.frame + 1] - cycle.starts[self.frame];
            let count = (length - self.offset).min(received.len());
            let (now, rest) = received.split_at(count);
            let start = cycle.starts[self.frame] + self.offset;
            if cycle.bytes[start..start + count] != *now {
                return None;
            }
            self.offset += count;
            if self.offset < length {
                return Some(ended);
            }
            ended += 1;
            *self = Self { frame: cycle.after(self.frame, 1), offset: 0 };
            received = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compressed_message_is_known_again() {
        let spec = MessageSpec { content: Content::Json, bytes: 128, deflate: true };
        let [payload, other] = [1, 2].map(|seed| payload::variant(Content::Json, 128, seed));
        let request = spec.request(&payload, [0; 4]).unwrap();
        assert_eq!(request[0], 0xc1);
        // With a key of zeros this is a server's frame, except for the mask bit.
        let mut reply = vec![0xc1, request[1] & 0x7f];
        reply.extend_from_slice(&request[6..]);
        assert!(spec.is_reply(&reply, &payload).unwrap());
        assert!(!spec.is_reply(&reply, &other).unwrap());
        assert!(spec.is_reply(&spec.reply(&payload), &payload).unwrap());
    }

    #[test]
    fn frames_are_counted_however_they_are_cut() {
        let frames = [b"one".to_vec(), b"three".to_vec()];
        let cycle = FrameCycle::new(&frames, 3);
        assert_eq!(cycle.bytes(cycle.run(1, 3)), b"threeonethree");
        let mut position = CyclePosition::default();
        let counts = [&b"on"[..], b"e", b"threeo", b"nethreeone", b""]
            .map(|bytes| position.advance(&cycle, bytes));
        assert_eq!(counts, [Some(0), Some(1), Some(1), Some(3), Some(0)]);
        assert_eq!(position.frame, 1);
        assert_eq!(position.advance(&cycle, b"thr?e"), None);
    }
}
