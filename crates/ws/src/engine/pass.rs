//! One pass over received bytes.

use core::{fmt, ops::Range};

use super::{
    Engine, Outbox,
    error::FrameSendError,
    event::{Binary, EngineEvent, Text, TextBytes},
    message::MessageRef,
    message_buffer::MessageBuffer,
    scratch::{EventBuffers, Output, Scratch},
    slow_path::next_any,
};
use crate::protocol::{close::CloseCode, mask, utf8, violation::Violation};

/// How the connection ends.
///
/// ```
/// use windlass_ws::End;
/// # use windlass_ws::{Config, Engine, Scratch};
/// # let (mut engine, mut scratch) = (Engine::new(&Config::server().into()), Scratch::new());
///
/// // A frame with a reserved opcode.
/// let mut received = [0x83, 0x80, 0, 0, 0, 0];
/// let mut pass = engine.process(&mut received, &mut scratch);
/// while pass.next().is_some() {}
/// match pass.finish().end {
///     Some(End::Failed(violation)) => println!("{violation}"),
///     Some(End::Closed) | None => panic!("the opcode is reserved"),
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both sides have sent their Close frames. Send the output, then close the transport. The
    /// server closes first (RFC 6455 section 7.1.1).
    Closed,
    /// The peer broke the protocol or a limit. The output contains the Close frame with the reason,
    /// unless this side sent one before. Send the output, then close the transport.
    Failed(Violation),
}

/// The result of a pass.
///
/// ```
/// # use windlass_ws::{Config, Engine, Scratch};
/// # let (mut engine, mut scratch) = (Engine::new(&Config::server().into()), Scratch::new());
/// let mut received = *b"\x89\x80\0\0\0\0 rest";
/// let mut pass = engine.process(&mut received[..6], &mut scratch);
/// while pass.next().is_some() {}
/// let outcome = pass.finish();
/// assert_eq!((outcome.consumed, outcome.len), (6, 2));
/// // The pong lies in the received bytes.
/// assert_eq!(received[outcome.in_place.unwrap()], [0x8a, 0]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "it says what is to be sent, how far the input was processed, and whether the \
              connection ends"]
pub struct Outcome {
    /// The number of the pass within its scratch.
    pub(crate) pass: u32,
    /// The whole output, if it is one range of the input; empty if there is no output. `None` means
    /// that [`Scratch::output`] returns the pieces. Send all of it, in order: with context
    /// takeover, no compressed frame can be left out.
    pub in_place: Option<Range<usize>>,
    /// The length of the output in bytes.
    pub len: usize,
    /// How many bytes of the input were processed. This is all of it if the pass ran until there
    /// were no more events. Otherwise pass the rest to the next pass.
    pub consumed: usize,
    /// How the connection ends, or `None` while it is open. After the end, each later pass returns
    /// it again and ignores its input.
    pub end: Option<End>,
}

/// One pass over received bytes. It yields events one by one and collects the output.
///
/// Always call [`finish`](Self::finish) at the end. It returns where the output is and how much
/// input was processed.
///
/// ```
/// use windlass_ws::{EngineEvent, MessageRef};
/// # use windlass_ws::{Config, Engine, Scratch};
/// # let (mut engine, mut scratch) = (Engine::new(&Config::server().into()), Scratch::new());
///
/// let mut received = [0x89, 0x80, 0, 0, 0, 0];
/// let mut pass = engine.process(&mut received, &mut scratch);
/// pass.send(MessageRef::Text("hi"))?;
/// while let Some(event) = pass.next() {
///     assert!(matches!(event, EngineEvent::Ping(b"")));
/// }
/// let outcome = pass.finish();
/// let output: Vec<u8> = scratch.output(&outcome, &received).flatten().copied().collect();
/// assert_eq!(output, [0x81, 2, b'h', b'i', 0x8a, 0]);
/// # Ok::<(), windlass_ws::FrameSendError>(())
/// ```
#[must_use = "a pass does nothing until its events are asked for, and `finish` has the output"]
pub struct Pass<'p> {
    engine: &'p mut Engine,
    out: &'p mut Output,
    input: PassInput<'p>,
}

/// The input with the payloads. It is separate from the output state, so that a payload can be
/// borrowed while something is sent.
pub(super) struct PassInput<'p> {
    pub(super) bytes: &'p mut [u8],
    /// The next byte to process.
    pub(super) at: usize,
    pub(super) buffers: &'p mut EventBuffers,
}

