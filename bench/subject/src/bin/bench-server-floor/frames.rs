//! Masked frames, taken for whole messages.

use std::ops::Range;

/// One that has come whole.
struct Frame {
    first: u8,
    key: [u8; 4],
    /// Where its payload is.
    payload: Range<usize>,
}

/// The frame at the front of these bytes, once it is whole.
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

/// Where answers are.
pub(crate) enum Reply {
    /// Those to a single frame: among what was received, up to its end.
    InPlace(Range<usize>),
    /// In the output, if there are any, to so many bytes.
    Out { used: usize },
}

/// Answers every whole frame with its payload.
#[inline]
pub(crate) fn reply(received: &mut [u8], out: &mut Out) -> Reply {
    let Some(frame) = next(received, 0) else { return Reply::Out { used: 0 } };
    if frame.payload.end == received.len() {
        let length = frame.payload.len();
        unmask(&mut received[frame.payload.clone()], frame.key);
        // The header of the answer, without a key, goes right in front of the payload.
        let head = head_bytes(length);
        let start = frame.payload.start - head;
        put_head(&mut received[start..frame.payload.start], frame.first, length);
        return Reply::InPlace(start..frame.payload.end);
    }
    Reply::Out { used: publish(received, out) }
}

/// Appends every whole frame as a server sends it, and says how many bytes they were.
#[inline]
pub(crate) fn publish(received: &[u8], out: &mut Out) -> usize {
    let mut used = 0;
    while let Some(frame) = next(received, used) {
        used = frame.payload.end;
        let payload = &received[frame.payload];
        let (head, body) = out.take(head_bytes(payload.len()), payload.len());
        put_head(head, frame.first, payload.len());
        body.copy_from_slice(payload);
        unmask(body, frame.key);
    }
    used
}

/// What is sent at once: room that is written from the front.
pub(crate) struct Out {
    room: Box<[u8]>,
    length: usize,
}

impl Out {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { room: vec![0; bytes].into(), length: 0 }
    }

    /// The next bytes, in two parts. There is room: what is sent for a read is shorter than what
    /// was read.
    #[inline]
    fn take(&mut self, first: usize, second: usize) -> (&mut [u8], &mut [u8]) {
        let start = self.length;
        self.length += first + second;
        self.room[start..self.length].split_at_mut(first)
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.take(0, bytes.len()).1.copy_from_slice(bytes);
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.room[..self.length]
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
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
