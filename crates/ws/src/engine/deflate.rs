//! permessage-deflate in the engine (RFC 7692). Without the feature nothing is compressed, and RSV1
//! is a reserved bit.

use super::{Engine, Outbox, slow_path::FrameReader};
use crate::protocol::{frame::Opcode, violation::Violation};

#[cfg(feature = "deflate")]
impl Outbox<'_> {
    /// Sends a message compressed, if compression was negotiated and makes it shorter.
    pub(super) fn compressed(&mut self, opcode: Opcode, payload: &[u8]) -> bool {
        let Some(codec) = &mut self.engine.codec else { return false };
        let local = &mut self.out.local;
        let start = local.len();
        local.resize(start + crate::protocol::frame::HEADER_LEN_MAX, 0);
        if codec.compress(&mut self.out.codec_pool, payload, local) {
            self.frame_around(opcode, true, start);
            true
        } else {
            local.truncate(start);
            false
        }
    }
}

#[cfg(feature = "deflate")]
impl FrameReader<'_, '_> {
    /// Replaces the compressed message in the engine's own `bytes` by the decompressed one.
    pub(super) fn inflate_assembled(&mut self) -> Result<(), Violation> {
        let Some(assembly) = self.input.buffers.message.take() else { return Ok(()) };
        let result = self.inflate(&assembly.bytes[super::assembly::HEAD_ROOM..]);
        self.out.recycle(assembly);
        result
    }

    /// Decompresses the message at `src` of the input. The result becomes the current message.
    pub(super) fn inflate_input(&mut self, src: usize, len: usize) -> Result<(), Violation> {
        let input = core::mem::take(&mut self.input.bytes);
        let result = self.inflate(&input[src..src + len]);
        self.input.bytes = input;
        result
    }

    fn inflate(&mut self, compressed: &[u8]) -> Result<(), Violation> {
        let limits = &self.engine.config.limits;
        let max = limits.inflated_max(compressed.len());
        let message_max = limits.message_max;
        let out = &mut *self.out;
        let mut assembly = out.take_inflate_buffer();
        assembly.open(false, false);
        let result = match &mut self.engine.codec {
            Some(codec) => {
                codec.decompress(&mut out.codec_pool, compressed, &mut assembly.bytes, max)
            }
            None => Err(Violation::ReservedBits),
        };
        self.input.buffers.message = Some(assembly);
        match result {
            Err(Violation::MessageTooBig) if max < message_max => Err(Violation::RatioTooHigh),
            other => other,
        }
    }
}

#[cfg(feature = "deflate")]
impl Engine {
    pub(super) const fn may_be_compressed(&self) -> bool {
        self.codec.is_some()
    }
}

#[cfg(not(feature = "deflate"))]
impl Outbox<'_> {
    pub(super) fn compressed(&mut self, _: Opcode, _: &[u8]) -> bool {
        false
    }
}

#[cfg(not(feature = "deflate"))]
impl FrameReader<'_, '_> {
    pub(super) fn inflate_assembled(&mut self) -> Result<(), Violation> {
        Err(Violation::ReservedBits)
    }

    pub(super) fn inflate_input(&mut self, _: usize, _: usize) -> Result<(), Violation> {
        Err(Violation::ReservedBits)
    }
}

#[cfg(not(feature = "deflate"))]
impl Engine {
    pub(super) const fn may_be_compressed(&self) -> bool {
        false
    }
}
