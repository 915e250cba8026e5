//! The state that all connections of one thread share.

use alloc::{boxed::Box, vec::Vec};
use core::{fmt, ops::Range};

use super::{assembly::Assembly, message_buffer::MessageBuffer, pass::Outcome};
use crate::protocol::frame::CONTROL_LEN_MAX;

/// The most spare buffers for messages in pieces.
const SPARES_MAX: usize = 32;

/// The most bytes that all spare buffers hold together.
const SPARE_BYTES_MAX: usize = 4 << 20;

/// The largest buffer that is kept for decompression. There is one such buffer, as large as the
/// longest decompressed message so far.
const INFLATE_BUFFER_BYTES_MAX: usize = 16 << 20;

/// The most room for copied output that is kept from one pass to the next, in bytes.
const LOCAL_KEPT_MAX: usize = 1 << 20;

/// How many random bytes are fetched at a time. A masking key takes four.
const KEY_BYTES: usize = 256;

/// The state that all connections of one thread share: the output of the current pass, buffers for
/// messages in pieces, masking keys for clients, compressors. A thread needs one, however many
/// engines it has.
///
/// A new one has allocated nothing. There are at most 32 spare buffers, of 4 MiB together. One more
/// buffer is kept for decompression, as large as the longest decompressed message but at most 16
/// MiB. Decompressing into fresh memory takes far longer. The output of a pass, and a
/// message that it assembled or decompressed, stay until the next pass begins.
///
/// ```
/// let mut scratch = windlass_ws::Scratch::new();
/// scratch.set_second(17);
/// ```
pub struct Scratch {
    pub(crate) out: Output,
    pub(crate) buffers: EventBuffers,
}

/// Data of the current event that does not lie in the input.
pub(crate) struct EventBuffers {
    /// The assembled message.
    pub(crate) message: Option<Box<Assembly>>,
    /// The payload of the assembled control frame.
    pub(crate) control: [u8; CONTROL_LEN_MAX],
    /// The value of [`Scratch::set_second`], once it was called.
    pub(crate) second: Option<u32>,
}

impl Scratch {
    /// An empty scratch.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            out: Output::new(),
            buffers: EventBuffers { message: None, control: [0; CONTROL_LEN_MAX], second: None },
        }
    }

    /// Sets the current second, of any clock. Control frames are counted per second for
    /// [`EngineLimits::controls_per_second_max`](crate::EngineLimits::controls_per_second_max).
    /// Before the first call they are not counted.
    pub fn set_second(&mut self, second: u32) {
        self.buffers.second = Some(second);
    }

    /// The bytes to send, in order: the output of the pass with this `outcome`. Pass the same
    /// `input` as in that pass. The output stays until the next pass or message with this scratch,
    /// of any engine.
    ///
    /// # Panics
    ///
    /// If a later pass or message has replaced the output, because this would send data of another
    /// connection. If `input` is shorter than the input of the pass.
    pub fn output<'a>(
        &'a self,
        outcome: &Outcome,
        input: &'a [u8],
    ) -> impl Iterator<Item = &'a [u8]> + Clone {
        assert!(
            outcome.pass == self.out.pass,
            "the scratch has been used since: this output is gone"
        );
        self.out.pieces(input)
    }

    /// Takes back the buffer of a message that was [taken](crate::Pass::take_message) out of a
    /// pass, of this or another scratch, for later messages.
    pub fn recycle(&mut self, message: MessageBuffer) {
        self.out.recycle(message.into_assembly());
    }

    /// How many bytes were compressed and decompressed with this scratch. A loop can use it to
    /// bound the work of one turn.
    #[cfg(feature = "deflate")]
    #[must_use]
    pub const fn codec_bytes(&self) -> crate::deflate::CodecBytes {
        self.out.codec_pool.bytes()
    }

    /// Discards the output of the last pass.
    #[inline]
    pub(crate) fn begin(&mut self) {
        (self.out.start, self.out.end) = (0, 0);
        self.out.pass = self.out.pass.wrapping_add(1);
        if !self.out.segments.is_empty() || self.buffers.message.is_some() {
            self.clear();
        }
    }

    /// Sets the output that the pass continues.
    #[inline]
    pub(super) fn set_unsent(&mut self, unsent: Range<usize>) {
        (self.out.start, self.out.end) = (unsent.start, unsent.end);
    }

    #[cold]
    fn clear(&mut self) {
        self.out.store_message(&mut self.buffers);
        self.out.clear();
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch")
            .field("spares", &self.out.spares.len())
            .field("spare_bytes", &self.out.spare_bytes)
            .field("second", &self.buffers.second)
            .finish_non_exhaustive()
    }
}

