//! permessage-deflate alone.

use windlass_bench_driver::Error;
use windlass_bench_driver::deflate::{DeflateSubject, Setting};
use windlass_bench_driver::protocol;
use windlass_ws::deflate::{Agreement, Codec, CodecPool, Compressor, DeflateConfig};

/// A server's end, and the state that the connections of its thread share.
pub(crate) struct Deflate {
    codec: Codec,
    shared: CodecPool,
    out: Vec<u8>,
}

/// Maximum length of a decompressed message.
const MESSAGE_MAX: usize = 16 << 20;

impl DeflateSubject for Deflate {
    fn new(setting: &Setting) -> Result<Self, Error> {
        let mut config = DeflateConfig::DEFAULT;
        config.level = setting.level;
        config.threshold = 0;
        config.compressor = match setting.compressor {
            protocol::Compressor::Shared => Compressor::Shared,
            protocol::Compressor::Dedicated => Compressor::Dedicated,
        };
        let mut agreement = Agreement::DEFAULT;
        agreement.server_max_window_bits = setting.window_bits;
        agreement.client_max_window_bits = setting.window_bits;
        agreement.server_no_context_takeover = !setting.takeover;
        agreement.client_no_context_takeover = !setting.takeover;
        Ok(Self {
            codec: Codec::new(true, &agreement, &config),
            shared: CodecPool::new(),
            out: Vec::new(),
        })
    }

    fn compress(&mut self, plain: &[u8]) -> Result<&[u8], Error> {
        self.out.clear();
        if !self.codec.compress(&mut self.shared, plain, &mut self.out) {
            return Err("it was not compressed".into());
        }
        Ok(&self.out)
    }

    fn inflate(&mut self, compressed: &mut [u8], length: usize) -> Result<&[u8], Error> {
        self.out.clear();
        let done = self.codec.decompress(
            &mut self.shared,
            &compressed[..length],
            &mut self.out,
            MESSAGE_MAX,
        );
        done.map_err(|violation| format!("{violation:?}"))?;
        Ok(&self.out)
    }
}
