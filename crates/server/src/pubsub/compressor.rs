//! Compression of frames for many receivers.

use windlass_ws::deflate::{Codec, CodecBytes, CodecPool, DeflateConfig};

use crate::api::OutMessage;

/// Compresses messages for many receivers.
pub(crate) struct FrameCompressor {
    codec: Codec,
    shared: CodecPool,
}

impl FrameCompressor {
    pub(crate) fn new(config: &DeflateConfig) -> Self {
        Self { codec: Codec::for_broadcast(config), shared: CodecPool::new() }
    }

    /// Appends a compressed frame. Returns false, and appends nothing, if compression does not make
    /// it shorter.
    pub(crate) fn compress(&mut self, message: &OutMessage<'_>, out: &mut Vec<u8>) -> bool {
        message.encode_compressed(&mut self.codec, &mut self.shared, out)
    }

    /// Number of bytes that it has compressed.
    pub(crate) fn bytes(&self) -> CodecBytes {
        self.shared.bytes()
    }
}