/// A piece of the output.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Segment {
    /// A range of the input.
    Input { start: usize, end: usize },
    /// A range of the copied bytes.
    Local { start: usize, end: usize },
    /// A carried message, from `start` on.
    Carried { index: usize, start: usize },
}

/// The place where a reply to the current message can be built.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReplyLocation {
    /// In the input, at the end of the open range. The reply would extend the range to `end`.
    Input { end: usize },
    /// In the assembled message, from `start` on.
    Assembled { start: usize },
    /// Nowhere. The reply is copied.
    Copied,
}

/// The output of a pass, and the state to build more of it.
///
/// The output is `segments` in order, then the open range `start..end` of the input. The range
/// grows while replies follow each other in place. Input below `end` belongs to the output or is
/// free, and is never read again.
pub(crate) struct Output {
    /// The number of its pass, so that the output of one pass is not taken for another's.
    pub(crate) pass: u32,
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// The place for a reply to the current message, unless it is known to be the open range.
    pub(crate) reply_location: ReplyLocation,
    pub(crate) segments: Vec<Segment>,
    /// Copied bytes, with gaps between the segments.
    pub(crate) local: Vec<u8>,
    /// Messages in pieces, with the replies built around them.
    #[expect(
        clippy::vec_box,
        reason = "boxes go to and from the engines, where one has to be a word"
    )]
    carried: Vec<Box<Assembly>>,
    /// Whether the current message is the next one to be carried.
    carries_current: bool,
    #[expect(clippy::vec_box, reason = "the same")]
    spares: Vec<Box<Assembly>>,
    spare_bytes: usize,
    /// The buffer for decompressed messages.
    inflate_buffer: Option<Box<Assembly>>,
    keys: [u8; KEY_BYTES],
    /// How many bytes of `keys` are unused.
    keys_left: usize,
    #[cfg(feature = "deflate")]
    pub(crate) codec_pool: crate::deflate::CodecPool,
}

impl Output {
    const fn new() -> Self {
        Self {
            pass: 0,
            start: 0,
            end: 0,
            reply_location: ReplyLocation::Copied,
            segments: Vec::new(),
            local: Vec::new(),
            carried: Vec::new(),
            carries_current: false,
            spares: Vec::new(),
            spare_bytes: 0,
            inflate_buffer: None,
            keys: [0; KEY_BYTES],
            keys_left: 0,
            #[cfg(feature = "deflate")]
            codec_pool: crate::deflate::CodecPool::new(),
        }
    }

    /// Stores the last message: with the carried ones if its reply was built around it, else with
    /// the spare buffers.
    #[inline]
    pub(crate) fn store_message(&mut self, buffers: &mut EventBuffers) {
        if let Some(assembly) = buffers.message.take() {
            if core::mem::take(&mut self.carries_current) {
                self.carried.push(assembly);
            } else {
                self.recycle(assembly);
            }
        }
    }

    /// Takes the current message, unless its reply was built around it.
    pub(crate) fn take_message(&self, buffers: &mut EventBuffers) -> Option<Box<Assembly>> {
        if self.carries_current { None } else { buffers.message.take() }
    }

    fn clear(&mut self) {
        self.segments.clear();
        self.local.clear();
        self.local.shrink_to(LOCAL_KEPT_MAX);
        while let Some(assembly) = self.carried.pop() {
            self.recycle(assembly);
        }
    }

    /// Ends the open range, so that another segment can follow. Later input starts a new range.
    pub(crate) fn close_range(&mut self) {
        if self.start != self.end {
            self.segments.push(Segment::Input { start: self.start, end: self.end });
            self.start = self.end;
        }
    }

    /// Appends `local[start..]` to the output.
    pub(crate) fn add_local(&mut self, start: usize) {
        self.close_range();
        let end = self.local.len();
        match self.segments.last_mut() {
            Some(Segment::Local { end: last, .. }) if *last == start => *last = end,
            _ => self.segments.push(Segment::Local { start, end }),
        }
    }

    /// Appends the current message to the output, from `start` on.
    pub(crate) fn add_assembled(&mut self, start: usize) {
        self.close_range();
        self.carries_current = true;
        self.segments.push(Segment::Carried { index: self.carried.len(), start });
    }

    /// Ends the output of a pass that is not one range of its `input`. Returns its length.
    #[cold]
    pub(crate) fn finish_gathered(&mut self, input: &[u8]) -> usize {
        self.close_range();
        self.pieces(input).map(<[u8]>::len).sum()
    }

