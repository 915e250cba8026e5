//! Bytes that depend on their offset in a stream, so that lost, repeated and moved ones are found.
//!
//! They are copied from a table, because code without optimisation is slow for each byte.

use std::sync::LazyLock;

/// The number of bytes after which the pattern begins again.
const PERIOD: usize = 1 << 16;

static TABLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let byte = |place: usize| (place * 7 + place / 256) as u8;
    (0..PERIOD).map(byte).collect()
});

/// The bytes at the offsets from `from` on.
pub fn bytes(from: usize, count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count);
    while bytes.len() < count {
        let begin = (from + bytes.len()) % PERIOD;
        let end = PERIOD.min(begin + count - bytes.len());
        bytes.extend_from_slice(&TABLE[begin..end]);
    }
    bytes
}
