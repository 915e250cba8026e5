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
// Without a tag of its own it would be told from the insides of its variants, with more
// instructions.
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
    /// The peer has broken the protocol or a limit. The Close frame that says so is in the output.
    /// Nothing follows.
    Violation(Violation),
}

/// What a pass yields, before it is given the means to answer.
///
/// The long way yields it, not the event itself, so that the compiler can keep an event of the
/// short way in registers: a third of the instructions of an echo were copies.
pub(super) enum Found<'a> {
    /// With the end of the range that a reply makes of the open one, if there is no more to it; the
    /// same for bytes.
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
    /// It is known to be UTF-8, but the compiler is not told so, for which it would have to be
    /// validated again, before somebody looks at it: it came in pieces, or is ASCII.
    Checked(&'a [u8]),
}

impl<'a> Text<'a> {
    #[inline(always)]
    pub(super) const fn new(
        payload: Payload<'a>,
        reply_end: Option<usize>,
        outbox: Outbox<'a>,
    ) -> Self {
        Self { payload: Cell::new(payload), reply_end, outbox }
    }

    /// The text.
    #[must_use]
    #[inline]
    pub fn as_str(&self) -> &'a str {
        payload_text(&self.payload)
    }

    /// Its bytes, which are UTF-8.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.payload.get().as_bytes()
    }

    /// Sends it back as it is, without a copy where that can be.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] after the Close frame.
    #[inline]
    pub fn reply(self) -> Result<(), SendError> {
        let bytes = self.as_bytes();
        let mut outbox = self.outbox;
        outbox.send_back(Opcode::Text, bytes, self.reply_end)
    }

    /// The text, and what sends something else while it is looked at.
    #[must_use]
    #[inline]
    pub fn split(self) -> (&'a str, Outbox<'a>) {
        (self.as_str(), self.outbox)
    }

    /// The message, which can still be sent back, and what sends that or something else while it is
    /// looked at.
    #[must_use]
    #[inline(always)]
    pub fn detach(self) -> (Received<'a>, Outbox<'a>) {
        (Received { payload: Content::Text(self.payload), reply_end: self.reply_end }, self.outbox)
    }
}

/// A message of either kind, apart from what sends: for who looks at it while he sends, and may
/// send it back in the end. See [`Text::detach`], [`Binary::detach`] and [`Outbox::reply`].
pub struct Received<'a> {
    payload: Content<'a>,
    reply_end: Option<usize>,
}

enum Content<'a> {
    Text(Cell<Payload<'a>>),
    Binary(&'a [u8]),
}

impl<'a> Received<'a> {
    /// Whether it is text.
    #[must_use]
    #[inline]
    pub const fn is_text(&self) -> bool {
        matches!(self.payload, Content::Text(_))
    }

    /// Its bytes.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &'a [u8] {
        match &self.payload {
            Content::Text(payload) => payload.get().as_bytes(),
            Content::Binary(bytes) => bytes,
        }
    }

    /// Its text, if it is text. Text that came in pieces is validated again for the compiler's
    /// sake: who only passes it on does better with [`as_bytes`](Self::as_bytes).
    #[must_use]
    pub fn as_str(&self) -> Option<&'a str> {
        match &self.payload {
            Content::Text(payload) => Some(payload_text(payload)),
            Content::Binary(_) => None,
        }
    }

    #[inline]
    pub(super) const fn opcode(&self) -> Opcode {
        if self.is_text() { Opcode::Text } else { Opcode::Binary }
    }

    pub(super) const fn reply_end(&self) -> Option<usize> {
        self.reply_end
    }
}

impl fmt::Debug for Received<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("is_text", &self.is_text())
            .field("len", &self.as_bytes().len())
            .finish_non_exhaustive()
    }
}

impl<'a> Payload<'a> {
    #[inline]
    const fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Checked(bytes) => bytes,
        }
    }
}

/// The text of a payload, which is kept for the next time.
#[inline]
fn payload_text<'a>(payload: &Cell<Payload<'a>>) -> &'a str {
    match payload.get() {
        Payload::Text(text) => text,
        Payload::Checked(bytes) => {
            let text = known_text(bytes);
            payload.set(Payload::Text(text));
            text
        }
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
    pub(super) const fn new(
        bytes: &'a mut [u8],
        reply_end: Option<usize>,
        outbox: Outbox<'a>,
    ) -> Self {
        Self { bytes, reply_end, outbox }
    }

    /// Sends it back, as it is now, without a copy where that can be.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] after the Close frame.
    #[inline]
    pub fn reply(self) -> Result<(), SendError> {
        let mut outbox = self.outbox;
        outbox.send_back(Opcode::Binary, self.bytes, self.reply_end)
    }

    /// The bytes, and what sends something else while they are looked at.
    #[must_use]
    #[inline]
    pub fn split(self) -> (&'a mut [u8], Outbox<'a>) {
        (self.bytes, self.outbox)
    }

    /// The message, which can still be sent back, and what sends that or something else while it is
    /// looked at.
    #[must_use]
    #[inline(always)]
    pub fn detach(self) -> (Received<'a>, Outbox<'a>) {
        (Received { payload: Content::Binary(self.bytes), reply_end: self.reply_end }, self.outbox)
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
