//! The socket: a stream and a sink of messages.

use std::{
    future::poll_fn,
    io::ErrorKind,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::{FusedStream, Stream};
use futures_sink::Sink;
use tokio::io::{AsyncRead, AsyncWrite};
use windlass_tungstenite::{
    Error, Message, WebSocket,
    protocol::{CloseFrame, LentMessage, Role, WebSocketConfig, WebSocketContext},
};

use crate::blocking::{Blocking, Half, Polled, or_pending};

/// A WebSocket after its handshake: a `Stream` and a `Sink` of messages.
///
/// Receiving loses nothing if its future is dropped. A message that a dropped future was sending is
/// sent by a later call, or was not accepted.
#[derive(Debug)]
pub struct WebSocketStream<S> {
    socket: WebSocket<Blocking<S>>,
    /// The end, or an error, was received.
    is_over: bool,
    /// A Close frame was queued by `poll_close`.
    is_closing: bool,
    /// The last message was not written, because the stream blocked.
    is_blocked: bool,
}

impl<S> WebSocketStream<S> {
    pub(crate) fn new(socket: WebSocket<Blocking<S>>) -> Self {
        Self { socket, is_over: false, is_closing: false, is_blocked: false }
    }

    /// A socket on a stream whose handshake is over.
    pub async fn from_raw_socket(stream: S, role: Role, config: Option<WebSocketConfig>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        Self::from_partially_read(stream, Vec::new(), role, config).await
    }

    /// A socket on a stream whose handshake is over, and of which `part` was read beyond it.
    pub async fn from_partially_read(
        stream: S,
        part: Vec<u8>,
        role: Role,
        config: Option<WebSocketConfig>,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let stream = Blocking::new(stream);
        Self::new(WebSocket::from_partially_read(stream, part, role, config))
    }

    /// The stream.
    pub fn into_inner(self) -> S {
        self.socket.into_inner().into_inner()
    }

    /// The stream.
    pub fn get_ref(&self) -> &S
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.socket.get_ref().get_ref()
    }

    /// The stream.
    pub fn get_mut(&mut self) -> &mut S
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.socket.get_mut().get_mut()
    }

    /// The settings.
    pub fn get_config(&self) -> &WebSocketConfig {
        self.socket.get_config()
    }

    /// Receives a message without a copy: it stays in the buffer where it was received, until the
    /// next call that receives. `None` is the end. The future may be dropped. Not in
    /// tokio-tungstenite.
    ///
    /// # Errors
    /// Those of receiving by `Stream`. After one, the end follows.
    pub async fn recv(&mut self) -> Option<Result<LentMessage<'_>, Error>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let received = poll_fn(|context| {
            self.poll_receive(context, |protocol, stream| protocol.__receive(stream))
        })
        .await;
        received.map(|received| received.map(|control| self.socket.__parts_mut().1.__lent(control)))
    }

    #[inline]
    fn poll_receive<M>(
        &mut self,
        context: &mut Context<'_>,
        receive: impl FnOnce(&mut WebSocketContext, &mut Polled<'_, S>) -> Result<M, Error>,
    ) -> Poll<Option<Result<M, Error>>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        if self.is_over {
            return Poll::Ready(None);
        }
        let (stream, protocol) = self.socket.__parts_mut();
        let mut stream = stream.polled(Half::Receiver, context.waker());
        let error = match ready!(or_pending(receive(protocol, &mut stream))) {
            Ok(message) => return Poll::Ready(Some(Ok(message))),
            Err(error) => error,
        };
        self.is_over = true;
        let is_end = matches!(error, Error::ConnectionClosed | Error::AlreadyClosed);
        Poll::Ready((!is_end).then_some(Err(error)))
    }

    /// Sends a Close frame. Then receive until the end.
    ///
    /// # Errors
    /// Those of sending.
    pub async fn close(&mut self, msg: Option<CloseFrame>) -> Result<(), Error>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        poll_fn(|context| self.poll_room(context)).await?;
        self.queue(Message::Close(msg))?;
        poll_fn(|context| self.poll_written(context)).await
    }

    /// Waits until a message that blocked is written.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        if self.is_blocked {
            self.socket.get_mut().register(Half::Sender, context.waker());
            let result = ready!(or_pending(self.socket.flush()));
            self.is_blocked = false;
            result?;
        }
        Poll::Ready(Ok(()))
    }

    fn queue(&mut self, message: Message) -> Result<(), Error>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        match or_pending(self.socket.write(message)) {
            Poll::Ready(result) => {
                self.is_blocked = false;
                result
            }
            Poll::Pending => {
                self.is_blocked = true;
                Ok(())
            }
        }
    }

    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.socket.get_mut().register(Half::Sender, context.waker());
        let result = ready!(or_pending(self.socket.flush()));
        self.is_blocked = false;
        Poll::Ready(ended(result))
    }
}

/// The end of the connection is no error of whoever flushes.
fn ended(result: Result<(), Error>) -> Result<(), Error> {
    if matches!(result, Err(Error::ConnectionClosed)) { Ok(()) } else { result }
}

impl<T> Stream for WebSocketStream<T>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    type Item = Result<Message, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_receive(context, |protocol, stream| protocol.read(stream))
    }
}

impl<T> FusedStream for WebSocketStream<T>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    fn is_terminated(&self) -> bool {
        self.is_over
    }
}

impl<T> Sink<Message> for WebSocketStream<T>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    type Error = Error;

    fn poll_ready(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Self::Error>> {
        self.poll_room(context)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Message) -> Result<(), Self::Error> {
        self.queue(item)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Self::Error>> {
        self.poll_written(context)
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Self::Error>> {
        self.is_blocked = false;
        self.socket.get_mut().register(Half::Sender, context.waker());
        let result = match self.is_closing {
            true => self.socket.flush(),
            false => self.socket.close(None),
        };
        if matches!(&result, Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock) {
            self.is_closing = true;
            return Poll::Pending;
        }
        Poll::Ready(ended(result))
    }
}
