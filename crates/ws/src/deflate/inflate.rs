//! Decompression of one message, which never makes more than was allowed.

use alloc::vec::Vec;

use zlib_rs::{Inflate, InflateFlush, Status};

use super::history::History;
use crate::Violation;

/// What senders leave out at the end of a message (RFC 7692 section 7.2.2): the lengths of an empty
/// stored block, whose header the message does have. The last byte is ours: it must not be needed.
const TAIL: [u8; 5] = [0, 0, 0xff, 0xff, 0xff];

/// The largest window of DEFLATE, in bytes.
const WINDOW_MAX: usize = 1 << 15;

/// What it costs to begin anew after a final block, beside the window's bytes, in the unit of
/// `RESTART_BUDGET`.
const RESTART_COST: usize = 4096;

/// How much may be spent on final blocks in one message: this, and so much for each compressed
/// byte. A message of nothing but final blocks would otherwise cost a copy of the window for every
/// two bytes.
const RESTART_BUDGET: usize = 256 << 10;
const RESTART_BUDGET_PER_BYTE: usize = 64;

/// A decompressor in which streams of 15 bits, and so all smaller ones, can be read.
pub(super) fn new() -> Inflate {
    Inflate::new(false, 15)
}

/// Forgets the last stream; the next one may refer to `history`.
pub(super) fn restart(
    inflate: &mut Inflate,
    history: Option<&History>,
    output: &[u8],
) -> Result<(), Violation> {
    // This also forgets the window's size and takes 15 bits.
    inflate.reset(false);
    let pieces = history.map_or([&[][..]; 2], History::pieces);
    let recent = &output[output.len().saturating_sub(WINDOW_MAX)..];
    for piece in pieces.into_iter().chain([recent]).filter(|piece| !piece.is_empty()) {
        inflate.set_dictionary(piece).map_err(|_| Violation::BadDeflate)?;
    }
    Ok(())
}

/// One message on its way from `inflate` to the end of `out`.
pub(super) struct Job<'a> {
    inflate: &'a mut Inflate,
    history: Option<&'a History>,
    out: &'a mut Vec<u8>,
    /// Where in `out` the message starts and, so far, ends; what follows is room.
    start: usize,
    end: usize,
    max: usize,
    /// What final blocks have cost beside that.
    restarts: usize,
}

impl<'a> Job<'a> {
    /// `inflate` must have been restarted with `history`, or have made what `history` ends with.
    pub(super) fn new(
        inflate: &'a mut Inflate,
        history: Option<&'a History>,
        out: &'a mut Vec<u8>,
        max: usize,
    ) -> Self {
        let start = out.len();
        Self { inflate, history, out, start, end: start, max, restarts: 0 }
    }

    /// Appends the message to `out`; nothing is appended in case of an error. Says how many bytes
    /// of work it was, too: those that were made, and the window's copies for final blocks.
    pub(super) fn run(mut self, compressed: &[u8]) -> (usize, Result<(), Violation>) {
        let result = self.message(compressed);
        let work = self.end - self.start + self.restarts;
        self.out.truncate(if result.is_ok() { self.end } else { self.start });
        (work, result)
    }

    fn message(&mut self, compressed: &[u8]) -> Result<(), Violation> {
        let mut budget =
            RESTART_BUDGET.saturating_add(compressed.len().saturating_mul(RESTART_BUDGET_PER_BYTE));
        let mut rest = compressed;
        loop {
            let (consumed, ended) = self.feed(rest, InflateFlush::NoFlush, compressed.len())?;
            rest = &rest[consumed..];
            if !ended {
                break;
            }
            // A final block, after which another may follow (section 7.2.3.4). To zlib that is
            // another stream; to the protocol it is not, so the window stays.
            let kept =
                self.history.map_or(0, History::len) + (self.end - self.start).min(WINDOW_MAX);
            budget = budget.checked_sub(RESTART_COST + kept).ok_or(Violation::BadDeflate)?;
            self.restarts += RESTART_COST + kept;
            restart(self.inflate, self.history, &self.out[self.start..self.end])?;
            if rest.is_empty() {
                // The sender has left out the empty block that had to follow. Nothing is missing
                // all the same.
                return Ok(());
            }
        }
        // A block that is not complete would take the tail for data, or want more than the tail: it
        // makes output or takes the last byte as well.
        let before = self.end;
        let (consumed, ended) = self.feed(&TAIL, InflateFlush::Block, 0)?;
        if rest.is_empty() && !ended && consumed == TAIL.len() - 1 && self.end == before {
            Ok(())
        } else {
            Err(Violation::BadDeflate)
        }
    }

    /// Decompresses until `input` or the stream is at its end. Yields how much of `input` was
    /// taken, and whether it was the stream.
    fn feed(
        &mut self,
        input: &[u8],
        flush: InflateFlush,
        hint: usize,
    ) -> Result<(usize, bool), Violation> {
        let mut consumed = 0;
        loop {
            let mut spare = [0];
            let room = self.room(hint);
            let full = room == self.end;
            let output = if full { &mut spare[..] } else { &mut self.out[self.end..room] };
            let (taken, made) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self
                .inflate
                .decompress(&input[consumed..], output, flush)
                .map_err(|_| Violation::BadDeflate)?;
            consumed += (self.inflate.total_in() - taken) as usize;
            let made = (self.inflate.total_out() - made) as usize;
            if full && made > 0 {
                return Err(Violation::MessageTooBig);
            }
            self.end += made;
            if status == Status::StreamEnd {
                return Ok((consumed, true));
            }
            // With room left it has stopped for want of input, or where `flush` asked it to.
            if full || self.end < room {
                return Ok((consumed, false));
            }
        }
    }

    /// Makes room in `out` and says where it ends: where the message does if that may not get
    /// longer.
    fn room(&mut self, hint: usize) -> usize {
        if self.end == self.out.len() {
            let made = self.end - self.start;
            // Room costs zeros. The first guess is what text makes, and each further one doubles.
            let more = if made == 0 { hint.saturating_mul(4).clamp(128, 32 << 10) } else { made };
            let more = more.min(self.max - made);
            // Not twice what is needed: this buffer is kept.
            self.out.reserve_exact(more);
            self.out.resize(self.end + more, 0);
        }
        self.out.len()
    }
}
