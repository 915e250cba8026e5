//! The fast path for a fragmented message whose frames are all in the input. It joins the payloads
//! in place, behind the header of a reply.
//!
//! 1. The scan reads the headers up to the last frame and changes nothing. It gives up on anything
//!    unusual: a control frame between the fragments, a violation, a frame that has not arrived.
//!    The slow path then handles the same bytes.
//! 2. Each payload is unmasked to behind the one before it. The headers between them are not sent,
//!    so no payload moves up.

use core::ops::Range;

use super::{
    Engine,
    pass::{BINARY, PassInput, TEXT},
    scratch::Output,
};
use crate::protocol::{
    frame::{CONTROL_LEN_MAX, Opcode, plain_len, write_plain},
    mask,
};

/// The first bytes of an unfinished message, of a continuation frame, and of the last one.
const FIRST_TEXT: u8 = TEXT & 0x7f;
const FIRST_BINARY: u8 = BINARY & 0x7f;
const CONTINUATION: u8 = 0;
const LAST: u8 = 0x80;

/// A client's data frame within the input.
struct DataFrame {
    first: u8,
    header_len: usize,
    len: usize,
    key: [u8; 4],
}

/// A fragmented message that lies in the input.
struct Fragments {
    frames: u32,
    /// The length of the message.
    len: usize,
}

/// A message that was joined in place.
pub(super) struct Joined {
    pub(super) text: bool,
    /// The range of the payload in the input. A reply ends where the payload does, and its header
    /// is already in place.
    pub(super) payload: Range<usize>,
}

impl PassInput<'_> {
    /// Joins the next message in place, if it is fragmented and complete.
    #[inline]
    pub(super) fn join_fragments(&mut self, engine: &Engine, out: &mut Output) -> Option<Joined> {
        let first = *self.bytes.get(self.at)?;
        if engine.fast_len_end == 0 || !matches!(first, FIRST_TEXT | FIRST_BINARY) {
            return None;
        }
        self.join(first == FIRST_TEXT, engine, out)
    }

    fn join(&mut self, text: bool, engine: &Engine, out: &mut Output) -> Option<Joined> {
        let Fragments { frames, len } = self.scan_fragments(engine)?;
        let head_len = plain_len(len as u64);
        let src = self.at + self.data_frame(self.at)?.header_len;
        if !out.has_room(src, head_len) {
            return None;
        }
        let start = out.make_room(src, head_len);
        let payload = start + head_len;
        let mut end = payload;
        for _ in 0..frames {
            let DataFrame { header_len, len, key, .. } = self.data_frame(self.at)?;
            let src = self.at + header_len;
            mask::unmask_down(self.bytes, end, 0, src, 0, len, key);
            self.at = src + len;
            end += len;
        }
        let opcode = if text { Opcode::Text } else { Opcode::Binary };
        write_plain(&mut self.bytes[start..payload], opcode, len);
        Some(Joined { text, payload: payload..end })
    }

    /// The fragments of the next message, if all of them are complete and allowed.
    fn scan_fragments(&self, engine: &Engine) -> Option<Fragments> {
        let limits = &engine.config.limits;
        let (mut at, mut len, mut frames) = (self.at, 0_usize, 0);
        loop {
            let frame = self.data_frame(at)?;
            at += frame.header_len + frame.len;
            len += frame.len;
            frames += 1;
            let allowed = frame.len <= limits.frame_max
                && len <= limits.message_max
                && frames <= limits.fragments_max
                && at <= self.bytes.len();
            match frame.first {
                _ if !allowed => return None,
                LAST => return Some(Fragments { frames, len }),
                CONTINUATION => {}
                _ if frames == 1 => {}
                _ => return None,
            }
        }
    }

    /// The frame at `at`, if its header is complete. Its payload has at most 65 535 bytes and may
    /// be incomplete.
    #[inline(always)]
    fn data_frame(&self, at: usize) -> Option<DataFrame> {
        let rest = self.bytes.get(at..)?;
        let (&[first, second, ref key @ ..], _) = rest.split_first_chunk::<6>()?;
        let short = usize::from(second.wrapping_sub(0x80));
        if short <= CONTROL_LEN_MAX {
            return Some(DataFrame { first, header_len: 6, len: short, key: *key });
        }
        let &[_, 0xfe, high, low, ref key @ ..] = rest.first_chunk::<8>()? else { return None };
        let len = usize::from(u16::from_be_bytes([high, low]));
        (len > CONTROL_LEN_MAX).then_some(DataFrame { first, header_len: 8, len, key: *key })
    }
}
