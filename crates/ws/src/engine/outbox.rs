//! Sending within a pass.

use core::fmt;

use super::{
    CLOSE_SENT, DEFLATE, Engine,
    config::Role,
    error::FrameSendError,
    event::ReceivedMessage,
    message::MessageRef,
    scratch::{Output, ReplyLocation},
};
use crate::protocol::{
    close::CloseCode,
    frame::{CONTROL_LEN_MAX, FrameHeader, HEADER_LEN_MAX, Opcode},
    mask,
};

/// Shorter messages that arrived in pieces are copied. Sending each one from its own buffer would
/// cost a buffer and a piece of output.
const CARRIED_MIN: usize = 4096;

/// Sends frames while a received payload is borrowed. See [`Text::split`](crate::Text::split) and
/// [`Binary::split`](crate::Binary::split).
///
/// Messages are sent in the order of the calls.
///
/// ```
/// use windlass_ws::{CloseCode, MessageRef};
/// # use windlass_ws::{Config, Engine, Scratch};
/// # let (mut engine, mut scratch) = (Engine::new(&Config::server().into()), Scratch::new());
///
/// let mut pass = engine.process(&mut [], &mut scratch);
/// let mut outbox = pass.outbox();
/// outbox.send(MessageRef::Text("hi"))?;
/// outbox.ping(b"")?;
/// outbox.close(CloseCode::NORMAL, "")?;
/// assert_eq!(pass.finish().len, 4 + 2 + 4);
/// # Ok::<(), windlass_ws::FrameSendError>(())
/// ```
pub struct Outbox<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) out: &'a mut Output,
}

impl<'a> Outbox<'a> {
    /// Sends a message. It is compressed if compression was negotiated and makes it shorter.
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the Close frame.
    pub fn send(&mut self, message: MessageRef<'_>) -> Result<(), FrameSendError> {
        self.engine.check_open()?;
        self.message(message.opcode(), message.as_bytes());
        Ok(())
    }

    /// Sends a text, given as bytes that the caller knows to be UTF-8, for example because they
    /// were received. The bytes are not validated again. If they are not UTF-8, the peer fails the
    /// connection.
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the Close frame.
    pub fn send_checked_text(&mut self, text: &[u8]) -> Result<(), FrameSendError> {
        self.engine.check_open()?;
        self.message(Opcode::Text, text);
        Ok(())
    }

    /// Sends a ping.
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the Close frame, [`FrameSendError::TooLong`] beyond 125
    /// bytes.
    pub fn ping(&mut self, payload: &[u8]) -> Result<(), FrameSendError> {
        self.control(Opcode::Ping, payload)
    }

    /// Sends an unsolicited pong (RFC 6455 section 5.5.3). The engine answers pings by itself.
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the Close frame, [`FrameSendError::TooLong`] beyond 125
    /// bytes.
    pub fn pong(&mut self, payload: &[u8]) -> Result<(), FrameSendError> {
        self.control(Opcode::Pong, payload)
    }

