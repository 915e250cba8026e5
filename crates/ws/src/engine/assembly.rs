//! A message that comes in pieces.

use alloc::vec::Vec;
use core::fmt;

use crate::{Opcode, Utf8, Violation, frame::CONTROL_LEN_MAX, mask};

/// The room before an assembled payload, for the longest header of a reply.
pub(crate) const HEAD_ROOM: usize = 10;

/// A message or a control frame of which a part has come. An engine has one of them only while it
/// waits for the rest.
pub(crate) struct Assembly {
    /// [`HEAD_ROOM`] bytes, then the payload so far, unmasked.
    pub(crate) bytes: Vec<u8>,
    /// The message that is under way, if one is.
    pub(crate) message: Option<Message>,
    /// The frame of which a part has come, if there is one.
    pub(crate) frame: Option<Frame>,
    /// The payload so far of a control frame, unmasked.
    pub(crate) control: [u8; CONTROL_LEN_MAX],
    pub(crate) control_len: u8,
    /// It was taken to decompress into.
    pub(crate) is_warm: bool,
}

/// The message under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) text: bool,
    pub(crate) compressed: bool,
    pub(crate) fragments: u32,
    pub(crate) utf8: Utf8,
}

/// The frame under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) opcode: Opcode,
    pub(crate) fin: bool,
    /// The key, turned to the next byte.
    pub(crate) key: Option<[u8; 4]>,
    /// How many bytes of its payload are yet to come.
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
            is_warm: false,
        }
    }

    /// Makes it what [`Assembly::new`] gives, but for the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.message = None;
        self.frame = None;
        self.control_len = 0;
    }

    /// Begins a message.
    pub(crate) fn open(&mut self, text: bool, compressed: bool) {
        self.bytes.clear();
        self.bytes.resize(HEAD_ROOM, 0);
        self.message = Some(Message { text, compressed, fragments: 0, utf8: Utf8::new() });
    }

    /// Takes a piece of a control frame.
    pub(crate) fn add_control(&mut self, piece: &[u8], key: Option<[u8; 4]>) {
        let start = usize::from(self.control_len);
        let place = &mut self.control[start..start + piece.len()];
        place.copy_from_slice(piece);
        if let Some(key) = key {
            mask::mask(place, key);
        }
        self.control_len += piece.len() as u8;
    }

    /// Takes a piece of the message, `last` or not. Returns whether it was looked at as text.
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

    /// How long the message is so far.
    pub(crate) fn payload_len(&self) -> usize {
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
