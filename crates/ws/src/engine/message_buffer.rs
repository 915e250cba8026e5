//! A message that did not lie in the input, kept longer than its pass.

use alloc::boxed::Box;
use core::fmt;

use super::assembly::{Assembly, HEAD_ROOM};
use crate::protocol::frame::{Opcode, plain_len, write_plain};

/// The buffer of a message that was assembled from pieces, or decompressed. See
/// [`Pass::take_message`](crate::Pass::take_message).
pub struct MessageBuffer {
    assembly: Box<Assembly>,
}

impl MessageBuffer {
    pub(super) const fn new(assembly: Box<Assembly>) -> Self {
        Self { assembly }
    }

    pub(super) fn into_assembly(self) -> Box<Assembly> {
        self.assembly
    }

    /// The message.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.assembly.bytes[HEAD_ROOM..]
    }

    /// The message, to change it.
    #[must_use]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.assembly.bytes[HEAD_ROOM..]
    }

    /// Builds the frame that a server sends for this message, uncompressed, around its bytes, and
    /// returns the frame. See [`frame`](Self::frame).
    pub fn make_frame(&mut self, is_text: bool) -> &[u8] {
        let payload_len = self.payload().len();
        let start = HEAD_ROOM - plain_len(payload_len as u64);
        let opcode = if is_text { Opcode::Text } else { Opcode::Binary };
        write_plain(&mut self.assembly.bytes[start..HEAD_ROOM], opcode, payload_len);
        self.frame()
    }

    /// The frame that [`make_frame`](Self::make_frame) built. Before that its header is undefined.
    #[must_use]
    pub fn frame(&self) -> &[u8] {
        &self.assembly.bytes[HEAD_ROOM - plain_len(self.payload().len() as u64)..]
    }
}

impl fmt::Debug for MessageBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageBuffer").field("len", &self.payload().len()).finish_non_exhaustive()
    }
}
