//! What goes out.

use core::fmt;

use super::{CLOSE_SENT, DEFLATE, Engine, event::Received};
use crate::{
    CloseCode, FrameHeader, HEADER_LEN_MAX, Message, Opcode, Role, SendError,
    frame::CONTROL_LEN_MAX,
    mask,
    scratch::{Output, Place},
};

/// Shorter messages that came in pieces are copied: to send each from a buffer of its own costs a
/// buffer and a piece of the output each.
const CARRIED_MIN: usize = 4096;

/// What sends while a payload is looked at. See [`Text::split`](crate::Text::split) and
/// [`Binary::split`](crate::Binary::split).
///
/// Messages go out in the order of the calls.
pub struct Outbox<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) out: &'a mut Output,
}

impl<'a> Outbox<'a> {
    /// Sends a message, compressed if that was agreed and pays.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] after the Close frame.
    pub fn send(&mut self, message: Message<'_>) -> Result<(), SendError> {
        self.engine.check_open()?;
        self.message(message.opcode(), message.as_bytes());
        Ok(())
    }

    /// Sends a text that is known to be UTF-8 by its bytes, because it was received, say, without
    /// asking again. If it is not, the peer fails the connection.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] after the Close frame.
    pub fn send_checked_text(&mut self, text: &[u8]) -> Result<(), SendError> {
        self.engine.check_open()?;
        self.message(Opcode::Text, text);
        Ok(())
    }

    /// Sends a ping.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] after the Close frame, [`SendError::TooLong`] beyond 125 bytes.
    pub fn ping(&mut self, payload: &[u8]) -> Result<(), SendError> {
        self.control(Opcode::Ping, payload)
    }

    /// Sends a pong that nobody asked for (RFC 6455 section 5.5.3): pings are answered without it.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] after the Close frame, [`SendError::TooLong`] beyond 125 bytes.
    pub fn pong(&mut self, payload: &[u8]) -> Result<(), SendError> {
        self.control(Opcode::Pong, payload)
    }

    /// Begins to close. Messages go on coming until the peer's Close is there:
    /// [`End::Closed`](crate::End::Closed).
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] after the first Close frame, [`SendError::BadCloseCode`] unless the
    /// code [may travel](CloseCode::is_sendable), [`SendError::TooLong`] beyond 123 bytes of
    /// reason.
    pub fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        self.engine.check_close(code, reason)?;
        let mut payload = [0; CONTROL_LEN_MAX];
        let len = 2 + reason.len();
        payload[..2].copy_from_slice(&code.get().to_be_bytes());
        payload[2..len].copy_from_slice(reason.as_bytes());
        self.frame(Opcode::Close, false, &payload[..len]);
        self.engine.flags |= CLOSE_SENT;
        self.engine.quick = 0;
        Ok(())
    }

    fn control(&mut self, opcode: Opcode, payload: &[u8]) -> Result<(), SendError> {
        self.engine.check_control(payload)?;
        self.frame(opcode, false, payload);
        Ok(())
    }

    /// Sends a message back as it is, without a copy where that can be.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] after the Close frame.
    #[inline]
    pub fn reply(&mut self, received: Received<'_>) -> Result<(), SendError> {
        self.engine.check_open()?;
        self.send_back(received.opcode(), received.as_bytes(), received.reply_end())
    }

    /// Sends frames that were made elsewhere, for many connections: see [`Message::encode`]. Only a
    /// server can: a client masks each frame by itself.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] after the Close frame.
    ///
    /// # Panics
    ///
    /// For a client.
    pub fn send_encoded(&mut self, frames: &[u8]) -> Result<(), SendError> {
        self.engine.check_open()?;
        assert!(!self.engine.is_client(), "a client masks every frame by itself");
        let local = &mut self.out.local;
        let start = local.len();
        local.extend_from_slice(frames);
        self.out.add_local(start);
        Ok(())
    }

    /// Sends a payload of the peer's back. Where it can be built around the payload, the header is
    /// there already.
    #[inline]
    pub(super) fn send_back(
        &mut self,
        opcode: Opcode,
        bytes: &[u8],
        end: Option<usize>,
    ) -> Result<(), SendError> {
        let Some(end) = end else { return self.reply_otherwise(opcode, bytes) };
        self.out.end = end;
        Ok(())
    }

    #[inline(never)]
    fn reply_otherwise(&mut self, opcode: Opcode, bytes: &[u8]) -> Result<(), SendError> {
        self.engine.check_open()?;
        if self.engine.flags & DEFLATE != 0 && self.compressed(opcode, bytes) {
            return Ok(());
        }
        match self.out.reply_place {
            Place::Input { end } => self.out.end = end,
            Place::Held { start } if bytes.len() > CARRIED_MIN => self.out.add_held(start),
            Place::Held { .. } | Place::Outside => self.frame(opcode, false, bytes),
        }
        Ok(())
    }

    fn message(&mut self, opcode: Opcode, payload: &[u8]) {
        if self.engine.flags & DEFLATE == 0 || !self.compressed(opcode, payload) {
            self.frame(opcode, false, payload);
        }
    }

    /// A frame of copied bytes.
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

    /// A frame whose payload is `local[start + HEADER_LEN_MAX..]`: the header goes right before it.
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

/// What is refused, before anything of an earlier output is forgotten.
impl Engine {
    pub(super) const fn check_open(&self) -> Result<(), SendError> {
        if self.is_closing() { Err(SendError::Closed) } else { Ok(()) }
    }

    pub(super) fn check_control(&self, payload: &[u8]) -> Result<(), SendError> {
        self.check_open()?;
        if payload.len() > CONTROL_LEN_MAX { Err(SendError::TooLong) } else { Ok(()) }
    }

    pub(super) fn check_close(&self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        self.check_open()?;
        if !code.is_sendable() {
            return Err(SendError::BadCloseCode);
        }
        if reason.len() > CONTROL_LEN_MAX - 2 { Err(SendError::TooLong) } else { Ok(()) }
    }
}

impl fmt::Debug for Outbox<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox")
            .field("is_closing", &self.engine.is_closing())
            .finish_non_exhaustive()
    }
}