impl<'p> Pass<'p> {
    #[inline]
    pub(super) fn new(
        engine: &'p mut Engine,
        input: &'p mut [u8],
        at: usize,
        scratch: &'p mut Scratch,
    ) -> Self {
        let Scratch { out, buffers } = scratch;
        Self { engine, out, input: PassInput { bytes: input, at, buffers } }
    }

    /// The next event, or `None` until more bytes arrive.
    #[expect(
        clippy::should_implement_trait,
        reason = "an event borrows the pass, which an iterator's item cannot"
    )]
    // As a call it would return the event in memory, which is most of a short echo.
    #[inline(always)]
    pub fn next(&mut self) -> Option<EngineEvent<'_>> {
        let Self { engine, out, input } = self;
        match input.short_frame(engine) {
            Some(ShortFrame { first: BINARY, len, key }) => {
                let (bytes, end) = input.unmask_short(BINARY, len, key, out.end);
                let outbox = Outbox { engine, out };
                return Some(EngineEvent::Binary(Binary::new(bytes, Some(end), outbox)));
            }
            Some(ShortFrame { first: TEXT, len, key }) => {
                let bytes = input.unmask_short_text(len, key, out.end);
                if !utf8::is_ascii(bytes) && !utf8::is_text(bytes) {
                    let violation = fail(engine, out, Violation::InvalidUtf8);
                    return Some(EngineEvent::Violation(violation));
                }
                let end = out.end + 2 + bytes.len();
                let payload = TextBytes::validated(bytes);
                return Some(EngineEvent::Text(Text::new(
                    payload,
                    Some(end),
                    Outbox { engine, out },
                )));
            }
            _ => {}
        }
        if input.at == input.bytes.len() {
            return None;
        }
        next_any(input, engine, out).map(|found| found.into_event(Outbox { engine, out }))
    }

    /// The next event, if it is a complete binary message of at most 65 535 bytes and the engine is
    /// in its usual state. `None` has no other meaning: call [`next`](Self::next) then.
    ///
    /// For callers that want the compiler to keep the pass in registers, which works only as long
    /// as they call no other method. End such a pass with [`finish_fast`](Self::finish_fast).
    #[inline(always)]
    pub fn next_fast(&mut self) -> Option<Binary<'_>> {
        let Self { engine, out, input } = self;
        let (bytes, end) = match input.short_frame(engine) {
            Some(ShortFrame { first: BINARY, len, key }) => {
                input.unmask_short(BINARY, len, key, out.end)
            }
            _ => input.medium_binary(engine, out)?,
        };
        Some(Binary::new(bytes, Some(end), Outbox { engine, out }))
    }

    /// Ends a pass that used only [`next_fast`](Self::next_fast). Succeeds if all input was
    /// processed, the connection stays open, and the output is one range of the input, which is
    /// returned.
    ///
    /// # Errors
    ///
    /// Returns the pass otherwise. It can continue or be [finished](Self::finish).
    #[inline(always)]
    pub fn finish_fast(self) -> Result<Range<usize>, Self> {
        // Anything that ends a connection, or is incomplete, disables the fast path.
        let is_usual = self.engine.fast_len_end != 0
            && self.out.segments.is_empty()
            && self.input.buffers.message.is_none();
        if is_usual && self.input.at == self.input.bytes.len() {
            return Ok(self.out.start..self.out.end);
        }
        Err(self)
    }

    /// Takes the buffer of the last message out of the scratch, so that the message can be kept
    /// longer than the pass. `None` if the message lies in the input, or was sent back.
    ///
    /// [`Scratch::recycle`] takes the buffer back for later messages.
    ///
    /// ```
    /// # use windlass_ws::{Config, Engine, Scratch};
    /// # let (mut engine, mut scratch) = (Engine::new(&Config::server().into()), Scratch::new());
    /// // The message arrives in two reads.
    /// let _ = engine.process(&mut [0x82, 0x82, 0, 0, 0, 0, 7], &mut scratch).next();
    /// let mut rest = [8];
    /// let mut pass = engine.process(&mut rest, &mut scratch);
    /// assert!(pass.next().is_some());
    /// let message = pass.take_message().unwrap();
    /// let _ = pass.finish();
    /// assert_eq!(message.payload(), [7, 8]);
    /// scratch.recycle(message);
    /// ```
    #[must_use]
    pub fn take_message(&mut self) -> Option<MessageBuffer> {
        self.out.take_message(self.input.buffers).map(MessageBuffer::new)
    }

    /// Ends the pass and returns its result.
    #[inline]
    pub fn finish(self) -> Outcome {
        let Self { engine, out, input } = self;
        out.store_message(input.buffers);
        let (in_place, len) = match out.segments.is_empty() {
            true => (Some(out.start..out.end), out.end - out.start),
            false => (None, out.finish_gathered(input.bytes)),
        };
        Outcome { pass: out.pass, in_place, len, consumed: input.at, end: engine.end() }
    }

    /// Sends a message. It is compressed if compression was negotiated and makes it shorter.
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the Close frame.
    pub fn send(&mut self, message: MessageRef<'_>) -> Result<(), FrameSendError> {
        self.outbox().send(message)
    }

    /// Sends a ping.
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the Close frame, [`FrameSendError::TooLong`] beyond 125
    /// bytes.
    pub fn ping(&mut self, payload: &[u8]) -> Result<(), FrameSendError> {
        self.outbox().ping(payload)
    }

    /// Sends an unsolicited pong. The engine answers pings by itself.
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the Close frame, [`FrameSendError::TooLong`] beyond 125
    /// bytes.
    pub fn pong(&mut self, payload: &[u8]) -> Result<(), FrameSendError> {
        self.outbox().pong(payload)
    }

    /// Starts the closing handshake. Messages keep arriving until the peer's Close frame:
    /// [`End::Closed`].
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the first Close frame. [`FrameSendError::BadCloseCode`]
    /// unless the code [can be sent](CloseCode::is_sendable). [`FrameSendError::TooLong`] if the
    /// reason has more than 123 bytes.
    pub fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), FrameSendError> {
        self.outbox().close(code, reason)
    }

    /// How many bytes the scratch has compressed and decompressed so far: see
    /// [`Scratch::codec_bytes`](crate::Scratch::codec_bytes).
    #[cfg(feature = "deflate")]
    #[must_use]
    pub const fn codec_bytes(&self) -> crate::deflate::CodecBytes {
        self.out.codec_pool.bytes()
    }

    /// An outbox to send between two events.
    pub fn outbox(&mut self) -> Outbox<'_> {
        Outbox { engine: self.engine, out: self.out }
    }
}

