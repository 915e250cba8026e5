//! The events of a pass.

use core::{
    fmt,
    ops::{Deref, DerefMut},
    str::Utf8Error,
};

use super::{Outbox, error::FrameSendError};
use crate::protocol::{close::Close, frame::Opcode, violation::Violation};

/// An event of a [`Pass`](crate::Pass).
///
/// ```
/// use windlass_ws::EngineEvent;
///
/// fn describe(event: &EngineEvent<'_>) -> String {
///     match event {
///         EngineEvent::Text(text) => format!("text of {} bytes", text.as_bytes().len()),
///         EngineEvent::Binary(bytes) => format!("{} bytes", bytes.len()),
///         EngineEvent::Close(close) => format!("closed: {}", close.reason),
///         EngineEvent::Violation(violation) => format!("failed: {violation}"),
///         _ => "ping or pong".to_owned(),
///     }
/// }
/// # use windlass_ws::{Config, Engine, Scratch};
/// # let (mut engine, mut scratch) = (Engine::new(&Config::server().into()), Scratch::new());
/// let mut received = [0x82, 0x81, 0, 0, 0, 0, 7];
/// let mut pass = engine.process(&mut received, &mut scratch);
/// assert_eq!(describe(&pass.next().unwrap()), "1 bytes");
/// ```
#[derive(Debug)]
#[non_exhaustive]
// Without an explicit tag, the compiler derives it from the variants' contents, which takes more
// instructions.
#[repr(u8)]
pub enum EngineEvent<'a> {
    /// A text message.
    Text(Text<'a>),
    /// A binary message.
    Binary(Binary<'a>),
    /// A piece of a message, if [`Engine::set_pieces`](crate::Engine::set_pieces) asks for them.
    Piece(Piece<'a>),
    /// A ping. The engine has answered it.
    Ping(&'a [u8]),
    /// A pong.
    Pong(&'a [u8]),
    /// The peer's Close frame. The engine has answered it, unless it was itself the answer. Nothing
    /// follows.
    Close(Close<'a>),
    /// The peer has broken the protocol or a limit. The output contains a Close frame with the
    /// reason. Nothing follows.
    Violation(Violation),
}

/// An event before it gets its [`Outbox`].
///
/// The slow path yields this type instead of the event, so that the compiler can keep an event of
/// the fast path in registers. Copies were a large part of the instructions of an echo.
pub(super) enum EventContent<'a> {
    /// The number is the new end of the open range if a reply is built in place and needs nothing
    /// more. The same applies to `Binary`.
    Text(TextBytes<'a>, Option<usize>),
    Binary(&'a mut [u8], Option<usize>),
    Piece(Piece<'a>),
    Ping(&'a [u8]),
    Pong(&'a [u8]),
    Close(Close<'a>),
    Violation(Violation),
}

impl<'a> EventContent<'a> {
    #[inline(always)]
    pub(super) fn into_event(self, outbox: Outbox<'a>) -> EngineEvent<'a> {
        match self {
            Self::Text(payload, reply_end) => {
                EngineEvent::Text(Text::new(payload, reply_end, outbox))
            }
            Self::Binary(bytes, reply_end) => {
                EngineEvent::Binary(Binary::new(bytes, reply_end, outbox))
            }
            Self::Piece(piece) => EngineEvent::Piece(piece),
            Self::Ping(payload) => EngineEvent::Ping(payload),
            Self::Pong(payload) => EngineEvent::Pong(payload),
            Self::Close(close) => EngineEvent::Close(close),
            Self::Violation(violation) => EngineEvent::Violation(violation),
        }
    }
}

/// A piece of a message that has not arrived whole, as it came, or of a compressed one. A message
/// that lies whole and uncompressed in the input comes as [`EngineEvent::Text`] or
/// [`EngineEvent::Binary`].
///
/// A compressed message is decompressed while it arrives, to pieces of at most 64 KiB. Until its
/// end it has a decompressor of its own.
/// [`inflate_ratio_max`](crate::EngineLimits::inflate_ratio_max) bounds each beginning of it.
///
/// [`EngineLimits`](crate::EngineLimits) bound the whole message, though it is not held.
///
/// ```
/// use windlass_ws::EngineEvent;
/// # use windlass_ws::{Config, Engine, Scratch};
/// # let (mut engine, mut scratch) = (Engine::new(&Config::server().into()), Scratch::new());
///
/// engine.set_pieces(true);
/// let mut received = [0x82, 0x83, 0, 0, 0, 0, 1, 2];
/// let mut pass = engine.process(&mut received, &mut scratch);
/// let Some(EngineEvent::Piece(piece)) = pass.next() else { panic!("the message is incomplete") };
/// assert_eq!((&*piece.bytes, piece.is_last), (&[1, 2][..], false));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Piece<'a> {
    /// The bytes, which may be changed. A piece of a text may end within a character.
    pub bytes: &'a mut [u8],
    /// Whether it is a text message. Its bytes have been validated as far as they came.
    pub is_text: bool,
    /// Whether the message ends with this piece, which may be empty then.
    pub is_last: bool,
}

/// A text message.
///
/// ```
/// use windlass_ws::{EngineEvent, MessageRef};
/// # use windlass_ws::{Config, Engine, Scratch};
/// # let (mut engine, mut scratch) = (Engine::new(&Config::server().into()), Scratch::new());
///
/// let mut received = [0x81, 0x82, 0, 0, 0, 0, b'h', b'i'];
/// let mut pass = engine.process(&mut received, &mut scratch);
/// let Some(EngineEvent::Text(text)) = pass.next() else { panic!("a text was received") };
/// let (text, mut outbox) = text.split();
/// outbox.send(MessageRef::Text(&text.to_uppercase()))?;
/// let outcome = pass.finish();
/// assert_eq!(scratch.output(&outcome, &received).collect::<Vec<_>>(), [b"\x81\x02HI"]);
/// # Ok::<(), windlass_ws::FrameSendError>(())
/// ```
pub struct Text<'a> {
    payload: TextBytes<'a>,
    reply_end: Option<usize>,
    outbox: Outbox<'a>,
}

/// The payload of a text message: UTF-8.
pub(super) struct TextBytes<'a>(&'a mut [u8]);

impl<'a> TextBytes<'a> {
    /// `bytes` must have been validated. Text that arrived in pieces was validated piece by piece.
    #[inline(always)]
    pub(super) const fn validated(bytes: &'a mut [u8]) -> Self {
        Self(bytes)
    }

    #[inline]
    fn as_str(&self) -> &str {
        validated_str(self.0)
    }
}

/// The text in bytes that have been validated.
#[inline]
#[allow(unsafe_code, reason = "a second validation of a long text takes as long as copying it")]
fn validated_str(bytes: &[u8]) -> &str {
    debug_assert!(core::str::from_utf8(bytes).is_ok());
    // SAFETY: The callers pass the bytes of a `TextBytes`. Both who make one have validated them:
    // the engine, and `ReceivedMessage::change_text` after a change. Nothing else changes them.
    unsafe { core::str::from_utf8_unchecked(bytes) }
}

impl<'a> Text<'a> {
    #[inline(always)]
    pub(super) const fn new(
        payload: TextBytes<'a>,
        reply_end: Option<usize>,
        outbox: Outbox<'a>,
    ) -> Self {
        Self { payload, reply_end, outbox }
    }

    /// The text.
    #[must_use]
    #[inline]
    pub fn as_str(&self) -> &str {
        self.payload.as_str()
    }

    /// The bytes of the text. They are UTF-8.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.payload.0
    }

    /// Sends the message back unchanged, without a copy where possible.
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the Close frame.
    #[inline]
    pub fn reply(self) -> Result<(), FrameSendError> {
        let mut outbox = self.outbox;
        outbox.send_back(Opcode::Text, self.payload.0, self.reply_end)
    }

    /// The text, and an outbox to send something else while the text is borrowed.
    #[must_use]
    #[inline]
    pub fn split(self) -> (&'a str, Outbox<'a>) {
        (validated_str(self.payload.0), self.outbox)
    }

    /// The message, and an outbox. The outbox can send the message back, or anything else while the
    /// message is borrowed.
    #[must_use]
    #[inline(always)]
    pub fn detach(self) -> (ReceivedMessage<'a>, Outbox<'a>) {
        (
            ReceivedMessage {
                payload: ReceivedPayload::Text(self.payload),
                reply_end: self.reply_end,
            },
            self.outbox,
        )
    }
}

/// A message of either kind, separate from its outbox. Use it to read the message while sending,
/// and perhaps to send it back at the end, changed or not. See [`Text::detach`],
/// [`Binary::detach`] and [`Outbox::reply`].
///
/// ```
/// use windlass_ws::{EngineEvent, MessageRef};
/// # use windlass_ws::{Config, Engine, Scratch};
/// # let (mut engine, mut scratch) = (Engine::new(&Config::server().into()), Scratch::new());
///
/// let mut received = [0x81, 0x82, 0, 0, 0, 0, b'h', b'i'];
/// let mut pass = engine.process(&mut received, &mut scratch);
/// let Some(EngineEvent::Text(text)) = pass.next() else { panic!("a text was received") };
/// let (message, mut outbox) = text.detach();
/// assert_eq!(message.as_str(), Some("hi"));
/// outbox.ping(b"")?;
/// outbox.reply(message)?;
/// # assert_eq!(pass.finish().len, 6);
/// # Ok::<(), windlass_ws::FrameSendError>(())
/// ```
pub struct ReceivedMessage<'a> {
    payload: ReceivedPayload<'a>,
    reply_end: Option<usize>,
}

enum ReceivedPayload<'a> {
    Text(TextBytes<'a>),
    Binary(&'a mut [u8]),
}

impl ReceivedMessage<'_> {
    /// Whether it is a text message.
    #[must_use]
    #[inline]
    pub const fn is_text(&self) -> bool {
        matches!(self.payload, ReceivedPayload::Text(_))
    }

    /// The bytes of the message.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.payload {
            ReceivedPayload::Text(text) => text.0,
            ReceivedPayload::Binary(bytes) => bytes,
        }
    }

    /// The text, if this is a text message.
    #[must_use]
    #[inline]
    pub fn as_str(&self) -> Option<&str> {
        match &self.payload {
            ReceivedPayload::Text(text) => Some(text.as_str()),
            ReceivedPayload::Binary(_) => None,
        }
    }

    /// The bytes of a binary message, to change them.
    #[must_use]
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.payload {
            ReceivedPayload::Text(_) => None,
            ReceivedPayload::Binary(bytes) => Some(bytes),
        }
    }

    /// Changes the bytes of a text message, and validates them afterwards. A binary message is
    /// changed without a check.
    ///
    /// ```
    /// use windlass_ws::EngineEvent;
    /// # use windlass_ws::{Config, Engine, Scratch};
    /// # let (mut engine, mut scratch) = (Engine::new(&Config::server().into()), Scratch::new());
    ///
    /// let mut received = [0x81, 0x82, 0, 0, 0, 0, b'h', b'i'];
    /// let mut pass = engine.process(&mut received, &mut scratch);
    /// let Some(EngineEvent::Text(text)) = pass.next() else { panic!("a text was received") };
    /// let (message, mut outbox) = text.detach();
    /// outbox.reply(message.change_text(|bytes| bytes.make_ascii_uppercase())?)?;
    /// let reply = pass.finish().in_place.unwrap();
    /// assert_eq!(received[reply], [0x81, 2, b'H', b'I']);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The text is not UTF-8 any more. The message is gone.
    pub fn change_text(self, change: impl FnOnce(&mut [u8])) -> Result<Self, Utf8Error> {
        // The message has no text while the change runs, which may panic.
        let Self { payload, reply_end } = self;
        let payload = match payload {
            ReceivedPayload::Text(TextBytes(bytes)) => {
                change(bytes);
                core::str::from_utf8(bytes)?;
                ReceivedPayload::Text(TextBytes::validated(bytes))
            }
            ReceivedPayload::Binary(bytes) => {
                change(bytes);
                ReceivedPayload::Binary(bytes)
            }
        };
        Ok(Self { payload, reply_end })
    }

    #[inline]
    pub(super) const fn opcode(&self) -> Opcode {
        if self.is_text() { Opcode::Text } else { Opcode::Binary }
    }

    pub(super) const fn reply_end(&self) -> Option<usize> {
        self.reply_end
    }
}

impl fmt::Debug for ReceivedMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivedMessage")
            .field("is_text", &self.is_text())
            .field("len", &self.as_bytes().len())
            .finish_non_exhaustive()
    }
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

/// A binary message. Its bytes may be changed.
///
/// ```
/// use windlass_ws::EngineEvent;
/// # use windlass_ws::{Config, Engine, Scratch};
/// # let (mut engine, mut scratch) = (Engine::new(&Config::server().into()), Scratch::new());
///
/// let mut received = [0x82, 0x82, 0, 0, 0, 0, 1, 2];
/// let mut pass = engine.process(&mut received, &mut scratch);
/// let Some(EngineEvent::Binary(mut bytes)) = pass.next() else { panic!("bytes were received") };
/// bytes.reverse();
/// bytes.reply()?;
/// let reply = pass.finish().in_place.unwrap();
/// assert_eq!(received[reply], [0x82, 2, 2, 1]);
/// # Ok::<(), windlass_ws::FrameSendError>(())
/// ```
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

    /// Sends the message back with its current bytes, without a copy where possible.
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the Close frame.
    #[inline]
    pub fn reply(self) -> Result<(), FrameSendError> {
        let mut outbox = self.outbox;
        outbox.send_back(Opcode::Binary, self.bytes, self.reply_end)
    }

    /// The bytes, and an outbox to send something else while the bytes are borrowed.
    #[must_use]
    #[inline]
    pub fn split(self) -> (&'a mut [u8], Outbox<'a>) {
        (self.bytes, self.outbox)
    }

    /// The message, and an outbox. The outbox can send the message back, or anything else while the
    /// message is borrowed.
    #[must_use]
    #[inline(always)]
    pub fn detach(self) -> (ReceivedMessage<'a>, Outbox<'a>) {
        (
            ReceivedMessage {
                payload: ReceivedPayload::Binary(self.bytes),
                reply_end: self.reply_end,
            },
            self.outbox,
        )
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
