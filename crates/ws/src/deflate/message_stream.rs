//! Decompression of one message piece by piece, while it arrives.
//!
//! 1. While a message is decompressed, its stream owns the decompressor. Other connections of the
//!    thread get another one.
//! 2. A piece has at most [`PIECE_MAX`] bytes. Compressed bytes that it has no room for are not
//!    consumed.
//! 3. The last byte of the input is consumed only when there is room for all that it completes. So
//!    no output is left when the input is consumed.

use alloc::vec::Vec;

use zlib_rs::{Inflate, InflateFlush, Status};

use super::{
    history::History,
    inflate::{RESTART_BUDGET, RESTART_BUDGET_PER_BYTE, RESTART_COST, TAIL, WINDOW_MAX, restart},
};
use crate::protocol::violation::Violation;

/// The longest piece, in bytes.
pub(crate) const PIECE_MAX: usize = 64 << 10;

/// The room for what the last byte of the input completes. It ends at most one symbol that began
/// earlier, and holds at most four others. Each is a match of at most 258 bytes.
const LAST_BYTE_ROOM: usize = 2048;

/// The decompression of one message.
pub(crate) struct MessageStream {
    inflate: Inflate,
    /// The end of the message so far, if the connection has no history.
    recent: Option<History>,
    /// How many compressed bytes were read, and how many bytes they became.
    consumed: usize,
    made: usize,
    /// The additional cost of final blocks so far.
    restarts: usize,
    /// A final block has ended, and no byte was consumed since.
    is_after_final: bool,
}

/// A part of the compressed message.
pub(crate) struct CompressedPart<'a> {
    pub(crate) bytes: &'a [u8],
    /// The message ends with it.
    pub(crate) is_last: bool,
}

impl MessageStream {
    /// `inflate` must have been restarted with the history of the connection, or its last output
    /// must be the end of it.
    pub(super) const fn new(inflate: Inflate) -> Self {
        Self { inflate, recent: None, consumed: 0, made: 0, restarts: 0, is_after_final: false }
    }

    /// How many compressed bytes were read so far.
    pub(crate) const fn consumed(&self) -> usize {
        self.consumed
    }

    /// How many bytes they have become.
    pub(crate) const fn made(&self) -> usize {
        self.made
    }

    /// The cost so far, in bytes: the output, plus the copies of the window for final blocks.
    pub(super) const fn work(&self) -> usize {
        self.made + self.restarts
    }

    pub(super) fn into_inflate(self) -> Inflate {
        self.inflate
    }

    /// Appends the next piece to `out`, which may be changed afterwards. Returns how many bytes of
    /// `part` were consumed: all of them, unless the piece is full. `max` is the longest message
    /// for a number of compressed bytes.
    pub(super) fn run(
        &mut self,
        history: Option<&mut History>,
        part: &CompressedPart<'_>,
        out: &mut Vec<u8>,
        max: impl Fn(usize) -> usize,
    ) -> Result<usize, Violation> {
        let start = out.len();
        let mut piece =
            PieceWriter { stream: self, history: history.as_deref(), start, end: start, out, max };
        let result = piece.write(part);
        let end = piece.end;
        out.truncate(if result.is_ok() { end } else { start });
        let consumed = result?;
        // A later block may refer to it.
        let made = &out[start..];
        match history {
            Some(history) => history.push(made),
            None if part.is_last && consumed == part.bytes.len() => {}
            None => self.recent.get_or_insert_with(|| History::new(WINDOW_MAX)).push(made),
        }
        Ok(consumed)
    }
}

/// Writes one piece to `out`. It lies there from `start` to `end`; the rest of `out` is free room.
struct PieceWriter<'a, M> {
    stream: &'a mut MessageStream,
    history: Option<&'a History>,
    out: &'a mut Vec<u8>,
    start: usize,
    end: usize,
    max: M,
}