    /// Starts the closing handshake. Messages keep arriving until the peer's Close frame:
    /// [`End::Closed`](crate::End::Closed).
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the first Close frame. [`FrameSendError::BadCloseCode`]
    /// unless the code [can be sent](CloseCode::is_sendable). [`FrameSendError::TooLong`] if the
    /// reason has more than 123 bytes.
    pub fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), FrameSendError> {
        self.engine.check_close(code, reason)?;
        let mut payload = [0; CONTROL_LEN_MAX];
        let len = 2 + reason.len();
        payload[..2].copy_from_slice(&code.get().to_be_bytes());
        payload[2..len].copy_from_slice(reason.as_bytes());
        self.close_frame(&payload[..len]);
        Ok(())
    }

    /// Sends the Close frame with this payload.
    pub(super) fn close_frame(&mut self, payload: &[u8]) {
        self.frame(Opcode::Close, false, payload);
        self.engine.flags |= CLOSE_SENT;
        self.engine.fast_len_end = 0;
    }

    fn control(&mut self, opcode: Opcode, payload: &[u8]) -> Result<(), FrameSendError> {
        self.engine.check_control(payload)?;
        self.frame(opcode, false, payload);
        Ok(())
    }

    /// Sends a received message back unchanged, without a copy where possible.
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the Close frame.
    #[inline]
    pub fn reply(&mut self, received: ReceivedMessage<'_>) -> Result<(), FrameSendError> {
        self.engine.check_open()?;
        self.send_back(received.opcode(), received.as_bytes(), received.reply_end())
    }

    /// Sends frames that were encoded once for many connections: see [`MessageRef::encode`]. Only a
    /// server can do so, because a client masks each frame with a key of its own.
    ///
    /// # Errors
    ///
    /// [`FrameSendError::Closed`] after the Close frame.
    ///
    /// # Panics
    ///
    /// If this side is a client.
    pub fn send_encoded(&mut self, frames: &[u8]) -> Result<(), FrameSendError> {
        self.engine.check_open()?;
        assert!(!self.engine.is_client(), "a client masks every frame by itself");
        let local = &mut self.out.local;
        let start = local.len();
        local.extend_from_slice(frames);
        self.out.add_local(start);
        Ok(())
    }

    /// Sends a received payload back. If the reply can be built around the payload, its header is
    /// already in place.
    #[inline]
    pub(super) fn send_back(
        &mut self,
        opcode: Opcode,
        bytes: &[u8],
        end: Option<usize>,
    ) -> Result<(), FrameSendError> {
        let Some(end) = end else { return self.reply_by_location(opcode, bytes) };
        self.out.end = end;
        Ok(())
    }

    #[inline(never)]
    fn reply_by_location(&mut self, opcode: Opcode, bytes: &[u8]) -> Result<(), FrameSendError> {
        self.engine.check_open()?;
        if self.engine.flags & DEFLATE != 0 && self.compressed(opcode, bytes) {
            return Ok(());
        }
        match self.out.reply_location {
            ReplyLocation::Input { end } => self.out.end = end,
            ReplyLocation::Assembled { start } if bytes.len() > CARRIED_MIN => {
                self.out.add_assembled(start)
            }
            ReplyLocation::Assembled { .. } | ReplyLocation::Copied => {
                self.frame(opcode, false, bytes)
            }
        }
        Ok(())
    }

    fn message(&mut self, opcode: Opcode, payload: &[u8]) {
        if self.engine.flags & DEFLATE == 0 || !self.compressed(opcode, payload) {
            self.frame(opcode, false, payload);
        }
    }

    /// Appends a frame with a copied payload.
    pub(super) fn frame(&mut self, opcode: Opcode, compressed: bool, payload: &[u8]) {
        let key = self.key();
        let header = FrameHeader { fin: true, compressed, opcode, key, len: payload.len() as u64 };
        let local = &mut self.out.local;
        let start = local.len();
        local.reserve(header.encoded_len() + payload.len());
        let mut bytes = [0; HEADER_LEN_MAX];
        let len = header.encode(&mut bytes);
        local.extend_from_slice(&bytes[..len]);
        match key {
            Some(key) => mask::copy_masked(payload, local, key),
            None => local.extend_from_slice(payload),
        }
        self.out.add_local(start);
    }

    /// Appends a frame whose payload is `local[start + HEADER_LEN_MAX..]`. The header goes right
    /// before the payload.
    #[cfg_attr(
        not(feature = "deflate"),
        allow(dead_code, reason = "only compressed payloads are made there")
    )]
    pub(super) fn frame_around(&mut self, opcode: Opcode, compressed: bool, start: usize) {
        let key = self.key();
        let local = &mut self.out.local;
        let payload = start + HEADER_LEN_MAX;
        let header =
            FrameHeader { fin: true, compressed, opcode, key, len: (local.len() - payload) as u64 };
        if let Some(key) = key {
            mask::mask(&mut local[payload..], key);
        }
        let mut bytes = [0; HEADER_LEN_MAX];
        let len = header.encode(&mut bytes);
        local[payload - len..payload].copy_from_slice(&bytes[..len]);
        self.out.add_local(payload - len);
    }

    fn key(&mut self) -> Option<[u8; 4]> {
        match self.engine.config.role {
            Role::Client { entropy } => Some(self.out.key(entropy)),
            Role::Server => None,
        }
    }
}

/// The checks for errors. They run before any earlier output is discarded.
impl Engine {
    pub(super) const fn check_open(&self) -> Result<(), FrameSendError> {
        if self.is_closing() { Err(FrameSendError::Closed) } else { Ok(()) }
    }

    pub(super) fn check_control(&self, payload: &[u8]) -> Result<(), FrameSendError> {
        self.check_open()?;
        if payload.len() > CONTROL_LEN_MAX { Err(FrameSendError::TooLong) } else { Ok(()) }
    }

    pub(super) fn check_close(&self, code: CloseCode, reason: &str) -> Result<(), FrameSendError> {
        self.check_open()?;
        if !code.is_sendable() {
            return Err(FrameSendError::BadCloseCode);
        }
        if reason.len() > CONTROL_LEN_MAX - 2 { Err(FrameSendError::TooLong) } else { Ok(()) }
    }
}

impl fmt::Debug for Outbox<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox")
            .field("is_closing", &self.engine.is_closing())
            .finish_non_exhaustive()
    }
}
