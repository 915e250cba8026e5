//! What the connections of one thread have in common.

use alloc::{boxed::Box, vec::Vec};
use core::fmt;

use crate::{Outcome, engine::Assembly, frame::CONTROL_LEN_MAX};

/// The most buffers that wait for the next message in pieces.
const SPARES_MAX: usize = 32;

/// The most bytes that they hold together.
const SPARE_BYTES_MAX: usize = 4 << 20;

/// The largest buffer that is kept for messages that are decompressed. There is one, as large as
/// the longest of them so far.
const WARM_BYTES_MAX: usize = 16 << 20;

/// The most bytes of room for copied output that are kept from one pass to the next.
const LOCAL_KEPT_MAX: usize = 1 << 20;

/// How many random bytes are fetched at a time, for masking keys of four.
const KEY_BYTES: usize = 256;

/// What the connections of one thread have in common: the output of the pass that runs, buffers for
/// messages that come in pieces, masking keys for clients, compressors. A thread needs one of them,
/// however many engines it has.
///
/// A new one holds no memory elsewhere. Spare buffers are at most 32, of 4 MiB together. Beside
/// them one buffer is kept for decompression, as large as the longest message that was
/// decompressed, but of 16 MiB at most: to decompress into fresh memory takes ten times as long.
/// What a pass has put together, a decompressed message say, and its output stay until the next
/// pass begins.
///
/// ```
/// let mut scratch = windlass_ws::Scratch::new();
/// scratch.set_second(17);
/// ```
pub struct Scratch {
    pub(crate) out: Output,
    pub(crate) held: Held,
}

/// What is looked at and does not lie in the input.
pub(crate) struct Held {
    /// The message that was put together.
    pub(crate) message: Option<Box<Assembly>>,
    /// The payload of the control frame that was put together.
    pub(crate) control: [u8; CONTROL_LEN_MAX],
    /// As [`Scratch::set_second`] was told, if it was.
    pub(crate) second: Option<u32>,
}

impl Scratch {
    /// An empty one.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            out: Output::new(),
            held: Held { message: None, control: [0; CONTROL_LEN_MAX], second: None },
        }
    }

    /// Tells which second it is, of any clock: control frames are counted per second, for
    /// [`Limits::controls_per_second_max`](crate::Limits::controls_per_second_max). Before the
    /// first call they are not counted.
    pub fn set_second(&mut self, second: u32) {
        self.held.second = Some(second);
    }

    /// What is to be sent, in order: the output of the pass that had this `outcome`, with the
    /// `input` it was given. It stays until the next pass, or the next message sent with this
    /// scratch, whichever engine's that is.
    ///
    /// # Panics
    ///
    /// If it is gone already: another connection's would be sent. If `input` is shorter than what
    /// the pass was given.
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

    /// How many bytes were compressed and decompressed with it, so that a loop can bound what one
    /// turn of it spends on that.
    #[cfg(feature = "deflate")]
    #[must_use]
    pub const fn codec_bytes(&self) -> crate::deflate::CodecBytes {
        self.out.shared.bytes()
    }

    /// Forgets the output of the last pass.
    #[inline]
    pub(crate) fn begin(&mut self) {
        (self.out.start, self.out.end) = (0, 0);
        self.out.pass = self.out.pass.wrapping_add(1);
        if !self.out.segments.is_empty() || self.held.message.is_some() {
            self.clear();
        }
    }

    #[cold]
    fn clear(&mut self) {
        self.out.settle(&mut self.held);
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
            .field("second", &self.held.second)
            .finish_non_exhaustive()
    }
}

/// A piece of the output.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Segment {
    /// Of the input.
    Input { start: usize, end: usize },
    /// Of the copied bytes.
    Local { start: usize, end: usize },
    /// A carried message, from `start` on.
    Carried { index: usize, start: usize },
}

/// Where the reply to the message that is looked at can be built.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// In the input, at the end of the open range. It would go on to `end`.
    Input { end: usize },
    /// In the assembled message, from `start` on.
    Held { start: usize },
    /// Nowhere: it is copied.
    Outside,
}

