//! Messages to send.

use alloc::{string::String, vec::Vec};

#[cfg(feature = "deflate")]
use crate::protocol::frame::{FrameHeader, HEADER_LEN_MAX};
use crate::protocol::frame::{Opcode, plain_len, write_plain};

/// A message to send. It borrows its payload: `MessageRef::from(&string)` is text,
/// `MessageRef::from(&vector)` is binary.
///
/// ```
/// use windlass_ws::MessageRef;
///
/// let mut frame = Vec::new();
/// MessageRef::from("hi").encode(&mut frame);
/// assert_eq!(frame, [0x81, 2, b'h', b'i']);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageRef<'a> {
    /// A text message: UTF-8.
    Text(&'a str),
    /// A binary message.
    Binary(&'a [u8]),
}

impl<'a> MessageRef<'a> {
    /// The payload.
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }

    pub(crate) const fn opcode(self) -> Opcode {
        match self {
            Self::Text(_) => Opcode::Text,
            Self::Binary(_) => Opcode::Binary,
        }
    }

    /// Appends the frame that a server sends for this message, uncompressed. The frame is the same
    /// for every connection: see [`Outbox::send_encoded`](crate::Outbox::send_encoded).
    #[inline]
    pub fn encode(self, out: &mut Vec<u8>) {
        let (payload, first) = (self.as_bytes(), 0x80 | self.opcode() as u8);
        let len = payload.len();
        out.reserve(plain_len(len as u64) + len);
        // Copies whose length the compiler knows are no calls.
        match len {
            0..=125 => out.extend_from_slice(&[first, len as u8]),
            126..=0xffff => {
                let [high, low] = (len as u16).to_be_bytes();
                out.extend_from_slice(&[first, 126, high, low]);
            }
            _ => {
                let mut head = [0; plain_len(u64::MAX)];
                write_plain(&mut head, self.opcode(), len);
                out.extend_from_slice(&head);
            }
        }
        out.extend_from_slice(payload);
    }

    /// Appends the frame that a server sends for this message, compressed, if that makes it
    /// shorter. Returns `false` if nothing was appended. The codec must be one [for
    /// many](crate::deflate::Codec::for_broadcast), so that each message can be read without the
    /// earlier ones.
    #[cfg(feature = "deflate")]
    pub fn encode_compressed(
        self,
        codec: &mut crate::deflate::Codec,
        pool: &mut crate::deflate::CodecPool,
        out: &mut Vec<u8>,
    ) -> bool {
        let start = out.len();
        let payload = start + HEADER_LEN_MAX;
        out.resize(payload, 0);
        if !codec.compress(pool, self.as_bytes(), out) {
            out.truncate(start);
            return false;
        }
        let mut bytes = [0; HEADER_LEN_MAX];
        let len = (out.len() - payload) as u64;
        let header =
            FrameHeader { fin: true, compressed: true, opcode: self.opcode(), key: None, len };
        let head = header.encode(&mut bytes);
        out[start..start + head].copy_from_slice(&bytes[..head]);
        // Removes the gap that was reserved for a longer header.
        out.drain(start + head..payload);
        true
    }
}

impl<'a> From<&'a str> for MessageRef<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for MessageRef<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a [u8]> for MessageRef<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Binary(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for MessageRef<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Binary(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for MessageRef<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Binary(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_borrow_from_strings_and_vectors() {
        let (text, bytes) = (String::from("text"), Vec::from(*b"bytes"));
        assert_eq!(MessageRef::from(&text), MessageRef::Text("text"));
        assert_eq!(MessageRef::from("text"), MessageRef::Text("text"));
        assert_eq!(MessageRef::from(&bytes), MessageRef::Binary(b"bytes"));
        assert_eq!(MessageRef::from(&bytes[..]), MessageRef::Binary(b"bytes"));
        assert_eq!(MessageRef::from(b"bytes"), MessageRef::Binary(b"bytes"));
    }
}
