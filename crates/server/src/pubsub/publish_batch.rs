//! Publications of one turn to one topic, on their way to the receivers.
//!
//! They are consecutive frames, encoded once: a receiver gets all of them in one write. Receivers
//! that accept compressed frames have a second row, which is built when the first of them is met.

use super::compressor::FrameCompressor;
use crate::api::{NO_CONN, OutMessage, SentMessages};

/// A batch that has reached this many bytes is delivered before more is added. So it stays in the
/// CPU cache, and receivers' buffers are checked often enough.
const BATCH_BYTES_MAX: usize = 64 << 10;

/// Memory of a delivered batch that is kept for the next one, in bytes.
const KEPT: usize = 256 << 10;

/// One publication.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchedMessage {
    /// End offset of its frame.
    end: usize,
    /// Offset of its payload.
    payload: usize,
    is_text: bool,
    /// The connection that does not get it, or [`NO_CONN`].
    from: u32,
    /// End offset of its frame in the compressed row.
    compressed_end: usize,
}

/// Publications to one topic.
#[derive(Default)]
pub(crate) struct PublishBatch {
    plain: Vec<u8>,
    compressed: Vec<u8>,
    is_compressed: bool,
    messages: Vec<BatchedMessage>,
    totals: SentMessages,
}

impl PublishBatch {
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns whether the batch should be delivered before a message of this many bytes is added.
    pub(crate) fn is_full(&self, more: usize) -> bool {
        !self.is_empty() && self.plain.len() + more > BATCH_BYTES_MAX
    }

    /// Adds a publication, which `from` does not get.
    pub(crate) fn push(&mut self, message: OutMessage<'_>, from: u32) {
        message.encode(&mut self.plain);
        let end = self.plain.len();
        let payload = end - message.as_bytes().len();
        self.messages.push(BatchedMessage {
            end,
            payload,
            is_text: message.is_text(),
            from,
            compressed_end: 0,
        });
        self.totals.count += 1;
        self.totals.text += u32::from(message.is_text());
        self.totals.bytes += message.as_bytes().len();
    }

    /// The messages together.
    pub(crate) fn totals(&self) -> SentMessages {
        self.totals
    }

    /// Each message.
    pub(crate) fn each(&self) -> impl Iterator<Item = SentMessages> + '_ {
        self.messages
            .iter()
            .map(|message| SentMessages::one(message.is_text, message.end - message.payload))
    }

    pub(crate) fn plain(&self) -> &[u8] {
        &self.plain
    }

    /// The row for receivers that accept compressed frames.
    pub(crate) fn compressed(&self) -> &[u8] {
        if self.is_compressed { &self.compressed } else { &self.plain }
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// The connections that published the messages.
    pub(crate) fn publisher_conns(&self) -> impl Iterator<Item = u32> + '_ {
        self.messages.iter().map(|message| message.from).filter(|from| *from != NO_CONN)
    }

    /// The publisher of each message: a connection, or [`NO_CONN`].
    pub(crate) fn publishers(&self) -> impl Iterator<Item = u32> + '_ {
        self.messages.iter().map(|message| message.from)
    }

    /// The frames of the chosen row, one by one, except those of one connection.
    pub(crate) fn frames(&self, compressed: bool, but_from: u32) -> impl Iterator<Item = &[u8]> {
        let compressed = compressed && self.is_compressed;
        let row = if compressed { &self.compressed } else { &self.plain };
        let mut start = 0;
        self.messages.iter().filter_map(move |message| {
            let end = if compressed { message.compressed_end } else { message.end };
            let frame = &row[core::mem::replace(&mut start, end)..end];
            (message.from != but_from || but_from == NO_CONN).then_some(frame)
        })
    }

    /// Builds the row of compressed frames if it is missing. It equals the plain row if no frame
    /// gets shorter.
    pub(crate) fn compress(&mut self, compressor: &mut FrameCompressor) {
        if self.is_compressed {
            return;
        }
        self.is_compressed = true;
        let mut start = 0;
        for message in &mut self.messages {
            let payload = &self.plain[message.payload..message.end];
            if !compressor
                .compress(&OutMessage::checked(message.is_text, payload), &mut self.compressed)
            {
                self.compressed.extend_from_slice(&self.plain[start..message.end]);
            }
            message.compressed_end = self.compressed.len();
            start = message.end;
        }
    }

    /// Empties the batch.
    pub(crate) fn clear(&mut self) {
        self.messages.clear();
        self.totals = SentMessages::default();
        self.is_compressed = false;
        for row in [&mut self.plain, &mut self.compressed] {
            row.clear();
            row.shrink_to(KEPT);
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass_ws::deflate::DeflateConfig;

    use super::*;

    fn frames(batch: &PublishBatch, compressed: bool, but: u32) -> Vec<Vec<u8>> {
        batch.frames(compressed, but).map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn a_publisher_gets_all_but_its_own() {
        let mut batch = PublishBatch::default();
        for (text, from) in [("a", 1), ("b", 2), ("c", NO_CONN), ("d", 1)] {
            batch.push(text.into(), from);
        }
        assert_eq!(batch.plain(), b"\x81\x01a\x81\x01b\x81\x01c\x81\x01d");
        assert_eq!(frames(&batch, false, 1), [b"\x81\x01b", b"\x81\x01c"]);
        assert_eq!(frames(&batch, false, 2).len(), 3);
        assert_eq!(frames(&batch, false, NO_CONN).len(), 4, "no publisher is left out");
        assert_eq!(batch.publisher_conns().collect::<Vec<_>>(), [1, 2, 1]);
        batch.clear();
        assert!(batch.is_empty() && batch.plain().is_empty());
    }

    #[test]
    fn short_messages_stay_as_they_are_among_compressed_ones() {
        let mut batch = PublishBatch::default();
        let long = vec![b'x'; 1000];
        batch.push("a".into(), 1);
        batch.push((&long[..]).into(), 2);
        batch.compress(&mut FrameCompressor::new(&DeflateConfig::DEFAULT));
        let rows = frames(&batch, true, NO_CONN);
        assert_eq!(rows[0], b"\x81\x01a");
        assert_eq!(rows[1][0], 0xc2, "compressed, binary");
        assert!(rows[1].len() < 100);
        assert_eq!(rows.concat(), batch.compressed());
        assert_eq!(frames(&batch, true, 2), [b"\x81\x01a"]);
        assert_eq!(frames(&batch, false, 1)[0].len(), 1004, "the plain row is there as well");
    }

    #[test]
    fn a_batch_is_full_before_it_is_long() {
        let mut batch = PublishBatch::default();
        assert!(!batch.is_full(1 << 30), "an empty one takes anything");
        batch.push((&[0; 1000][..]).into(), NO_CONN);
        assert!(!batch.is_full(BATCH_BYTES_MAX - 1004));
        assert!(batch.is_full(BATCH_BYTES_MAX - 1003));
    }
}
