//! The state of one connection, and the entry points that process received bytes and send frames.
//!
//! An echo copies nothing. A client's frame has a header of 6, 8 or 14 bytes; the server's reply
//! has one of 2, 4 or 10. The engine therefore moves each payload down while it unmasks it. The
//! payload goes right behind the previous reply and the header of its own reply, which is never
//! above its source. The replies to all frames of a buffer then form one range of the buffer, and
//! one write sends them.

mod assembly;
mod config;
mod control;
mod deflate;
mod error;
mod event;
mod fragments;
mod message;
mod message_buffer;
mod outbox;
mod pass;
mod scratch;
mod slow_path;
mod whole;

use alloc::{boxed::Box, sync::Arc};
use core::{fmt, ops::Range};

pub use config::{Config, EngineLimits, Role};
pub use error::FrameSendError;
pub use event::{Binary, EngineEvent, Piece, ReceivedMessage, Text};
pub use message::MessageRef;
pub use message_buffer::MessageBuffer;
pub use outbox::Outbox;
pub use pass::{End, Outcome, Pass};
pub use scratch::Scratch;
pub use whole::WholeMessage;

use crate::protocol::{
    close::CloseCode,
    frame::{CONTROL_LEN_MAX, HEADER_LEN_MAX},
    violation::Violation,
};
use assembly::Assembly;

/// This side has sent its Close frame.
const CLOSE_SENT: u8 = 1;
/// The peer's Close frame has arrived.
const CLOSE_RECEIVED: u8 = 2;
/// This side is a client: it masks the frames it sends and expects unmasked ones.
const CLIENT: u8 = 4;
/// Messages may be compressed.
const DEFLATE: u8 = 8;
/// Messages that arrive in pieces are passed on in pieces.
const PIECES: u8 = 16;
/// The length of what is kept about the header of the frame that failed: see
/// [`Engine::failed_header`].
const FAILED_LEN: usize = 1 + size_of::<u64>();

/// The protocol state of one connection after its handshake. It takes 48 bytes. It owns a buffer
/// only while it waits for the rest of a frame or message.
///
/// Pass received bytes to [`process`](Self::process), which changes them and yields events. The
/// same pass produces the bytes to send. The engine answers pings and the peer's Close by itself.
///
/// ```
/// use std::sync::Arc;
/// use windlass_ws::{Config, Engine, EngineEvent, Scratch};
///
/// let mut scratch = Scratch::new();
/// let mut engine = Engine::new(&Arc::new(Config::server()));
/// // "hi", from a client, with a key of zeros.
/// let mut received = [0x81, 0x82, 0, 0, 0, 0, b'h', b'i'];
///
/// let mut pass = engine.process(&mut received, &mut scratch);
/// while let Some(event) = pass.next() {
///     match event {
///         EngineEvent::Text(text) => {
///             assert_eq!(&*text, "hi");
///             text.reply()?;
///         }
///         EngineEvent::Binary(bytes) => bytes.reply()?,
///         EngineEvent::Close(close) => println!("{close:?}"),
///         EngineEvent::Violation(violation) => println!("{violation}"),
///         _ => {}
///     }
/// }
/// let outcome = pass.finish();
/// // The echo lies in the received bytes.
/// assert_eq!(received[outcome.in_place.unwrap()], [0x81, 2, b'h', b'i']);
/// assert_eq!(outcome.end, None, "the connection stays open");
/// # Ok::<(), windlass_ws::FrameSendError>(())
/// ```
pub struct Engine {
    config: Arc<Config>,
    /// The received part of an incomplete message or frame.
    partial: Option<Box<Assembly>>,
    #[cfg(feature = "deflate")]
    codec: Option<Box<crate::deflate::Codec>>,
    /// The second that `controls` counts.
    second: u32,
    controls: u16,
    /// The first `head_len` bytes of an incomplete header. A whole header is always longer. After a
    /// violation, [`FAILED_LEN`] bytes about the header that showed it.
    head: [u8; HEADER_LEN_MAX - 1],
    head_len: u8,
    /// Payloads with fewer bytes take the fast path: see [`Pass::next`]. 0 while the state forbids
    /// it.
    fast_len_end: u8,
    /// The value of `fast_len_end` in the usual state.
    fast_len_end_usual: u8,
    flags: u8,
    failed: Option<Violation>,
}

