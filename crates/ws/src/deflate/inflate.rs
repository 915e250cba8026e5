//! Decompression of one message, within a fixed limit on its output.

use alloc::vec::Vec;

use zlib_rs::{Inflate, InflateFlush, Status};

use super::history::History;
use crate::protocol::violation::Violation;

/// The bytes that senders omit at the end of a message (RFC 7692 section 7.2.2). They are the
/// lengths of an empty stored block, whose header the message contains. The last byte is our
/// addition: a valid message never consumes it.
pub(super) const TAIL: [u8; 5] = [0, 0, 0xff, 0xff, 0xff];

/// The largest window of DEFLATE, in bytes.
pub(super) const WINDOW_MAX: usize = 1 << 15;

/// The cost of a restart after a final block, beside the bytes of the window, in the unit of
/// `RESTART_BUDGET`.
pub(super) const RESTART_COST: usize = 4096;

/// The budget for final blocks in one message: this, plus an amount for each compressed byte.
/// Without a limit, a message of final blocks would cost a copy of the window for every two bytes.
pub(super) const RESTART_BUDGET: usize = 256 << 10;
pub(super) const RESTART_BUDGET_PER_BYTE: usize = 64;

/// A decompressor for windows of 15 bits, which can read all smaller ones too.
pub(super) fn new() -> Inflate {
    Inflate::new(false, 15)
}

/// Discards the last stream. The next one may refer to `history`.
pub(super) fn restart(
    inflate: &mut Inflate,
    history: Option<&History>,
    output: &[u8],
) -> Result<(), Violation> {
    // This also resets the window's size to 15 bits.
    inflate.reset(false);
    let pieces = history.map_or([&[][..]; 2], History::pieces);
    let recent = &output[output.len().saturating_sub(WINDOW_MAX)..];
    for piece in pieces.into_iter().chain([recent]).filter(|piece| !piece.is_empty()) {
        inflate.set_dictionary(piece).map_err(|_| Violation::BadDeflate)?;
    }
    Ok(())
}

/// The decompression of one message from `inflate` to the end of `out`.
pub(super) struct MessageInflater<'a> {
    inflate: &'a mut Inflate,
    history: Option<&'a History>,
    out: &'a mut Vec<u8>,
    /// The message lies in `out` from `start` to `end`. The rest of `out` is free room.
    start: usize,
    end: usize,
    max: usize,
    /// The additional cost of final blocks so far.
    restarts: usize,
}

impl<'a> MessageInflater<'a> {
    /// `inflate` must have been restarted with `history`, or its last output must be the end of
    /// `history`.
    pub(super) fn new(
        inflate: &'a mut Inflate,
        history: Option<&'a History>,
        out: &'a mut Vec<u8>,
        max: usize,
    ) -> Self {
        let start = out.len();
        Self { inflate, history, out, start, end: start, max, restarts: 0 }
    }

    /// Appends the message to `out`, or nothing on an error. Also returns the work in bytes: the
    /// output, plus the copies of the window for final blocks.
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
            // A final block, after which another block may follow (section 7.2.3.4). zlib starts a
            // new stream there, but the protocol does not, so the window must be kept.
            let kept =
                self.history.map_or(0, History::len) + (self.end - self.start).min(WINDOW_MAX);
            budget = budget.checked_sub(RESTART_COST + kept).ok_or(Violation::BadDeflate)?;
            self.restarts += RESTART_COST + kept;
            restart(self.inflate, self.history, &self.out[self.start..self.end])?;
            if rest.is_empty() {
                // The sender omitted the empty block that should follow. The message is complete
                // without it.
                return Ok(());
            }
        }
        // An incomplete block would read the tail as data, or need more than the tail. It then
        // produces output or consumes the last byte too.
        let before = self.end;
        let (consumed, ended) = self.feed(&TAIL, InflateFlush::Block, 0)?;
        if rest.is_empty() && !ended && consumed == TAIL.len() - 1 && self.end == before {
            Ok(())
        } else {
            Err(Violation::BadDeflate)
        }
    }

    /// Decompresses until the end of `input` or of the stream. Returns how much of `input` was
    /// consumed, and whether the stream ended.
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
            // If room is left, it stopped because the input ended, or where `flush` told it to.
            if full || self.end < room {
                return Ok((consumed, false));
            }
        }
    }

    /// Makes room in `out` and returns its end. The end is the maximum length of the message if
    /// that is smaller.
    fn room(&mut self, hint: usize) -> usize {
        if self.end == self.out.len() {
            let made = self.end - self.start;
            // New room is filled with zeros, which takes time. The first guess fits text; each
            // later one doubles.
            let more = if made == 0 { hint.saturating_mul(4).clamp(128, 32 << 10) } else { made };
            let more = more.min(self.max - made);
            // Exact, and not doubled, because this buffer is kept.
            self.out.reserve_exact(more);
            self.out.resize(self.end + more, 0);
        }
        self.out.len()
    }
}
