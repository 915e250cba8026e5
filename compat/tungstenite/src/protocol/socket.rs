//! The protocol together with its stream.

use std::io::{Read, Write};

use super::{CloseFrame, LentMessage, Message, Role, WebSocketConfig, WebSocketContext};
use crate::error::Result;

/// A WebSocket over a stream, blocking or not.
///
/// `connect`, `accept` and `client` make one. Call [`read`](Self::read) for messages and
/// [`send`](Self::send) to send them. On a stream that does not block, a call that returns
/// [`Error::Io`](crate::Error::Io) with `WouldBlock` is made again when the stream is ready;
/// messages that were given to it are queued and not given again.
#[derive(Debug)]
pub struct WebSocket<Stream> {
    stream: Stream,
    context: WebSocketContext,
}

impl<Stream> WebSocket<Stream> {
    /// A socket on a stream whose handshake is over.
    ///
    /// # Panics
    /// If `max_write_buffer_size` is not more than `write_buffer_size`.
    pub fn from_raw_socket(stream: Stream, role: Role, config: Option<WebSocketConfig>) -> Self {
        Self { stream, context: WebSocketContext::new(role, config) }
    }

    /// A socket on a stream whose handshake is over, and of which `part` was read beyond it.
    ///
    /// # Panics
    /// If `max_write_buffer_size` is not more than `write_buffer_size`.
    pub fn from_partially_read(
        stream: Stream,
        part: Vec<u8>,
        role: Role,
        config: Option<WebSocketConfig>,
    ) -> Self {
        Self { stream, context: WebSocketContext::from_partially_read(part, role, config) }
    }

    /// The same with permessage-deflate, as a handshake of other code agreed on it. Call it before
    /// the first message. Not in tungstenite.
    #[cfg(feature = "deflate")]
    #[must_use]
    pub fn with_agreement(self, agreement: windlass_ws::deflate::Agreement) -> Self {
        Self { stream: self.stream, context: self.context.with_agreement(agreement) }
    }

    /// The stream.
    pub fn into_inner(self) -> Stream {
        self.stream
    }

    /// The stream.
    pub fn get_ref(&self) -> &Stream {
        &self.stream
    }

    /// The stream.
    pub fn get_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// Changes the settings, for what is read and written from now on.
    ///
    /// # Panics
    /// If `max_write_buffer_size` is not more than `write_buffer_size`.
    pub fn set_config(&mut self, set_func: impl FnOnce(&mut WebSocketConfig)) {
        self.context.set_config(set_func);
    }

    /// The settings.
    pub fn get_config(&self) -> &WebSocketConfig {
        self.context.get_config()
    }

    /// The stream and the protocol.
    #[doc(hidden)]
    #[inline]
    pub fn __parts_mut(&mut self) -> (&mut Stream, &mut WebSocketContext) {
        (&mut self.stream, &mut self.context)
    }

    /// Whether messages may arrive: the peer has not sent a Close frame.
    pub fn can_read(&self) -> bool {
        self.context.can_read()
    }

    /// Whether messages can be sent: neither side has sent a Close frame.
    pub fn can_write(&self) -> bool {
        self.context.can_write()
    }
}

impl<Stream: Read + Write> WebSocket<Stream> {
    /// Reads a message. Pings and the peer's Close frame are answered with the next call.
    ///
    /// # Errors
    /// [`Error::ConnectionClosed`](crate::Error::ConnectionClosed) is the end: drop the socket.
    #[inline]
    pub fn read(&mut self) -> Result<Message> {
        self.context.read(&mut self.stream)
    }

    /// [`read`](Self::read) without a copy: the message stays in the buffer where it was received.
    /// Not in tungstenite.
    ///
    /// ```
    /// use windlass_tungstenite::{WebSocket, protocol::{LentMessage, Role}};
    /// # fn main() -> Result<(), windlass_tungstenite::Error> {
    /// # let stream = std::io::Cursor::new(b"\x81\x82\0\0\0\0hi".to_vec());
    ///
    /// let mut socket = WebSocket::from_raw_socket(stream, Role::Server, None);
    /// match socket.recv()? {
    ///     LentMessage::Text(text) => assert_eq!(text, "hi"),
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    #[inline]
    pub fn recv(&mut self) -> Result<LentMessage<'_>> {
        self.context.recv(&mut self.stream)
    }

    /// Sends a message: [`write`](Self::write) and [`flush`](Self::flush).
    ///
    /// # Errors
    /// Those of both.
    #[inline]
    pub fn send(&mut self, message: Message) -> Result<()> {
        self.context.send(&mut self.stream, message)
    }

    /// Queues a message. It is written when more than
    /// [`write_buffer_size`](WebSocketConfig::write_buffer_size) bytes wait, and by
    /// [`flush`](Self::flush). A pong takes the place of the answer to a ping that was not written.
    ///
    /// # Errors
    /// [`Error::WriteBufferFull`](crate::Error::WriteBufferFull) returns the message.
    pub fn write(&mut self, message: Message) -> Result<()> {
        self.context.write(&mut self.stream, message)
    }

    /// Writes everything that waits, and flushes the stream.
    ///
    /// # Errors
    /// Those of the stream. [`Error::ConnectionClosed`](crate::Error::ConnectionClosed) if that was
    /// the end of a server's closing handshake.
    pub fn flush(&mut self) -> Result<()> {
        self.context.flush(&mut self.stream)
    }

    /// Starts the closing handshake, unless a Close frame was sent or has arrived, and flushes. Go
    /// on reading until [`Error::ConnectionClosed`](crate::Error::ConnectionClosed): the peer may
    /// have sent messages before its Close frame.
    ///
    /// # Errors
    /// As for [`write`](Self::write), and those of
    /// [`WebSocketContext::close`].
    pub fn close(&mut self, code: Option<CloseFrame>) -> Result<()> {
        self.context.close(&mut self.stream, code)
    }

    /// An earlier name of [`read`](Self::read).
    ///
    /// # Errors
    /// The same.
    #[deprecated(note = "call `read`")]
    pub fn read_message(&mut self) -> Result<Message> {
        self.read()
    }

    /// An earlier name of [`send`](Self::send).
    ///
    /// # Errors
    /// The same.
    #[deprecated(note = "call `send`")]
    pub fn write_message(&mut self, message: Message) -> Result<()> {
        self.send(message)
    }

    /// An earlier name of [`flush`](Self::flush).
    ///
    /// # Errors
    /// The same.
    #[deprecated(note = "call `flush`")]
    pub fn write_pending(&mut self) -> Result<()> {
        self.flush()
    }
}
