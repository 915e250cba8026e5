//! What the connections of one thread share.

use alloc::vec::Vec;
use core::fmt;

use zlib_rs::{Deflate, Inflate};

use super::compress;

/// How many shared compressors there may be. One server's connections differ only in the window, so
/// seven would do; the one that was used least recently makes way.
const COMPRESSORS_MAX: usize = 8;

/// Bytes that went through a codec, since it was made. A message that fails counts as far as it
/// went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CodecBytes {
    /// Bytes that were made by decompression. Compressed bytes that make little are charged for
    /// their own work: see [`INFLATE_INPUT_COST`].
    pub inflated: u64,
    /// Bytes that were given to the compressor, whether that made them shorter or not.
    pub deflated: u64,
}

/// A message counts as at least so many inflated bytes for each of its compressed bytes. Blocks
/// that make nothing still cost the tables of their codes: 107 ns for a compressed byte, where text
/// takes 2 ns for a byte that is made (2026-11-22, a shared virtual machine with 2 cores).
pub const INFLATE_INPUT_COST: u64 = 16;

/// What the connections of one thread share: the compressors, one for each window size and level in
/// use, and the decompressor.
///
/// A compressor has, with windows of 9 to 15 bits, 242 to 368 KiB; at most 8 are kept. The
/// decompressor has 43 KiB. Each is made when it is first needed, and then kept.
#[derive(Default)]
pub struct Shared {
    /// The one used last comes first.
    compressors: Vec<Entry>,
    pub(super) inflate: Option<Inflate>,
    /// Whose stream the decompressor has just read.
    pub(super) resident: Option<Resident>,
    pub(super) bytes: CodecBytes,
}

struct Entry {
    bits: u8,
    level: u8,
    deflate: Deflate,
    used: bool,
}

/// A stream, and how much of it has been read: a connection may have read on elsewhere in between.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Resident {
    pub(super) stream: usize,
    pub(super) messages: u64,
}

impl Shared {
    /// Without any memory.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            compressors: Vec::new(),
            inflate: None,
            resident: None,
            bytes: CodecBytes { inflated: 0, deflated: 0 },
        }
    }

    /// How many bytes were compressed and decompressed with it.
    #[must_use]
    pub const fn bytes(&self) -> CodecBytes {
        self.bytes
    }

    /// The compressor for this window and level, which knows of no earlier message.
    pub(super) fn compressor(&mut self, bits: u8, level: u8) -> &mut Deflate {
        let place =
            self.compressors.iter().position(|entry| (entry.bits, entry.level) == (bits, level));
        let place = place.unwrap_or_else(|| {
            self.compressors.truncate(COMPRESSORS_MAX - 1);
            let deflate = compress::new(bits, level, compress::MEM_LEVEL_SHARED);
            self.compressors.push(Entry { bits, level, deflate, used: false });
            self.compressors.len() - 1
        });
        self.compressors[..=place].rotate_right(1);
        let entry = &mut self.compressors[0];
        // Beside what zlib needs for itself, this keeps the messages of one connection from the
        // others.
        if entry.used {
            entry.deflate.reset();
        }
        entry.used = true;
        &mut entry.deflate
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compressors = self.compressors.iter().map(|entry| (entry.bits, entry.level));
        f.debug_struct("Shared")
            .field("compressors", &compressors.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(shared: &Shared) -> Vec<(u8, u8)> {
        shared.compressors.iter().map(|entry| (entry.bits, entry.level)).collect()
    }

    #[test]
    fn a_compressor_is_found_again() {
        let mut shared = Shared::new();
        for (bits, level) in [(15, 6), (9, 6), (15, 1), (15, 6)] {
            shared.compressor(bits, level);
        }
        assert_eq!(held(&shared), [(15, 6), (15, 1), (9, 6)]);
    }

    #[test]
    fn the_one_that_was_not_used_for_longest_makes_way() {
        let mut shared = Shared::new();
        for bits in 9..=15 {
            shared.compressor(bits, 6);
        }
        shared.compressor(9, 1);
        shared.compressor(9, 6);
        shared.compressor(9, 2);
        let held = held(&shared);
        assert_eq!(held.len(), COMPRESSORS_MAX);
        assert_eq!(held[..3], [(9, 2), (9, 6), (9, 1)]);
        assert!(!held.contains(&(10, 6)));
    }
}
