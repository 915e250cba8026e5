//! A whole socket, its halves, and the message that it lends.

mod halves;
mod piece;
mod received;

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use futures_sink::Sink;
use windlass_ws::CloseCode;
#[cfg(feature = "deflate")]
use windlass_ws::deflate::Agreement;

use crate::{
    CloseFrame, Config, Message, Outgoing, RecvError, Role, SendError, core::Core, inbox::Inbox,
    transport::Transport,
};

pub use halves::{Reader, ReuniteError, Writer};
pub use piece::Piece;
pub use received::Received;

use received::CoreRef;

/// A WebSocket over any byte stream, as server or client.
///
/// Every future may be dropped after any poll: no byte is lost, sent twice or reordered. What a
/// dropped call has done stands at each method.
///
/// ```no_run
/// # async fn serve<S: windlass_websocket::Transport>(
/// #     stream: S,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use windlass_websocket::{Config, WebSocket};
///
/// let mut socket = WebSocket::accept(stream, &Config::new()).await?;
/// while let Some(message) = socket.recv().await? {
///     message.reply()?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct WebSocket<S: Transport> {
    inbox: Inbox,
    core: Core<S>,
}

impl<S: Transport> WebSocket<S> {
    pub(crate) fn from_parts(inbox: Inbox, core: Core<S>) -> Self {
        Self { inbox, core }
    }

    /// A socket over a stream whose handshake is over. `read_ahead` is what was read behind it.
    #[must_use]
    pub fn from_upgraded(stream: S, read_ahead: &[u8], role: Role, config: &Config) -> Self {
        let core = Core::new(stream, config, role, None);
        Self { inbox: Inbox::with_bytes(read_ahead), core }
    }

    /// The same socket with permessage-deflate, as the handshake agreed on it. Call it before the
    /// first message.
    #[cfg(feature = "deflate")]
    #[must_use]
    pub fn with_agreement(mut self, agreement: Agreement) -> Self {
        self.core.set_agreement(agreement);
        self
    }