    pub(crate) fn pieces<'a>(&'a self, input: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + Clone {
        let open = &input[self.start..self.end];
        self.segments
            .iter()
            .map(move |segment| match *segment {
                Segment::Input { start, end } => &input[start..end],
                Segment::Local { start, end } => &self.local[start..end],
                Segment::Carried { index, start } => &self.carried[index].bytes[start..],
            })
            .chain((!open.is_empty()).then_some(open))
    }

    /// An empty buffer: the smallest spare one, because the final length of the message is unknown.
    pub(crate) fn take_spare(&mut self) -> Box<Assembly> {
        let smallest = (0..self.spares.len()).min_by_key(|&at| self.spares[at].bytes.capacity());
        match smallest {
            Some(at) => {
                let assembly = self.spares.swap_remove(at);
                self.spare_bytes -= assembly.bytes.capacity();
                assembly
            }
            None => Box::new(Assembly::new()),
        }
    }

    /// An empty buffer for a decompressed message. Memory that was used before is preferred.
    #[cfg(feature = "deflate")]
    pub(crate) fn take_inflate_buffer(&mut self) -> Box<Assembly> {
        let mut assembly = self.inflate_buffer.take().unwrap_or_else(|| self.take_spare());
        assembly.is_inflate_buffer = true;
        assembly
    }

    /// Keeps a buffer for a later message, within the limits.
    pub(crate) fn recycle(&mut self, mut assembly: Box<Assembly>) {
        if core::mem::take(&mut assembly.is_inflate_buffer) {
            let kept = self.inflate_buffer.as_ref().map_or(0, |kept| kept.bytes.capacity());
            if (kept + 1..=INFLATE_BUFFER_BYTES_MAX).contains(&assembly.bytes.capacity()) {
                assembly.clear();
                let Some(smaller) = self.inflate_buffer.replace(assembly) else { return };
                assembly = smaller;
            }
        }
        let held = assembly.bytes.capacity();
        if self.spares.len() < SPARES_MAX && self.spare_bytes + held <= SPARE_BYTES_MAX {
            assembly.clear();
            self.spare_bytes += held;
            self.spares.push(assembly);
        }
    }

    /// An unpredictable masking key.
    pub(crate) fn key(&mut self, entropy: fn(&mut [u8])) -> [u8; 4] {
        if self.keys_left == 0 {
            entropy(&mut self.keys);
            self.keys_left = KEY_BYTES;
        }
        self.keys_left -= 4;
        let at = self.keys_left;
        let mut key = [0; 4];
        key.copy_from_slice(&self.keys[at..at + 4]);
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spares_are_bounded_in_number_and_in_bytes() {
        let mut out = Output::new();
        for _ in 0..2 * SPARES_MAX {
            out.recycle(Box::new(Assembly::new()));
        }
        assert_eq!(out.spares.len(), SPARES_MAX);
        let mut out = Output::new();
        for _ in 0..8 {
            let mut assembly = Box::new(Assembly::new());
            assembly.bytes.reserve_exact(1 << 20);
            out.recycle(assembly);
            assert!(out.spare_bytes <= SPARE_BYTES_MAX);
        }
        assert_eq!(out.spares.len(), 4, "1 MiB each");
        let one = out.take_spare();
        assert!(one.bytes.capacity() >= 1 << 20, "a spare keeps its memory");
        out.recycle(Box::new(Assembly::new()));
        let smallest = out.take_spare();
        assert_eq!(
            smallest.bytes.capacity(),
            0,
            "a byte of a ping pins no buffer of a long message"
        );
        out.recycle(one);
        let held = out.spares.iter().map(|spare| spare.bytes.capacity()).sum::<usize>();
        assert_eq!(out.spare_bytes, held);
    }

    #[test]
    fn every_key_is_new_and_entropy_is_asked_for_64_at_a_time() {
        fn entropy(bytes: &mut [u8]) {
            use core::sync::atomic::{AtomicU8, Ordering};
            static CALLS: AtomicU8 = AtomicU8::new(0);
            let call = CALLS.fetch_add(1, Ordering::Relaxed);
            for (at, byte) in bytes.iter_mut().enumerate() {
                *byte = if at % 4 == 0 { (at / 4) as u8 } else { call };
            }
        }
        let mut out = Output::new();
        let mut seen: Vec<[u8; 4]> = (0..192).map(|_| out.key(entropy)).collect();
        assert_eq!(seen.iter().map(|key| key[1]).max(), Some(2), "three calls for 192 keys");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 192);
    }
}