impl Engine {
    /// An engine for a connection without compression.
    #[must_use]
    pub fn new(config: &Arc<Config>) -> Self {
        let mut engine = Self {
            config: Arc::clone(config),
            partial: None,
            #[cfg(feature = "deflate")]
            codec: None,
            second: 0,
            controls: 0,
            head: [0; HEADER_LEN_MAX - 1],
            head_len: 0,
            fast_len_end: 0,
            fast_len_end_usual: 0,
            flags: 0,
            failed: None,
        };
        if matches!(config.role, Role::Client { .. }) {
            engine.flags = CLIENT;
        }
        engine.choose_fast_path();
        engine
    }

    /// An engine for a connection that negotiated compression: see [`handshake`](crate::handshake).
    /// `deflate` holds the settings that are not negotiated.
    #[cfg(feature = "deflate")]
    #[must_use]
    pub fn with_deflate(
        config: &Arc<Config>,
        agreement: &crate::deflate::Agreement,
        deflate: &crate::deflate::DeflateConfig,
    ) -> Self {
        let mut engine = Self::new(config);
        engine.codec =
            Some(Box::new(crate::deflate::Codec::new(!engine.is_client(), agreement, deflate)));
        engine.flags |= DEFLATE;
        engine.choose_fast_path();
        engine
    }

