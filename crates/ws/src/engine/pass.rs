//! One go over received bytes.

use core::{fmt, ops::Range};

use super::{
    Engine, Outbox,
    event::{Binary, Event, Payload},
    pieces::next_otherwise,
};
use crate::{
    CloseCode, Message, Scratch, SendError, Violation, mask,
    scratch::{Held, Output},
};

/// How the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both sides have sent their Close frames. Send the output, then close the transport: the
    /// server first (RFC 6455 section 7.1.1).
    Closed,
    /// The peer has done this. The Close frame that says so is in the output, unless one had been
    /// sent before: send it, then close the transport.
    Failed(Violation),
}

/// What a pass has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "it says what is to be sent, how far the input was processed, and whether the connection ends"]
pub struct Outcome {
    /// Which pass of its scratch it was.
    pub(crate) pass: u32,
    /// The whole output, if it is one range of the input; empty if there is none. `None`:
    /// [`Scratch::output`] has the pieces. All of it is to be sent, in order: after compression
    /// with context takeover, nothing can be left out.
    pub in_place: Option<Range<usize>>,
    /// How many bytes the output has.
    pub len: usize,
    /// How many bytes of the input were processed: all, if the pass went on until there was no more
    /// event. Otherwise the rest is to be given to the next pass.
    pub consumed: usize,
    /// Whether the connection ends, and how. Once it does, every later pass says so again, and its
    /// input is ignored.
    pub end: Option<End>,
}

/// One go over received bytes: yields events, one by one, and gathers what goes out.
///
/// To be ended by [`finish`](Self::finish): it is what says where the output is and how far the
/// input was processed.
#[must_use = "a pass does nothing until its events are asked for, and `finish` has the output"]
pub struct Pass<'p> {
    engine: &'p mut Engine,
    out: &'p mut Output,
    lane: Lane<'p>,
}

/// Where payloads lie: apart from what answers need, so that a payload can be looked at while
/// something is sent.
pub(super) struct Lane<'p> {
    pub(super) input: &'p mut [u8],
    /// The next byte to be looked at.
    pub(super) at: usize,
    pub(super) held: &'p mut Held,
}

impl<'p> Pass<'p> {
    #[inline]
    pub(super) fn new(
        engine: &'p mut Engine,
        input: &'p mut [u8],
        scratch: &'p mut Scratch,
    ) -> Self {
        let Scratch { out, held } = scratch;
        Self { engine, out, lane: Lane { input, at: 0, held } }
    }

    /// The next event; `None` when there is none until more bytes come.
    #[expect(
        clippy::should_implement_trait,
        reason = "an event borrows the pass, which an iterator's item cannot"
    )]
    // Called, it hands the event over in memory: 40 instructions of an echo's 60.
    #[inline(always)]
    pub fn next(&mut self) -> Option<Event<'_>> {
        let Self { engine, out, lane } = self;
        if let Some(Short { first: BINARY, len, key }) = lane.short(engine) {
            let (bytes, end) = lane.unmask_short(BINARY, len, key, out.end);
            return Some(Event::Binary(Binary::new(bytes, Some(end), Outbox { engine, out })));
        }
        if lane.at == lane.input.len() {
            return None;
        }
        next_otherwise(lane, engine, out).map(|found| found.event(Outbox { engine, out }))
    }

    /// The next event, if it is a whole message of bytes, of 65 535 at most, and nothing unusual is
    /// under way. `None` says nothing else: [`next`](Self::next) has to be asked.
    ///
    /// For who wants the compiler to keep the pass in registers: it can as long as nothing else is
    /// called. The end is [`finish_short`](Self::finish_short) then.
    #[inline(always)]
    pub fn next_short(&mut self) -> Option<Binary<'_>> {
        let Self { engine, out, lane } = self;
        let (bytes, end) = match lane.short(engine) {
            Some(Short { first: BINARY, len, key }) => lane.unmask_short(BINARY, len, key, out.end),
            _ => lane.medium_bytes(engine, out)?,
        };
        Some(Binary::new(bytes, Some(end), Outbox { engine, out }))
    }

    /// Ends the pass, if all of the input was processed by [`next_short`](Self::next_short), the
    /// connection goes on, and the output is one range of the input: this one.
    ///
    /// # Errors
    ///
    /// With the pass, which goes on or is [finished](Self::finish) otherwise.
    #[inline(always)]
    pub fn finish_short(self) -> Result<Range<usize>, Self> {
        // Whatever ends a connection, or is under way, forbids the short way.
        let is_usual = self.engine.quick != 0
            && self.out.segments.is_empty()
            && self.lane.held.message.is_none();
        if is_usual && self.lane.at == self.lane.input.len() {
            return Ok(self.out.start..self.out.end);
        }
        Err(self)
    }

    /// Ends the pass.
    #[inline]
    pub fn finish(self) -> Outcome {
        let Self { engine, out, lane } = self;
        out.settle(lane.held);
        let (in_place, len) = match out.segments.is_empty() {
            true => (Some(out.start..out.end), out.end - out.start),
            false => (None, out.gathered(lane.input)),
        };
        Outcome { pass: out.pass, in_place, len, consumed: lane.at, end: engine.end() }
    }

    /// Sends a message, compressed if that was agreed and pays.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] after the Close frame.
    pub fn send(&mut self, message: Message<'_>) -> Result<(), SendError> {
        self.outbox().send(message)
    }

    /// Sends a ping.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] after the Close frame, [`SendError::TooLong`] beyond 125 bytes.
    pub fn ping(&mut self, payload: &[u8]) -> Result<(), SendError> {
        self.outbox().ping(payload)
    }

    /// Sends a pong that nobody asked for: pings are answered without it.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] after the Close frame, [`SendError::TooLong`] beyond 125 bytes.
    pub fn pong(&mut self, payload: &[u8]) -> Result<(), SendError> {
        self.outbox().pong(payload)
    }

    /// Begins to close. Messages go on coming until the peer's Close is there: [`End::Closed`].
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] after the first Close frame, [`SendError::BadCloseCode`] unless the
    /// code [may travel](CloseCode::is_sendable), [`SendError::TooLong`] beyond 123 bytes of
    /// reason.
    pub fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        self.outbox().close(code, reason)
    }

    /// How many bytes its scratch has compressed and decompressed so far: see
    /// [`Scratch::codec_bytes`](crate::Scratch::codec_bytes).
    #[cfg(feature = "deflate")]
    #[must_use]
    pub const fn codec_bytes(&self) -> crate::deflate::CodecBytes {
        self.out.shared.bytes()
    }

    /// What sends, between two events.
    pub fn outbox(&mut self) -> Outbox<'_> {
        Outbox { engine: self.engine, out: self.out }
    }
}