/// A complete frame of at most 125 bytes from a client, with the engine in its usual state.
#[derive(Clone, Copy)]
pub(super) struct ShortFrame {
    pub(super) first: u8,
    pub(super) len: usize,
    pub(super) key: [u8; 4],
}

/// The first byte of a frame that is a complete text message, masked or unmasked.
pub(super) const TEXT: u8 = 0x81;
pub(super) const BINARY: u8 = 0x82;

impl PassInput<'_> {
    #[inline(always)]
    pub(super) fn short_frame(&self, engine: &Engine) -> Option<ShortFrame> {
        let rest = self.bytes.get(self.at..)?;
        let (&[first, second, ref key @ ..], payload) = rest.split_first_chunk::<6>()?;
        let len = second.wrapping_sub(0x80);
        if len >= engine.fast_len_end || payload.len() < usize::from(len) {
            return None;
        }
        Some(ShortFrame { first, len: usize::from(len), key: *key })
    }

    /// The payload, with the header of a reply before it that begins at `start`, and the end of
    /// that reply.
    #[inline(always)]
    fn unmask_short(
        &mut self,
        first: u8,
        len: usize,
        key: [u8; 4],
        start: usize,
    ) -> (&mut [u8], usize) {
        let at = self.at;
        self.at = at + 6 + len;
        let (head, bytes) = mask::unmask_down(self.bytes, start, 2, at, 6, len, key);
        head[0] = first;
        head[1] = len as u8;
        (bytes, start + 2 + len)
    }

    /// Like `unmask_short`, for a text message.
    ///
    /// It is a call of its own and marked as cold, so that the compiler keeps the registers for
    /// binary messages. The result fits into two registers.
    #[cold]
    fn unmask_short_text(&mut self, len: usize, key: [u8; 4], start: usize) -> &mut [u8] {
        self.unmask_short(TEXT, len, key, start).0
    }
}

/// Fails the connection because of a violation.
#[cold]
pub(super) fn fail(engine: &mut Engine, out: &mut Output, violation: Violation) -> Violation {
    // An error means that a Close frame was sent before, so none is needed.
    let _ = Outbox { engine, out }.close(violation.close_code(), violation.close_reason());
    engine.failed = Some(violation);
    engine.discard_partial(out);
    violation
}

impl fmt::Debug for Pass<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass")
            .field("engine", &self.engine)
            .field("at", &self.input.at)
            .finish_non_exhaustive()
    }
}
