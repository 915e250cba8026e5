//! Messages that are copied before a pass has changed them.

use alloc::vec::Vec;
use core::fmt;

use super::{
    Engine,
    pass::{BINARY, TEXT},
};
use crate::protocol::{frame::CONTROL_LEN_MAX, mask, utf8, violation::Violation};

/// A message of at most 65 535 bytes from a client, in one frame that lies whole in the input. Its
/// payload is still masked: see [`Engine::whole_message`].
#[derive(Clone, Copy)]
pub struct WholeMessage<'i> {
    is_text: bool,
    head_len: usize,
    key: [u8; 4],
    payload: &'i [u8],
}

impl WholeMessage<'_> {
    /// Whether it is a text message.
    #[must_use]
    #[inline]
    pub const fn is_text(&self) -> bool {
        self.is_text
    }

    /// The length of its payload in bytes.
    #[must_use]
    #[inline]
    pub const fn payload_len(&self) -> usize {
        self.payload.len()
    }

    /// The length of its frame in bytes: how many bytes of the input to skip after the copy.
    #[must_use]
    #[inline]
    pub const fn frame_len(&self) -> usize {
        self.head_len + self.payload.len()
    }

    /// Copies the payload to `out`, unmasked.
    ///
    /// # Errors
    ///
    /// [`Violation::InvalidUtf8`] if it is a text message whose payload is not UTF-8. A pass over
    /// the same input fails the connection.
    ///
    /// # Panics
    ///
    /// Unless `out` is as long as the payload.
    #[inline]
    pub fn copy_to(&self, out: &mut [u8]) -> Result<(), Violation> {
        mask::mask_to(self.payload, out, self.key);
        self.check(out)
    }

    /// [`copy_to`](Self::copy_to) new memory.
    ///
    /// # Errors
    ///
    /// Those of [`copy_to`](Self::copy_to).
    #[inline]
    pub fn to_vec(&self) -> Result<Vec<u8>, Violation> {
        let mut copy = Vec::with_capacity(self.payload.len());
        mask::copy_masked(self.payload, &mut copy, self.key);
        self.check(&copy)?;
        Ok(copy)
    }

    #[inline(always)]
    fn check(&self, copy: &[u8]) -> Result<(), Violation> {
        let is_ascii = || copy.len() <= CONTROL_LEN_MAX && utf8::is_ascii(copy);
        if self.is_text && !is_ascii() && !utf8::is_text(copy) {
            return Err(Violation::InvalidUtf8);
        }
        Ok(())
    }
}

impl fmt::Debug for WholeMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WholeMessage")
            .field("is_text", &self.is_text)
            .field("payload_len", &self.payload_len())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// The message with which `input` begins, for a caller that keeps messages. One step unmasks
    /// and copies it, without a pass. `None` if a pass is needed, which is no error.
    ///
    /// After the copy, go on behind [`frame_len`](WholeMessage::frame_len).
    ///
    /// ```
    /// # use windlass_ws::{Config, Engine};
    /// # let engine = Engine::new(&Config::server().into());
    /// let received = *b"\x81\x82\0\0\0\x01hhrest";
    /// let message = engine.whole_message(&received).unwrap();
    /// assert!(message.is_text());
    /// let mut copy = [0; 2];
    /// message.copy_to(&mut copy)?;
    /// assert_eq!((copy, &received[message.frame_len()..]), (*b"hh", &b"rest"[..]));
    /// # Ok::<(), windlass_ws::Violation>(())
    /// ```
    #[must_use]
    #[inline(always)]
    pub fn whole_message<'i>(&self, input: &'i [u8]) -> Option<WholeMessage<'i>> {
        let (&[first @ (TEXT | BINARY), second, ref key @ ..], rest) =
            input.split_first_chunk::<6>()?
        else {
            return None;
        };
        let is_text = first == TEXT;
        let len = second.wrapping_sub(0x80);
        if len < self.fast_len_end {
            let payload = rest.get(..usize::from(len))?;
            return Some(WholeMessage { is_text, head_len: 6, key: *key, payload });
        }
        let (_, len, key, rest) = self.medium(input)?;
        let payload = rest.get(..len)?;
        Some(WholeMessage { is_text, head_len: 8, key, payload })
    }

    /// How many bytes are missing behind `input` for the end of its first frame, if that frame is a
    /// binary message of 126 to 65 535 bytes from a client: 0 if it is complete. `None` in every
    /// other case, and while the engine waits for the rest of something.
    ///
    /// A caller that can read more at once, behind these bytes, spares the engine the assembly of
    /// the message.
    ///
    /// ```
    /// # use windlass_ws::{Config, Engine};
    /// # let engine = Engine::new(&Config::server().into());
    /// let begun = [0x82, 0xfe, 1, 0, 0, 0, 0, 0, 7, 7];
    /// assert_eq!(engine.missing(&begun), Some(254));
    /// assert_eq!(engine.missing(&begun[..7]), None, "the header is incomplete");
    /// ```
    #[must_use]
    #[inline]
    pub fn missing(&self, input: &[u8]) -> Option<usize> {
        let (first, len, _, rest) = self.medium(input)?;
        (first == BINARY).then(|| len.saturating_sub(rest.len()))
    }

    /// The first byte, the length and the key of a message whose length takes two bytes, and what
    /// follows its header.
    #[inline(always)]
    pub(super) fn medium<'i>(&self, input: &'i [u8]) -> Option<(u8, usize, [u8; 4], &'i [u8])> {
        let (&[first @ (TEXT | BINARY), 0xfe, high, low, ref key @ ..], rest) =
            input.split_first_chunk::<8>()?
        else {
            return None;
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        let limits = &self.config.limits;
        let allowed = len > CONTROL_LEN_MAX && len <= limits.frame_max && len <= limits.message_max;
        // 0: the state is unusual, or something is incomplete.
        (self.fast_len_end != 0 && allowed).then_some((first, len, *key, rest))
    }
}
