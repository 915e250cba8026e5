//! permessage-deflate in the engine (RFC 7692). Without the feature nothing is compressed, and RSV1
//! is a reserved bit.

use super::{
    Engine, Outbox,
    slow_path::{EventSource, FrameReader},
};
#[cfg(feature = "deflate")]
use super::{
    PIECES,
    assembly::{Assembly, HEAD_ROOM},
};
use crate::protocol::{frame::Opcode, violation::Violation};
#[cfg(feature = "deflate")]
use crate::{deflate::CompressedPart, protocol::mask};
#[cfg(feature = "deflate")]
use alloc::vec::Vec;

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

/// Messages that are decompressed while they arrive, because pieces are asked for.
#[cfg(feature = "deflate")]
impl FrameReader<'_, '_> {
    /// Begins to decompress the message that was just opened.
    pub(super) fn open_stream(&mut self) -> Result<(), Violation> {
        let Engine { codec: Some(codec), partial: Some(partial), .. } = &mut *self.engine else {
            return Err(Violation::ReservedBits);
        };
        partial.stream = Some(codec.begin_stream(&mut self.out.codec_pool)?);
        Ok(())
    }

    /// Decompresses the available payload of the incomplete frame, up to a whole piece.
    pub(super) fn append_compressed(&mut self) -> Result<Option<EventSource>, Violation> {
        loop {
            let mut piece = self.out.take_inflate_buffer();
            piece.open(false, false);
            let found = self.decompress_piece(&mut piece.bytes);
            self.input.buffers.message = Some(piece);
            let PieceFound { text, len, last, frame_ended } = found?;
            let Some(partial) = &mut self.engine.partial else { return Ok(None) };
            let Some(message) = &mut partial.message else { return Ok(None) };
            let (wanted, passed_on) = (self.engine.flags & PIECES != 0, message.passed_on > 0);
            if wanted {
                message.passed_on += len;
                // A held part was passed on first: `assembled_piece`.
                if last {
                    self.engine.discard_partial(self.out);
                }
                if len > 0 || last {
                    return Ok(Some(EventSource::AssembledPiece { text, last }));
                }
            } else if passed_on {
                // The rest of a message whose pieces are not asked for any more.
                if last {
                    self.engine.discard_partial(self.out);
                }
            } else {
                // No piece was asked for before it was dropped: the message comes whole.
                if let Some(piece) = &self.input.buffers.message {
                    partial.bytes.extend_from_slice(&piece.bytes[HEAD_ROOM..]);
                }
                if last {
                    self.out.store_message(self.input.buffers);
                    self.input.buffers.message = self.engine.partial.take();
                    return Ok(Some(EventSource::Assembled { text, checked: true }));
                }
            }
            self.out.store_message(self.input.buffers);
            if frame_ended || self.input.at == self.input.bytes.len() {
                return Ok(None);
            }
        }
    }

    /// Appends the next piece to `out`.
    fn decompress_piece(&mut self, out: &mut Vec<u8>) -> Result<PieceFound, Violation> {
        let Engine { codec: Some(codec), partial: Some(partial), config, .. } = &mut *self.engine
        else {
            return Err(Violation::ReservedBits);
        };
        let Assembly { message: Some(message), frame: Some(frame), stream: place, .. } =
            &mut **partial
        else {
            return Err(Violation::ReservedBits);
        };
        let Some(stream) = place else { return Err(Violation::ReservedBits) };
        let (limits, pool) = (&config.limits, &mut self.out.codec_pool);
        let rest = &mut self.input.bytes[self.input.at..];
        let len = rest.len().min(frame.left);
        let bytes = &mut rest[..len];
        if let Some(key) = frame.key {
            mask::mask(bytes, key);
        }
        let part = CompressedPart { bytes, is_last: frame.fin && len == frame.left };
        let is_last = part.is_last;
        let max = |consumed| limits.inflated_max(consumed);
        let consumed = match codec.decompress_piece(pool, stream, &part, out, max) {
            Err(Violation::MessageTooBig) if stream.made() <= limits.message_max => {
                return Err(Violation::RatioTooHigh);
            }
            other => other?,
        };
        if let Some(key) = &mut frame.key {
            *key = mask::rotate(*key, consumed);
            // The rest is received again.
            mask::mask(&mut bytes[consumed..], *key);
        }
        self.input.at += consumed;
        frame.left -= consumed;
        let frame_ended = frame.left == 0;
        let last = is_last && frame_ended;
        let piece = &out[HEAD_ROOM..];
        if message.text {
            message.utf8.push(piece)?;
            if last {
                message.utf8.finish()?;
            }
        }
        let text = message.text;
        if last {
            if let Some(stream) = place.take() {
                codec.end_stream(pool, stream);
            }
        }
        if frame_ended {
            partial.frame = None;
        }
        Ok(PieceFound { text, len: piece.len(), last, frame_ended })
    }
}

/// A piece of a message that was decompressed.
#[cfg(feature = "deflate")]
struct PieceFound {
    text: bool,
    len: usize,
    /// The message ends with it.
    last: bool,
    frame_ended: bool,
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

    pub(super) fn open_stream(&mut self) -> Result<(), Violation> {
        Err(Violation::ReservedBits)
    }

    pub(super) fn append_compressed(&mut self) -> Result<Option<EventSource>, Violation> {
        Err(Violation::ReservedBits)
    }
}

#[cfg(not(feature = "deflate"))]
impl Engine {
    pub(super) const fn may_be_compressed(&self) -> bool {
        false
    }
}
