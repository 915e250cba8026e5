//! The state that all connections of one thread share.

use alloc::vec::Vec;
use core::fmt;

use zlib_rs::{Deflate, Inflate};

use super::compress;

/// The most shared compressors. The connections of one server differ only in the window, so seven
/// would suffice. The least recently used one is replaced.
const COMPRESSORS_MAX: usize = 8;

/// Bytes that went through a codec since its creation. A failed message counts up to the point of
/// failure.
///
/// ```
/// let scratch = windlass_ws::Scratch::new();
/// let bytes = scratch.codec_bytes();
/// assert_eq!((bytes.inflated, bytes.deflated), (0, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CodecBytes {
    /// Bytes produced by decompression. Compressed bytes that produce little are charged for their
    /// own work: see [`INFLATE_INPUT_COST`].
    pub inflated: u64,
    /// Bytes passed to the compressor, whether they became shorter or not.
    pub deflated: u64,
}

/// Each compressed byte of a message counts as at least this many inflated bytes. Blocks without
/// output still cost the setup of their code tables, which takes many times as long for a
/// compressed byte as text takes for a byte of output.
pub const INFLATE_INPUT_COST: u64 = 16;

/// The state that all connections of one thread share: the compressors, one per window size and
/// level in use, and the decompressor.
///
/// A compressor takes 242 to 368 KiB, with windows of 9 to 15 bits; at most 8 are kept. The
/// decompressor takes 43 KiB. Each is created on first use and then kept.
///
/// ```
/// use windlass_ws::deflate::{Agreement, Codec, CodecPool, DeflateConfig};
///
/// let mut pool = CodecPool::new();
/// let mut codec = Codec::new(true, &Agreement::DEFAULT, &DeflateConfig::DEFAULT);
/// let mut out = Vec::new();
/// assert!(codec.compress(&mut pool, &[b'x'; 1000], &mut out));
/// assert_eq!(pool.bytes().deflated, 1000);
/// ```
#[derive(Default)]
pub struct CodecPool {
    /// Most recently used first.
    compressors: Vec<CachedCompressor>,
    pub(super) inflate: Option<Inflate>,
    /// The stream that the decompressor read last.
    pub(super) last_stream: Option<StreamPosition>,
    pub(super) bytes: CodecBytes,
}

struct CachedCompressor {
    bits: u8,
    level: u8,
    deflate: Deflate,
    used: bool,
}

/// A stream and its read position. The connection may have continued elsewhere in between.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamPosition {
    pub(super) stream: usize,
    pub(super) messages: u64,
}

impl CodecPool {
    /// Creates an instance that has allocated nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            compressors: Vec::new(),
            inflate: None,
            last_stream: None,
            bytes: CodecBytes { inflated: 0, deflated: 0 },
        }
    }

    /// How many bytes were compressed and decompressed with this instance.
    #[must_use]
    pub const fn bytes(&self) -> CodecBytes {
        self.bytes
    }

    /// The compressor for this window and level, reset so that it refers to no earlier message.
    pub(super) fn compressor(&mut self, bits: u8, level: u8) -> &mut Deflate {
        let place =
            self.compressors.iter().position(|cached| (cached.bits, cached.level) == (bits, level));
        let place = place.unwrap_or_else(|| {
            self.compressors.truncate(COMPRESSORS_MAX - 1);
            let deflate = compress::new(bits, level, compress::MEM_LEVEL_SHARED);
            self.compressors.push(CachedCompressor { bits, level, deflate, used: false });
            self.compressors.len() - 1
        });
        self.compressors[..=place].rotate_right(1);
        let cached = &mut self.compressors[0];
        // The reset also keeps one connection's messages from leaking into another's.
        if cached.used {
            cached.deflate.reset();
        }
        cached.used = true;
        &mut cached.deflate
    }
}

impl fmt::Debug for CodecPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compressors = self.compressors.iter().map(|cached| (cached.bits, cached.level));
        f.debug_struct("CodecPool")
            .field("compressors", &compressors.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(pool: &CodecPool) -> Vec<(u8, u8)> {
        pool.compressors.iter().map(|cached| (cached.bits, cached.level)).collect()
    }

    #[test]
    fn a_compressor_is_found_again() {
        let mut pool = CodecPool::new();
        for (bits, level) in [(15, 6), (9, 6), (15, 1), (15, 6)] {
            pool.compressor(bits, level);
        }
        assert_eq!(held(&pool), [(15, 6), (15, 1), (9, 6)]);
    }

    #[test]
    fn the_one_that_was_not_used_for_longest_makes_way() {
        let mut pool = CodecPool::new();
        for bits in 9..=15 {
            pool.compressor(bits, 6);
        }
        pool.compressor(9, 1);
        pool.compressor(9, 6);
        pool.compressor(9, 2);
        let held = held(&pool);
        assert_eq!(held.len(), COMPRESSORS_MAX);
        assert_eq!(held[..3], [(9, 2), (9, 6), (9, 1)]);
        assert!(!held.contains(&(10, 6)));
    }
}
