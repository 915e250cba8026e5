//! Opening handshakes.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite};
use windlass_tungstenite::{
    Error,
    client::IntoClientRequest,
    handshake::{
        HandshakeError, HandshakeRole, MidHandshake,
        client::{ClientHandshake, Response},
        server::{Callback, NoCallback, ServerHandshake},
    },
    protocol::WebSocketConfig,
};

use crate::{
    WebSocketStream,
    blocking::{Blocking, Half},
};

/// Makes the handshake of a client on this stream, with default settings.
///
/// # Errors
/// Those of the request, the response and the stream.
#[allow(clippy::extra_unused_lifetimes, reason = "callers may name it")]
pub async fn client_async<'a, R, S>(
    request: R,
    stream: S,
) -> Result<(WebSocketStream<S>, Response), Error>
where
    R: IntoClientRequest + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    client_async_with_config(request, stream, None).await
}

/// Makes the handshake of a client on this stream.
///
/// # Errors
/// Those of the request, the response and the stream.
#[allow(clippy::extra_unused_lifetimes, reason = "callers may name it")]
pub async fn client_async_with_config<'a, R, S>(
    request: R,
    stream: S,
    config: Option<WebSocketConfig>,
) -> Result<(WebSocketStream<S>, Response), Error>
where
    R: IntoClientRequest + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let request = request.into_client_request()?;
    let started = ClientHandshake::start(Blocking::new(stream), request, config)?;
    let (socket, response) = complete(started).await?;
    Ok((WebSocketStream::new(socket), response))
}

/// Makes the handshake of a server on this stream, with default settings.
///
/// # Errors
/// Those of the request and the stream.
pub async fn accept_async<S>(stream: S) -> Result<WebSocketStream<S>, Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    accept_async_with_config(stream, None).await
}

/// Makes the handshake of a server on this stream.
///
/// # Errors
/// Those of the request and the stream.
pub async fn accept_async_with_config<S>(
    stream: S,
    config: Option<WebSocketConfig>,
) -> Result<WebSocketStream<S>, Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    accept_hdr_async_with_config(stream, NoCallback, config).await
}

/// Makes the handshake of a server on this stream, with default settings. The callback sees the
/// request, and decides.
///
/// # Errors
/// Those of the request and the stream. A refusal is [`Error::Http`].
pub async fn accept_hdr_async<S, C>(stream: S, callback: C) -> Result<WebSocketStream<S>, Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Callback + Unpin,
{
    accept_hdr_async_with_config(stream, callback, None).await
}

/// Makes the handshake of a server on this stream. The callback sees the request, and decides.
///
/// # Errors
/// Those of the request and the stream. A refusal is [`Error::Http`].
pub async fn accept_hdr_async_with_config<S, C>(
    stream: S,
    callback: C,
    config: Option<WebSocketConfig>,
) -> Result<WebSocketStream<S>, Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Callback + Unpin,
{
    let started = ServerHandshake::start(Blocking::new(stream), callback, config);
    Ok(WebSocketStream::new(complete(started).await?))
}

/// A handshake on an asynchronous stream.
trait OnAsync: HandshakeRole {
    fn register(stream: &mut Self::InternalStream, context: &Context<'_>);
}

impl<S: AsyncRead + AsyncWrite + Unpin> OnAsync for ClientHandshake<Blocking<S>> {
    fn register(stream: &mut Blocking<S>, context: &Context<'_>) {
        stream.register(Half::Receiver, context.waker());
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, C: Callback> OnAsync for ServerHandshake<Blocking<S>, C> {
    fn register(stream: &mut Blocking<S>, context: &Context<'_>) {
        stream.register(Half::Receiver, context.waker());
    }
}

async fn complete<R: OnAsync>(started: MidHandshake<R>) -> Result<R::FinalResult, Error> {
    let mut handshake = Some(started);
    poll_fn(|context| {
        let Some(mut current) = handshake.take() else {
            unreachable!("a complete future is polled")
        };
        R::register(current.get_mut().get_mut(), context);
        match current.handshake() {
            Ok(result) => Poll::Ready(Ok(result)),
            Err(HandshakeError::Failure(error)) => Poll::Ready(Err(error)),
            Err(HandshakeError::Interrupted(current)) => {
                handshake = Some(current);
                Poll::Pending
            }
        }
    })
    .await
}
