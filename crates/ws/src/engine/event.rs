//! What a pass yields.

use core::{
    cell::Cell,
    fmt,
    ops::{Deref, DerefMut},
};

use crate::{Close, Opcode, Outbox, SendError, Violation};

/// What has come.
#[derive(Debug)]
#[non_exhaustive]
// Without a tag of its own it would be told from the insides of its variants, with more instructions.
#[repr(u8)]
pub enum Event<'a> {
    /// A message of text.
    Text(Text<'a>),
    /// A message of bytes.
    Binary(Binary<'a>),
    /// A ping, which has been answered.
    Ping(&'a [u8]),
    /// A pong.
    Pong(&'a [u8]),
    /// The peer's Close frame. It has been answered, if it was not the answer. Nothing follows.
    Close(Close<'a>),
    /// The peer has broken the protocol or a limit. The Close frame that says so is in the output. Nothing follows.
    Violation(Violation),
}

/// What a pass yields, before it is given the means to answer.
///
/// The long way yields it, not the event itself, so that the compiler can keep an event of the short way in registers: a third of the
/// instructions of an echo were copies.
pub(super) enum Found<'a> {
    /// With the end of the range that a reply makes of the open one, if there is no more to it; the same for bytes.
    Text(Payload<'a>, Option<usize>),
    Binary(&'a mut [u8], Option<usize>),
    Ping(&'a [u8]),
    Pong(&'a [u8]),
    Close(Close<'a>),
    Violation(Violation),
}

impl<'a> Found<'a> {
    #[inline(always)]
    pub(super) fn event(self, outbox: Outbox<'a>) -> Event<'a> {
        match self {
            Self::Text(payload, reply_end) => Event::Text(Text::new(payload, reply_end, outbox)),
            Self::Binary(bytes, reply_end) => Event::Binary(Binary::new(bytes, reply_end, outbox)),
            Self::Ping(payload) => Event::Ping(payload),
            Self::Pong(payload) => Event::Pong(payload),
            Self::Close(close) => Event::Close(close),
            Self::Violation(violation) => Event::Violation(violation),
        }
    }
}

/// A message of text.
pub struct Text<'a> {
    payload: Cell<Payload<'a>>,
    reply_end: Option<usize>,
    outbox: Outbox<'a>,
}

/// The payload of a message of text.
#[derive(Clone, Copy)]
pub(super) enum Payload<'a> {
    Text(&'a str),
    /// It is known to be UTF-8, but the compiler is not told so, for which it would have to be validated again, before somebody looks at it: it came
    /// in pieces, or is ASCII.
    Checked(&'a [u8]),
}

impl<'a> Text<'a> {
    #[inline(always)]
    pub(super) const fn new(payload: Payload<'a>, reply_end: Option<usize>, outbox: Outbox<'a>) -> Self {
        Self { payload: Cell::new(payload), reply_end, outbox }
    }

    /// The text.
    #[must_use]
    #[inline]
    pub fn as_str(&self) -> &'a str {
        match self.payload.get() {
            Payload::Text(text) => text,
            Payload::Checked(bytes) => {
                let text = known_text(bytes);
                self.payload.set(Payload::Text(text));
                text
            }
        }
    }

    /// Its bytes, which are UTF-8.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &'a [u8] {
        match self.payload.get() {
            Payload::Text(text) => text.as_bytes(),
            Payload::Checked(bytes) => bytes,
        }
    }

    /// Sends it back as it is, without a copy where that can be.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] after the Close frame.
    #[inline]
    pub fn reply(self) -> Result<(), SendError> {
        let bytes = self.as_bytes();
        self.outbox.reply(Opcode::Text, bytes, self.reply_end)
    }

    /// The text, and what sends something else while it is looked at.
    #[must_use]
    #[inline]
    pub fn split(self) -> (&'a str, Outbox<'a>) {
        (self.as_str(), self.outbox)
    }
}

/// Text that was checked.
#[inline(never)]
fn known_text(bytes: &[u8]) -> &str {
    simdutf8::basic::from_utf8(bytes).expect("the text was checked")
}

impl Deref for Text<'_> {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text").field("len", &self.as_bytes().len()).finish_non_exhaustive()
    }
}

/// A message of bytes, which may be changed.
pub struct Binary<'a> {
    bytes: &'a mut [u8],
    reply_end: Option<usize>,
    outbox: Outbox<'a>,
}

impl<'a> Binary<'a> {
    #[inline(always)]
    pub(super) const fn new(bytes: &'a mut [u8], reply_end: Option<usize>, outbox: Outbox<'a>) -> Self {
        Self { bytes, reply_end, outbox }
    }

    /// Sends it back, as it is now, without a copy where that can be.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] after the Close frame.
    #[inline]
    pub fn reply(self) -> Result<(), SendError> {
        self.outbox.reply(Opcode::Binary, self.bytes, self.reply_end)
    }

    /// The bytes, and what sends something else while they are looked at.
    #[must_use]
    #[inline]
    pub fn split(self) -> (&'a mut [u8], Outbox<'a>) {
        (self.bytes, self.outbox)
    }
}

impl Deref for Binary<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl DerefMut for Binary<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

impl fmt::Debug for Binary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binary").field("len", &self.bytes.len()).finish_non_exhaustive()
    }
}
