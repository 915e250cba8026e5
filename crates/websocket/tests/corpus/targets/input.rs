//! Turns a fuzzer's bytes into operations.
//!
//! Committed corpora depend on this mapping, so it must not change. Past the end of the bytes,
//! every value is zero.

use windlass_websocket::{Config, DeflateConfig};

/// The unread rest of a fuzzer's input.
pub(crate) struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        byte
    }

    /// A length: small ones take one byte, and the largest is about 100,000.
    pub(crate) fn len(&mut self) -> usize {
        match self.byte() {
            255 => 100_000 + usize::from(self.byte()),
            long @ 240.. => usize::from(long - 239) << 12 | usize::from(self.byte()),
            short => usize::from(short),
        }
    }

    /// Up to `count` of the next bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        bytes
    }

    /// All remaining bytes.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// The settings of both ends. Their masking keys are the same in each run, and a run has no
    /// limit that depends on the clock.
    pub(crate) fn config(&mut self) -> Config {
        let flags = self.byte();
        let config = Config::new()
            .entropy(|bytes| bytes.fill(0x5a))
            .controls_per_second_max(u16::MAX)
            .high_watermark(usize::from(flags & 3) << 10);
        if flags & 4 == 0 {
            return config;
        }
        let mut deflate = DeflateConfig::DEFAULT;
        deflate.server_no_context_takeover = flags & 8 != 0;
        deflate.client_no_context_takeover = flags & 16 != 0;
        deflate.threshold = if flags & 32 == 0 { 0 } else { 50 };
        if flags & 64 != 0 {
            deflate.compressor = windlass_ws::deflate::Compressor::Dedicated;
        }
        config.deflate(deflate)
    }
}