/// The output of a pass, and what is needed to make more of it.
///
/// The order is that of `segments`, then the open range `start..end` of the input, which grows as
/// long as one reply follows another in place. Input below `end` belongs to the output or is free;
/// no byte of it is looked at again.
pub(crate) struct Output {
    /// Which pass it is of, so that the output of one is not taken for another's.
    pub(crate) pass: u32,
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Where the reply to the message that is looked at can be built, if it is not known to be the
    /// open range.
    pub(crate) reply_place: Place,
    pub(crate) segments: Vec<Segment>,
    /// Copied bytes, with gaps between the segments.
    pub(crate) local: Vec<u8>,
    /// Messages in pieces whose replies were built around them.
    #[expect(
        clippy::vec_box,
        reason = "boxes go to and from the engines, where one has to be a word"
    )]
    carried: Vec<Box<Assembly>>,
    /// Whether the message that is looked at is the next to be carried.
    carries_held: bool,
    #[expect(clippy::vec_box, reason = "the same")]
    spares: Vec<Box<Assembly>>,
    spare_bytes: usize,
    /// The buffer for messages that are decompressed.
    warm: Option<Box<Assembly>>,
    keys: [u8; KEY_BYTES],
    /// How many bytes of `keys` are still secret.
    keys_left: usize,
    #[cfg(feature = "deflate")]
    pub(crate) shared: crate::deflate::Shared,
}

impl Output {
    const fn new() -> Self {
        Self {
            pass: 0,
            start: 0,
            end: 0,
            reply_place: Place::Outside,
            segments: Vec::new(),
            local: Vec::new(),
            carried: Vec::new(),
            carries_held: false,
            spares: Vec::new(),
            spare_bytes: 0,
            warm: None,
            keys: [0; KEY_BYTES],
            keys_left: 0,
            #[cfg(feature = "deflate")]
            shared: crate::deflate::Shared::new(),
        }
    }

    /// Takes the message that was looked at, for its reply was built around it, or else to the
    /// spares.
    #[inline]
    pub(crate) fn settle(&mut self, held: &mut Held) {
        if let Some(assembly) = held.message.take() {
            if core::mem::take(&mut self.carries_held) {
                self.carried.push(assembly);
            } else {
                self.recycle(assembly);
            }
        }
    }

    fn clear(&mut self) {
        self.segments.clear();
        self.local.clear();
        self.local.shrink_to(LOCAL_KEPT_MAX);
        while let Some(assembly) = self.carried.pop() {
            self.recycle(assembly);
        }
    }

    /// Ends the open range, so that something else can follow it. What follows in the input begins
    /// a new one.
    pub(crate) fn close_range(&mut self) {
        if self.start != self.end {
            self.segments.push(Segment::Input { start: self.start, end: self.end });
            self.start = self.end;
        }
    }

    /// Puts `local[start..]` behind what there is.
    pub(crate) fn add_local(&mut self, start: usize) {
        self.close_range();
        let end = self.local.len();
        match self.segments.last_mut() {
            Some(Segment::Local { end: last, .. }) if *last == start => *last = end,
            _ => self.segments.push(Segment::Local { start, end }),
        }
    }

    /// Puts the message that is being looked at behind what there is, from `start` on.
    pub(crate) fn add_held(&mut self, start: usize) {
        self.close_range();
        self.carries_held = true;
        self.segments.push(Segment::Carried { index: self.carried.len(), start });
    }

    /// Ends the output of a pass that is not one range of its `input`. Returns its length.
    #[cold]
    pub(crate) fn gathered(&mut self, input: &[u8]) -> usize {
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

    /// An empty buffer: the smallest there is, for what has come of a message says nothing of how
    /// long it gets.
    pub(crate) fn spare(&mut self) -> Box<Assembly> {
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

    /// An empty buffer for a message that is decompressed: memory that was used before, if there is
    /// some.
    #[cfg(feature = "deflate")]
    pub(crate) fn warm(&mut self) -> Box<Assembly> {
        let mut assembly = self.warm.take().unwrap_or_else(|| self.spare());
        assembly.is_warm = true;
        assembly
    }

    /// Keeps a buffer for the next message, within bounds.
    pub(crate) fn recycle(&mut self, mut assembly: Box<Assembly>) {
        if core::mem::take(&mut assembly.is_warm) {
            let kept = self.warm.as_ref().map_or(0, |warm| warm.bytes.capacity());
            if (kept + 1..=WARM_BYTES_MAX).contains(&assembly.bytes.capacity()) {
                assembly.clear();
                let Some(smaller) = self.warm.replace(assembly) else { return };
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

    /// A masking key that nobody can predict.
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
        let one = out.spare();
        assert!(one.bytes.capacity() >= 1 << 20, "a spare keeps its memory");
        out.recycle(Box::new(Assembly::new()));
        let smallest = out.spare();
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
