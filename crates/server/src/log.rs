//! Publications of one turn to one topic, on their way to the receivers.
//!
//! They are consecutive frames, encoded once: a receiver gets all of them in one write. Receivers
//! that accept compressed frames have a second row, which is built when the first of them is met.

use windlass_ws::deflate::{Codec, CodecBytes, CodecPool, DeflateConfig};

use crate::{OutMessage, roster::NOBODY};

/// A log that has reached this many bytes is delivered before more is added. So it stays in the CPU
/// cache, and receivers' buffers are checked often enough.
const LOG_MAX: usize = 64 << 10;

/// Memory of a delivered log that is kept for the next one, in bytes.
const KEPT: usize = 256 << 10;

/// One publication.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// End offset of its frame.
    end: usize,
    /// Offset of its payload.
    payload: usize,
    is_text: bool,
    /// The connection that does not get it, or [`NOBODY`].
    from: u32,
    /// End offset of its frame in the compressed row.
    packed_end: usize,
}

/// Publications to one topic.
#[derive(Default)]
pub(crate) struct Log {
    plain: Vec<u8>,
    packed: Vec<u8>,
    is_packed: bool,
    pieces: Vec<Piece>,
}

impl Log {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns whether the log should be delivered before a message of this many bytes is added.
    pub(crate) fn is_full(&self, more: usize) -> bool {
        !self.is_empty() && self.plain.len() + more > LOG_MAX
    }

    /// Adds a publication, which `from` does not get.
    pub(crate) fn push(&mut self, message: OutMessage<'_>, from: u32) {
        message.encode(&mut self.plain);
        let end = self.plain.len();
        let payload = end - message.as_bytes().len();
        self.pieces.push(Piece { end, payload, is_text: message.is_text(), from, packed_end: 0 });
    }

    pub(crate) fn plain(&self) -> &[u8] {
        &self.plain
    }

    /// The row for receivers that accept compressed frames.
    pub(crate) fn packed(&self) -> &[u8] {
        if self.is_packed { &self.packed } else { &self.plain }
    }

    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// The connections that published the entries.
    pub(crate) fn publishers(&self) -> impl Iterator<Item = u32> + '_ {
        self.pieces.iter().map(|piece| piece.from).filter(|from| *from != NOBODY)
    }

    /// The publisher of each entry: a connection, or [`NOBODY`].
    pub(crate) fn senders(&self) -> impl Iterator<Item = u32> + '_ {
        self.pieces.iter().map(|piece| piece.from)
    }

    /// The frames of the chosen row, one by one, except those of one connection.
    pub(crate) fn frames(&self, packed: bool, but_from: u32) -> impl Iterator<Item = &[u8]> {
        let packed = packed && self.is_packed;
        let row = if packed { &self.packed } else { &self.plain };
        let mut start = 0;
        self.pieces.iter().filter_map(move |piece| {
            let end = if packed { piece.packed_end } else { piece.end };
            let frame = &row[core::mem::replace(&mut start, end)..end];
            (piece.from != but_from || but_from == NOBODY).then_some(frame)
        })
    }

    /// Builds the row of compressed frames if it is missing. It equals the plain row if no frame
    /// gets shorter.
    pub(crate) fn pack(&mut self, packer: &mut Packer) {
        if self.is_packed {
            return;
        }
        self.is_packed = true;
        let mut start = 0;
        for piece in &mut self.pieces {
            let payload = &self.plain[piece.payload..piece.end];
            if !packer.pack(&OutMessage::checked(piece.is_text, payload), &mut self.packed) {
                self.packed.extend_from_slice(&self.plain[start..piece.end]);
            }
            piece.packed_end = self.packed.len();
            start = piece.end;
        }
    }

    /// Empties the log.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.is_packed = false;
        for row in [&mut self.plain, &mut self.packed] {
            row.clear();
            row.shrink_to(KEPT);
        }
    }
}

/// Compresses messages for many receivers.
pub(crate) struct Packer {
    codec: Codec,
    shared: CodecPool,
}

impl Packer {
    pub(crate) fn new(config: &DeflateConfig) -> Self {
        Self { codec: Codec::for_broadcast(config), shared: CodecPool::new() }
    }

    /// Appends a compressed frame. Returns false, and appends nothing, if compression does not make
    /// it shorter.
    pub(crate) fn pack(&mut self, message: &OutMessage<'_>, out: &mut Vec<u8>) -> bool {
        message.encode_compressed(&mut self.codec, &mut self.shared, out)
    }

    /// Number of bytes that it has compressed.
    pub(crate) fn bytes(&self) -> CodecBytes {
        self.shared.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(log: &Log, packed: bool, but: u32) -> Vec<Vec<u8>> {
        log.frames(packed, but).map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn a_publisher_gets_all_but_its_own() {
        let mut log = Log::default();
        for (text, from) in [("a", 1), ("b", 2), ("c", NOBODY), ("d", 1)] {
            log.push(text.into(), from);
        }
        assert_eq!(log.plain(), b"\x81\x01a\x81\x01b\x81\x01c\x81\x01d");
        assert_eq!(frames(&log, false, 1), [b"\x81\x01b", b"\x81\x01c"]);
        assert_eq!(frames(&log, false, 2).len(), 3);
        assert_eq!(
            frames(&log, false, NOBODY).len(),
            4,
            "nobody is no publisher to be passed over"
        );
        assert_eq!(log.publishers().collect::<Vec<_>>(), [1, 2, 1]);
        log.clear();
        assert!(log.is_empty() && log.plain().is_empty());
    }

    #[test]
    fn short_messages_stay_as_they_are_among_compressed_ones() {
        let mut log = Log::default();
        let long = vec![b'x'; 1000];
        log.push("a".into(), 1);
        log.push((&long[..]).into(), 2);
        log.pack(&mut Packer::new(&DeflateConfig::DEFAULT));
        let rows = frames(&log, true, NOBODY);
        assert_eq!(rows[0], b"\x81\x01a");
        assert_eq!(rows[1][0], 0xc2, "compressed, binary");
        assert!(rows[1].len() < 100);
        assert_eq!(rows.concat(), log.packed());
        assert_eq!(frames(&log, true, 2), [b"\x81\x01a"]);
        assert_eq!(frames(&log, false, 1)[0].len(), 1004, "the plain row is there as well");
    }

    #[test]
    fn a_log_is_full_before_it_is_long() {
        let mut log = Log::default();
        assert!(!log.is_full(1 << 30), "an empty one takes anything");
        log.push((&[0; 1000][..]).into(), NOBODY);
        assert!(!log.is_full(LOG_MAX - 1004));
        assert!(log.is_full(LOG_MAX - 1003));
    }
}