    /// Takes received bytes, of any length and split anywhere, and changes them. The output partly
    /// lies in these bytes, so they must stay until the output has been sent or copied.
    ///
    /// Discards the contents of `scratch` from an earlier pass, of this or another connection.
    #[inline]
    pub fn process<'p>(&'p mut self, input: &'p mut [u8], scratch: &'p mut Scratch) -> Pass<'p> {
        scratch.begin();
        Pass::new(self, input, 0, scratch)
    }

    /// Continues with the same input after a pass that ended early: [`process`](Self::process) for
    /// the bytes from `at` on, whose output joins the unsent output of the earlier passes.
    ///
    /// `unsent` is the range of `input` where that output lies: [`Outcome::in_place`], to which the
    /// caller may have added the reply to the last message, which lies right behind it. It is empty
    /// if everything was sent.
    ///
    /// ```
    /// use windlass_ws::EngineEvent;
    /// # use windlass_ws::{Config, Engine, Scratch};
    /// # let (mut engine, mut scratch) = (Engine::new(&Config::server().into()), Scratch::new());
    ///
    /// // Two pings. The first pass stops after one of them.
    /// let mut received = *b"\x89\x81\0\0\0\x001\x89\x81\0\0\0\x002";
    /// let mut pass = engine.process(&mut received, &mut scratch);
    /// assert!(matches!(pass.next(), Some(EngineEvent::Ping(b"1"))));
    /// let outcome = pass.finish();
    /// let (at, unsent) = (outcome.consumed, outcome.in_place.unwrap());
    ///
    /// let mut pass = engine.process_from(&mut received, at, unsent, &mut scratch);
    /// assert!(matches!(pass.next(), Some(EngineEvent::Ping(b"2"))));
    /// let both = pass.finish().in_place.unwrap();
    /// assert_eq!(received[both], *b"\x8a\x011\x8a\x012");
    /// ```
    ///
    /// # Panics
    ///
    /// Unless `unsent` lies before `at`, and `at` within the input.
    #[inline]
    pub fn process_from<'p>(
        &'p mut self,
        input: &'p mut [u8],
        at: usize,
        unsent: Range<usize>,
        scratch: &'p mut Scratch,
    ) -> Pass<'p> {
        assert!(
            unsent.start <= unsent.end && unsent.end <= at && at <= input.len(),
            "unsent output {unsent:?} of an input of {} bytes, processed up to {at}",
            input.len()
        );
        scratch.begin();
        scratch.set_unsent(unsent);
        Pass::new(self, input, at, scratch)
    }

    /// Sends a message outside a pass. Returns the frame to send, which stays in `scratch` until
    /// its next use.
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the Close frame.
    pub fn send<'s>(
        &mut self,
        message: MessageRef<'_>,
        scratch: &'s mut Scratch,
    ) -> Result<&'s [u8], FrameSendError> {
        self.check_open()?;
        Ok(self.send_outside_pass(scratch, |outbox| outbox.send(message)))
    }

    /// Sends a ping outside a pass. Returns the frame to send, which stays in `scratch` until its
    /// next use.
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the Close frame, [`FrameSendError::TooLong`] beyond 125
    /// bytes.
    pub fn ping<'s>(
        &mut self,
        payload: &[u8],
        scratch: &'s mut Scratch,
    ) -> Result<&'s [u8], FrameSendError> {
        self.check_control(payload)?;
        Ok(self.send_outside_pass(scratch, |outbox| outbox.ping(payload)))
    }

    /// Sends an unsolicited pong outside a pass (RFC 6455 section 5.5.3). Returns the frame to
    /// send, which stays in `scratch` until its next use.
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the Close frame, [`FrameSendError::TooLong`] beyond 125
    /// bytes.
    pub fn pong<'s>(
        &mut self,
        payload: &[u8],
        scratch: &'s mut Scratch,
    ) -> Result<&'s [u8], FrameSendError> {
        self.check_control(payload)?;
        Ok(self.send_outside_pass(scratch, |outbox| outbox.pong(payload)))
    }

    /// Starts the closing handshake outside a pass. Returns the frame to send, which stays in
    /// `scratch` until its next use. Messages keep arriving until the peer's Close frame:
    /// [`End::Closed`]. The caller chooses how long to wait for it.
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the first Close frame. [`FrameSendError::BadCloseCode`]
    /// unless the code [can be sent](CloseCode::is_sendable). [`FrameSendError::TooLong`] if the
    /// reason has more than 123 bytes.
    pub fn close<'s>(
        &mut self,
        code: CloseCode,
        reason: &str,
        scratch: &'s mut Scratch,
    ) -> Result<&'s [u8], FrameSendError> {
        self.check_close(code, reason)?;
        Ok(self.send_outside_pass(scratch, |outbox| outbox.close(code, reason)))
    }

    /// Like [`close`](Self::close), with a Close frame that has neither code nor reason.
    ///
    /// ```
    /// # use windlass_ws::{Config, Engine, FrameSendError, Scratch};
    /// # let (mut engine, mut scratch) = (Engine::new(&Config::server().into()), Scratch::new());
    /// assert_eq!(engine.close_without_code(&mut scratch)?, [0x88, 0]);
    /// assert!(engine.is_closing());
    /// # Ok::<(), FrameSendError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the first Close frame.
    pub fn close_without_code<'s>(
        &mut self,
        scratch: &'s mut Scratch,
    ) -> Result<&'s [u8], FrameSendError> {
        self.check_open()?;
        Ok(self.send_outside_pass(scratch, |outbox| {
            outbox.close_frame(&[]);
            Ok(())
        }))
    }

    /// Replaces the configuration, from the next pass on. A frame whose header has arrived was
    /// checked with the limits before.
    ///
    /// # Panics
    ///
    /// If the new configuration is for the other role.
    pub fn set_config(&mut self, config: &Arc<Config>) {
        let is_client = matches!(config.role, Role::Client { .. });
        assert!(is_client == self.is_client(), "an engine keeps its role");
        self.config = Arc::clone(config);
        self.choose_fast_path();
    }

    /// Chooses whether messages that arrive in pieces are passed on in pieces
    /// ([`EngineEvent::Piece`]) or assembled, from the next pass on. Default: assembled.
    ///
    /// A message that was begun in pieces ends in pieces. If it is chosen to assemble in between,
    /// the rest of that message is discarded.
    pub fn set_pieces(&mut self, pieces: bool) {
        if pieces {
            self.flags |= PIECES;
        } else {
            self.flags &= !PIECES;
        }
    }

    /// Whether this side has sent its Close frame. It can send nothing more then.
    #[must_use]
    pub const fn is_closing(&self) -> bool {
        self.flags & CLOSE_SENT != 0
    }

    /// Whether compression was negotiated. Messages may then be compressed in both directions.
    #[must_use]
    pub const fn has_deflate(&self) -> bool {
        self.flags & DEFLATE != 0
    }

    /// How the connection ended, or `None` while it is open. After the end, input is ignored.
    #[must_use]
    #[inline]
    pub const fn end(&self) -> Option<End> {
        match self.failed {
            Some(violation) => Some(End::Failed(violation)),
            None if self.flags & (CLOSE_SENT | CLOSE_RECEIVED) == CLOSE_SENT | CLOSE_RECEIVED => {
                Some(End::Closed)
            }
            None => None,
        }
    }

    /// More about a violation that the header of a frame shows: the first byte of the frame, and a
    /// length. The length is that of the frame for [`Violation::FrameTooBig`], and that of the
    /// message so far, with this frame, for [`Violation::MessageTooBig`] before decompression.
    /// Otherwise it is 0. `None` if the connection has not failed because of a header.
    ///
    /// ```
    /// # use windlass_ws::{Config, Engine, Scratch};
    /// # let (mut engine, mut scratch) = (Engine::new(&Config::server().into()), Scratch::new());
    /// let mut received = [0x83, 0x80, 0, 0, 0, 0];
    /// assert!(engine.process(&mut received, &mut scratch).next().is_some());
    /// assert_eq!(engine.failed_header(), Some((0x83, 0)));
    /// ```
    #[must_use]
    pub fn failed_header(&self) -> Option<(u8, u64)> {
        let [first, len @ ..] = self.head.first_chunk::<FAILED_LEN>()?;
        let is_noted = self.failed.is_some() && usize::from(self.head_len) == FAILED_LEN;
        is_noted.then(|| (*first, u64::from_be_bytes(*len)))
    }

    /// Keeps what [`failed_header`](Self::failed_header) returns, where no header is kept any more.
    #[cold]
    fn note_failed_header(&mut self, first: u8, len: u64) {
        self.head[0] = first;
        self.head[1..FAILED_LEN].copy_from_slice(&len.to_be_bytes());
        self.head_len = FAILED_LEN as u8;
    }

    /// The heap memory, in bytes, that this engine holds for an incomplete message or frame. The
    /// state of a decompressor is not included.
    #[must_use]
    #[inline]
    pub fn buffered(&self) -> usize {
        self.partial.as_ref().map_or(0, |partial| size_of::<Assembly>() + partial.bytes.capacity())
    }

    fn send_outside_pass<'s>(
        &mut self,
        scratch: &'s mut Scratch,
        write: impl FnOnce(&mut Outbox<'_>) -> Result<(), FrameSendError>,
    ) -> &'s [u8] {
        scratch.begin();
        // The callers have already checked for every error.
        let _ = write(&mut Outbox { engine: self, out: &mut scratch.out });
        scratch.out.pieces(&[]).next().unwrap_or_default()
    }

    fn is_client(&self) -> bool {
        self.flags & CLIENT != 0
    }

    /// Chooses what takes the fast path in the usual state.
    fn choose_fast_path(&mut self) {
        let limits = &self.config.limits;
        let len_end = if self.is_client() || limits.fragments_max == 0 {
            0
        } else {
            limits.frame_max.min(limits.message_max).min(CONTROL_LEN_MAX) + 1
        };
        // The fast path builds the reply to a short message in place and never compresses it.
        #[cfg(feature = "deflate")]
        let len_end = self.codec.as_ref().map_or(len_end, |codec| len_end.min(codec.threshold()));
        self.fast_len_end_usual = len_end as u8;
        self.update_fast_path();
    }

    /// Recomputes whether the state allows the fast path. Call it when the state may allow the path
    /// again. Code that forbids the path sets `fast_len_end` to 0.
    fn update_fast_path(&mut self) {
        let usual = self.partial.is_none()
            && self.head_len == 0
            && self.flags & CLOSE_SENT == 0
            && self.failed.is_none();
        self.fast_len_end = if usual { self.fast_len_end_usual } else { 0 };
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("config", &self.config)
            .field("partial", &self.partial)
            .field("is_closing", &self.is_closing())
            .field("end", &self.end())
            .finish_non_exhaustive()
    }
}