impl<M: Fn(usize) -> usize> PieceWriter<'_, M> {
    fn write(&mut self, part: &CompressedPart<'_>) -> Result<usize, Violation> {
        let mut rest = part.bytes;
        while let Some((last, others)) = rest.split_last() {
            let is_last = others.is_empty();
            if self.len() + if is_last { LAST_BYTE_ROOM } else { 1 } > PIECE_MAX {
                return Ok(part.bytes.len() - rest.len());
            }
            let input = if is_last { core::slice::from_ref(last) } else { others };
            let hint = part.bytes.len();
            let (consumed, ended) = self.feed(input, InflateFlush::NoFlush, hint, !is_last)?;
            rest = &rest[consumed..];
            if ended {
                self.restart()?;
            }
        }
        if part.is_last && !self.stream.is_after_final {
            self.finish()?;
        }
        Ok(part.bytes.len())
    }

    fn len(&self) -> usize {
        self.end - self.start
    }

    /// Decompresses until the end of `input`, of the stream, or if it `may_stop` of the piece.
    /// Returns how much of `input` was consumed, and whether the stream ended.
    fn feed(
        &mut self,
        input: &[u8],
        flush: InflateFlush,
        hint: usize,
        may_stop: bool,
    ) -> Result<(usize, bool), Violation> {
        let mut consumed = 0;
        loop {
            if self.end == self.out.len() {
                self.grow(hint);
            }
            let inflate = &mut self.stream.inflate;
            let (taken, made) = (inflate.total_in(), inflate.total_out());
            let status = inflate
                .decompress(&input[consumed..], &mut self.out[self.end..], flush)
                .map_err(|_| Violation::BadDeflate)?;
            let taken = (inflate.total_in() - taken) as usize;
            let made = (inflate.total_out() - made) as usize;
            consumed += taken;
            self.end += made;
            let stream = &mut *self.stream;
            stream.is_after_final &= taken == 0;
            stream.made += made;
            if !matches!(flush, InflateFlush::Block) {
                stream.consumed += taken;
            }
            if stream.made > (self.max)(stream.consumed) {
                return Err(Violation::MessageTooBig);
            }
            if status == Status::StreamEnd {
                return Ok((consumed, true));
            }
            // If room is left, it stopped because the input ended, or where `flush` told it to.
            if self.end < self.out.len() || (may_stop && self.len() >= PIECE_MAX) {
                return Ok((consumed, false));
            }
        }
    }

    /// Makes room for more of the piece: beyond the longest piece, only for the last byte.
    fn grow(&mut self, hint: usize) {
        let len = self.len();
        let more = match len {
            0 => hint.saturating_mul(4).clamp(128, PIECE_MAX / 2),
            _ if len >= PIECE_MAX => LAST_BYTE_ROOM,
            _ => len.min(PIECE_MAX - len),
        };
        self.out.reserve_exact(more);
        self.out.resize(self.end + more, 0);
    }

    /// Goes on after a final block (RFC 7692 section 7.2.3.4). zlib starts a new stream there, but
    /// the protocol does not, so the window must be kept.
    fn restart(&mut self) -> Result<(), Violation> {
        let stream = &mut *self.stream;
        let before = self.history.or(stream.recent.as_ref());
        let kept = before.map_or(0, History::len) + (self.end - self.start).min(WINDOW_MAX);
        stream.restarts += RESTART_COST + kept;
        let budget = stream.consumed.saturating_mul(RESTART_BUDGET_PER_BYTE);
        if stream.restarts > RESTART_BUDGET.saturating_add(budget) {
            return Err(Violation::BadDeflate);
        }
        stream.is_after_final = true;
        restart(&mut stream.inflate, before, &self.out[self.start..self.end])
    }

    /// Checks that the message ends with a whole block.
    fn finish(&mut self) -> Result<(), Violation> {
        // An incomplete block would read the tail as data, or need more than the tail. It then
        // produces output or consumes the last byte too.
        let before = self.end;
        let (consumed, ended) = self.feed(&TAIL, InflateFlush::Block, 0, false)?;
        if !ended && consumed == TAIL.len() - 1 && self.end == before {
            Ok(())
        } else {
            Err(Violation::BadDeflate)
        }
    }
}