/// A whole frame of at most 125 bytes from a client, with nothing unusual under way.
#[derive(Clone, Copy)]
pub(super) struct Short {
    pub(super) first: u8,
    pub(super) len: usize,
    pub(super) key: [u8; 4],
}

/// The first byte of a frame that is a whole message, and of one without a mask too.
pub(super) const TEXT: u8 = 0x81;
pub(super) const BINARY: u8 = 0x82;

impl Lane<'_> {
    #[inline(always)]
    pub(super) fn short(&self, engine: &Engine) -> Option<Short> {
        let rest = self.input.get(self.at..)?;
        let (&[first, second, ref key @ ..], payload) = rest.split_first_chunk::<6>()?;
        let len = second.wrapping_sub(0x80);
        if len >= engine.quick || payload.len() < usize::from(len) {
            return None;
        }
        Some(Short { first, len: usize::from(len), key: *key })
    }

    /// Its payload, with the header of a reply before it that begins at `start`, and where the
    /// reply ends.
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
        let (head, bytes) = mask::unmask_down(self.input, start, 2, at, 6, len, key);
        head[0] = first;
        head[1] = len as u8;
        (bytes, start + 2 + len)
    }

    /// The same for text; `None` if it is not text.
    #[inline]
    pub(super) fn short_text(
        &mut self,
        len: usize,
        key: [u8; 4],
        start: usize,
    ) -> Option<(Payload<'_>, usize)> {
        let (bytes, end) = self.unmask_short(TEXT, len, key, start);
        if is_ascii(bytes) {
            return Some((Payload::Checked(bytes), end));
        }
        Some((Payload::Text(simdutf8::basic::from_utf8(bytes).ok()?), end))
    }
}

/// Much faster than a validation where there are few bytes.
#[inline]
fn is_ascii(bytes: &[u8]) -> bool {
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
    let all = match bytes.len() {
        8.. => bytes
            .chunks_exact(8)
            .fold(word(&bytes[bytes.len() - 8..]), |all, bytes| all | word(bytes)),
        _ => bytes.iter().fold(0, |all, byte| all | u64::from(*byte)),
    };
    all & 0x8080_8080_8080_8080 == 0
}

/// Ends the connection for what the peer has done.
#[cold]
pub(super) fn fail(engine: &mut Engine, out: &mut Output, violation: Violation) -> Violation {
    // It is refused if one has been sent already, which is just as well.
    let _ = Outbox { engine, out }.close(violation.close_code(), violation.close_reason());
    engine.failed = Some(violation);
    engine.let_go(out);
    violation
}

impl fmt::Debug for Pass<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass")
            .field("engine", &self.engine)
            .field("at", &self.lane.at)
            .finish_non_exhaustive()
    }
}