    /// Waits for the next message, and lends it. `None` is the clean end: both sides have sent
    /// their Close frames, and this side's was written.
    ///
    /// It sends the replies before it waits, and answers pings and the peer's Close. It reads on
    /// while the peer does not read, until [`answers_max`](Config::answers_max) bytes of answers
    /// wait.
    ///
    /// Dropping the future loses nothing: the message is lent by the next call.
    ///
    /// # Errors
    /// See [`RecvError`]. Later calls return the same.
    pub async fn recv(&mut self) -> Result<Option<Received<'_, S>>, RecvError> {
        self.inbox.set_pieces(&mut self.core, false);
        let found = poll_fn(|context| self.inbox.poll_next(&mut self.core, context)).await?;
        Ok(found.then(|| Received::new(&mut self.inbox, CoreRef::Own(&mut self.core))))
    }

    /// Waits for the next piece of a message, and lends it. `None` is the clean end. It does
    /// otherwise what [`recv`](Self::recv) does.
    ///
    /// A piece is what has arrived, at most 64 KiB, so that a long message is never held. A short
    /// message that has arrived whole is one piece. A compressed message is decompressed while it
    /// arrives, by a decompressor of its own (about 75 KiB), and
    /// [`inflate_ratio_max`](Config::inflate_ratio_max) is checked for what has arrived so far. The
    /// limits [`message_max`](Config::message_max) and [`frame_max`](Config::frame_max) count as
    /// usual: raise them for long uploads.
    ///
    /// Dropping the future loses nothing. A `recv` within a message discards the rest of it; a
    /// `recv_piece` after a dropped `recv` begins with what has arrived.
    ///
    /// # Errors
    /// As for [`recv`](Self::recv).
    pub async fn recv_piece(&mut self) -> Result<Option<Piece<'_>>, RecvError> {
        self.inbox.set_pieces(&mut self.core, true);
        let found = poll_fn(|context| self.inbox.poll_next(&mut self.core, context)).await?;
        Ok(found.then(|| Piece::new(&mut self.inbox)))
    }

    /// Sends a message, and waits until the transport has taken everything.
    ///
    /// If the future is dropped, the message is sent whole or not at all. To know which, call
    /// [`feed`](Self::feed) and [`flush`](Self::flush).
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send(&mut self, message: impl Into<Outgoing<'_>>) -> Result<(), SendError> {
        let message = message.into();
        poll_fn(|context| self.poll_ready_now(context)).await?;
        let mut message = Some(message);
        poll_fn(|context| {
            if let Some(message) = message.take() {
                self.core.send(&message, Some(context))?;
            }
            self.core.poll_flush(context)
        })
        .await
    }

    /// Queues a message. It waits first while more than
    /// [`high_watermark`](Config::high_watermark) bytes wait for the transport. The message is
    /// sent by the next `flush`, `send` or `recv`.
    ///
    /// If the future is dropped before it is ready, the message is not queued.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn feed(&mut self, message: impl Into<Outgoing<'_>>) -> Result<(), SendError> {
        let message = message.into();
        poll_fn(|context| self.poll_ready_now(context)).await?;
        self.core.send(&message, None)
    }

    /// Waits until the transport has taken everything. Dropping the future loses nothing: later
    /// calls go on.
    ///
    /// # Errors
    /// [`SendError::Io`].
    pub async fn flush(&mut self) -> Result<(), SendError> {
        poll_fn(|context| self.poll_flush_now(context)).await
    }

    /// Sends a ping. `recv` receives the answer and does not show it. Dropping the future is as for
    /// [`send`](Self::send).
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn ping(&mut self, payload: &[u8]) -> Result<(), SendError> {
        poll_fn(|context| self.poll_ready_now(context)).await?;
        self.core.ping(payload)?;
        self.flush().await
    }

    /// Queues the Close frame. Then call [`recv`](Self::recv) until it returns `None`: the peer
    /// may have sent messages before it reads the frame. Nothing happens if this side has sent a
    /// Close frame before.
    ///
    /// # Errors
    /// [`SendError::BadCloseCode`], [`SendError::TooLong`] if the reason has more than 123 bytes,
    /// [`SendError::Io`].
    pub fn start_close(&mut self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        self.inbox.queue_unsent(&mut self.core);
        self.core.start_close(code, reason)
    }

    /// Closes the connection (RFC 6455 section 7): sends the Close frame, discards the messages
    /// that the peer has sent before it answers, and waits for its answer. With a timer it takes at
    /// most [`close_timeout`](Config::close_timeout).
    ///
    /// If the future is dropped, call it again to go on.
    ///
    /// # Errors
    /// Those of [`start_close`](Self::start_close) as [`CloseError::Send`], and those of
    /// [`recv`](Self::recv) as [`CloseError::Recv`].
    pub async fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), CloseError> {
        self.start_close(code, reason).map_err(CloseError::Send)?;
        while self.recv().await.map_err(CloseError::Recv)?.is_some() {}
        Ok(())
    }

    /// The Close frame that this side sent, unless it was the answer to the peer's.
    #[must_use]
    pub fn own_close(&self) -> Option<&CloseFrame> {
        self.core.own_close()
    }

    /// The peer's Close frame, if it has arrived.
    #[must_use]
    pub fn peer_close(&self) -> Option<&CloseFrame> {
        self.core.peer_close()
    }

    /// The subprotocol that the handshake chose.
    #[must_use]
    pub fn protocol(&self) -> Option<&str> {
        self.core.protocol.as_deref()
    }

    /// Whether the handshake agreed on permessage-deflate.
    #[must_use]
    pub fn has_compression(&self) -> bool {
        self.core.engine.has_deflate()
    }

    /// How many bytes wait for the transport.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.core.output.len() + self.inbox.unsent_len()
    }

    /// The transport.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.core.io
    }

    /// The transport. What is read from it or written to it is missing in the connection.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.core.io
    }

    /// Two halves for two tasks, which may be on different threads if the transport is `Send`.
    #[must_use]
    pub fn split(mut self) -> (Reader<S>, Writer<S>) {
        self.inbox.queue_unsent(&mut self.core);
        halves::split(self.inbox, self.core)
    }

    /// The transport, and the bytes that were read and not processed: after the end, those behind
    /// the peer's Close frame. What waits for the transport is discarded, unless
    /// [`flush`](Self::flush) was called.
    #[must_use]
    pub fn into_inner(self) -> (S, Vec<u8>) {
        let rest = self.inbox.unprocessed().to_vec();
        (self.core.io, rest)
    }

    fn poll_ready_now(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.inbox.queue_unsent(&mut self.core);
        self.core.poll_ready(context)
    }

    fn poll_flush_now(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        ready!(self.inbox.poll_flush(&mut self.core, context));
        self.core.poll_flush(context)
    }
}

/// Why a connection was not closed cleanly.
#[derive(Debug)]
#[non_exhaustive]
pub enum CloseError {
    /// The Close frame was not sent.
    Send(SendError),
    /// The peer's answer was not received.
    Recv(RecvError),
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send(error) => error.fmt(f),
            Self::Recv(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CloseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Send(error) => Some(error),
            Self::Recv(error) => Some(error),
        }
    }
}

/// The message that was found, with a payload of its own.
pub(crate) fn owned(
    inbox: &Inbox,
    found: Result<bool, RecvError>,
) -> Option<Result<Message, RecvError>> {
    match found {
        Ok(found) => found.then(|| Ok(inbox.to_message())),
        Err(error) => Some(Err(error)),
    }
}

/// Messages with a payload of their own, one allocation each. It ends after the clean end, and
/// after an error.
impl<S: Transport> Stream for WebSocket<S> {
    type Item = Result<Message, RecvError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { inbox, core } = &mut *self;
        if core.told_end().is_some() {
            return Poll::Ready(None);
        }
        inbox.set_pieces(core, false);
        inbox.poll_next(core, context).map(|found| owned(inbox, found))
    }
}

/// Closing sends the Close frame, and waits until the transport has taken everything. Call
/// [`recv`](Self::recv) until the end to receive the answer.
impl<S: Transport> Sink<Message> for WebSocket<S> {
    type Error = SendError;

    fn poll_ready(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        self.poll_ready_now(context)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), SendError> {
        let Self { inbox, core } = &mut *self;
        inbox.queue_unsent(core);
        core.send(&message.into(), None)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        self.poll_flush_now(context)
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        self.start_close(CloseCode::NORMAL, "")?;
        self.poll_flush_now(context)
    }
}

impl<S: Transport> fmt::Debug for WebSocket<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocket")
            .field("engine", &self.core.engine)
            .field("buffered", &self.buffered())
            .finish_non_exhaustive()
    }
}
