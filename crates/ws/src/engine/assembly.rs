//! A message that arrives in pieces.

use alloc::vec::Vec;
use core::fmt;

use crate::protocol::{
    frame::{CONTROL_LEN_MAX, Opcode},
    mask,
    utf8::Utf8Validator,
    violation::Violation,
};

/// The room before an assembled payload, for the longest header of a reply.
pub(crate) const HEAD_ROOM: usize = 10;

/// An incomplete message or control frame. An engine owns one only while it waits for the rest.
pub(crate) struct Assembly {
    /// [`HEAD_ROOM`] bytes, then the received payload, unmasked.
    pub(crate) bytes: Vec<u8>,
    /// The incomplete message, if any.
    pub(crate) message: Option<PartialMessage>,
    /// The incomplete frame, if any.
    pub(crate) frame: Option<PartialFrame>,
    /// The received payload of a control frame, unmasked.
    pub(crate) control: [u8; CONTROL_LEN_MAX],
    pub(crate) control_len: u8,
    /// The buffer was taken from the scratch for decompression.
    pub(crate) is_inflate_buffer: bool,
    /// The decompression of the incomplete message, if it is passed on in pieces. `bytes` are
    /// decompressed then.
    #[cfg(feature = "deflate")]
    pub(crate) stream: Option<crate::deflate::MessageStream>,
}

/// The incomplete message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartialMessage {
    pub(crate) text: bool,
    pub(crate) compressed: bool,
    pub(crate) fragments: u32,
    /// How many bytes were passed on as pieces.
    pub(crate) passed_on: usize,
    pub(crate) utf8: Utf8Validator,
}

/// The incomplete frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartialFrame {
    pub(crate) opcode: Opcode,
    pub(crate) fin: bool,
    /// The masking key, rotated to the next byte.
    pub(crate) key: Option<[u8; 4]>,
    /// How many bytes of the payload have not arrived yet.
    pub(crate) left: usize,
}

impl Assembly {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Vec::new(),
            message: None,
            frame: None,
            control: [0; CONTROL_LEN_MAX],
            control_len: 0,
            is_inflate_buffer: false,
            #[cfg(feature = "deflate")]
            stream: None,
        }
    }

    /// Resets it to the state of [`Assembly::new`] but keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.message = None;
        self.frame = None;
        self.control_len = 0;
        #[cfg(feature = "deflate")]
        {
            self.stream = None;
        }
    }

    /// Starts a message.
    pub(crate) fn open(&mut self, text: bool, compressed: bool) {
        self.bytes.clear();
        self.bytes.resize(HEAD_ROOM, 0);
        let utf8 = Utf8Validator::new();
        self.message = Some(PartialMessage { text, compressed, fragments: 0, passed_on: 0, utf8 });
    }

    /// Appends a piece of a control frame.
    pub(crate) fn add_control(&mut self, piece: &[u8], key: Option<[u8; 4]>) {
        let start = usize::from(self.control_len);
        let place = &mut self.control[start..start + piece.len()];
        place.copy_from_slice(piece);
        if let Some(key) = key {
            mask::mask(place, key);
        }
        self.control_len += piece.len() as u8;
    }

    /// Appends a piece of the message; `last` marks the last one. Returns whether the piece was
    /// validated as text.
    pub(crate) fn add_data(
        &mut self,
        piece: &[u8],
        key: Option<[u8; 4]>,
        last: bool,
    ) -> Result<bool, Violation> {
        let start = self.bytes.len();
        match key {
            Some(key) => mask::copy_masked(piece, &mut self.bytes, key),
            None => self.bytes.extend_from_slice(piece),
        }
        let Some(message) = &mut self.message else { return Ok(false) };
        let check = message.text && !message.compressed;
        if check {
            message.utf8.push(&self.bytes[start..])?;
            if last {
                message.utf8.finish()?;
            }
        }
        Ok(check)
    }

    /// The length of the message so far, as it was received.
    pub(crate) fn payload_len(&self) -> usize {
        #[cfg(feature = "deflate")]
        if let Some(stream) = &self.stream {
            return stream.consumed();
        }
        self.assembled_len() + self.message.map_or(0, |message| message.passed_on)
    }

    /// Whether the bytes that are held are compressed.
    pub(crate) fn holds_compressed(&self) -> bool {
        self.message.is_some_and(|message| message.compressed) && !self.is_stream()
    }

    /// Whether the message is decompressed while it arrives.
    #[cfg(feature = "deflate")]
    pub(crate) const fn is_stream(&self) -> bool {
        self.stream.is_some()
    }

    #[cfg(not(feature = "deflate"))]
    pub(crate) const fn is_stream(&self) -> bool {
        false
    }

    /// How many bytes of the message are held.
    pub(crate) fn assembled_len(&self) -> usize {
        self.bytes.len().saturating_sub(HEAD_ROOM)
    }
}

impl fmt::Debug for Assembly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Assembly")
            .field("len", &self.bytes.len())
            .field("capacity", &self.bytes.capacity())
            .field("message", &self.message)
            .field("frame", &self.frame)
            .finish_non_exhaustive()
    }
}
