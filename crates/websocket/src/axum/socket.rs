//! The socket, and its task.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum_core::Error;
use futures_core::{FusedStream, Stream};
use futures_sink::Sink;
use hyper::header::HeaderValue;

use super::{Message, OnFailedUpgrade, shared::Shared};
use crate::upgrade::Upgrading;

/// A WebSocket, with the calls that axum's has. Dropping it ends the connection, and sends no Close
/// frame.
pub struct WebSocket {
    shared: Arc<Shared>,
    protocol: Option<HeaderValue>,
}

impl WebSocket {
    /// Waits for the next message. `None` is the end: after the peer's Close frame, or an error.
    ///
    /// Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<Result<Message, Error>> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// Sends a message. If the future is dropped, it is sent whole or not at all.
    ///
    /// # Errors
    /// The connection has failed or is closed, or a control frame is too long.
    pub async fn send(&mut self, message: Message) -> Result<(), Error> {
        let mut message = Some(message);
        poll_fn(|context| {
            if message.is_some() {
                ready!(self.shared.poll_ready(context))?;
            }
            if let Some(message) = message.take() {
                self.shared.send(message)?;
            }
            self.shared.poll_flush(context)
        })
        .await
        .map_err(Error::new)
    }

    /// The subprotocol that was selected.
    pub fn protocol(&self) -> Option<&HeaderValue> {
        self.protocol.as_ref()
    }

    fn poll_recv(&self, context: &Context<'_>) -> Poll<Option<Result<Message, Error>>> {
        self.shared.poll_receive(context).map(|received| received.map(|it| it.map_err(Error::new)))
    }
}

impl Drop for WebSocket {
    fn drop(&mut self) {
        self.shared.abandon();
    }
}

impl Stream for WebSocket {
    type Item = Result<Message, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_recv(context)
    }
}

impl FusedStream for WebSocket {
    fn is_terminated(&self) -> bool {
        self.shared.is_terminated()
    }
}

/// Closing sends the Close frame. Receive until the end to get the answer.
impl Sink<Message> for WebSocket {
    type Error = Error;

    fn poll_ready(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.shared.poll_ready(context).map_err(Error::new)
    }

    fn start_send(self: Pin<&mut Self>, message: Message) -> Result<(), Error> {
        self.shared.queue(message).map_err(Error::new)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.shared.poll_flush(context).map_err(Error::new)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.shared.start_close().map_err(Error::new)?;
        self.shared.poll_flush(context).map_err(Error::new)
    }
}

impl fmt::Debug for WebSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocket").field("protocol", &self.protocol).finish_non_exhaustive()
    }
}

/// The task of a socket: waits for the upgrade, and runs the callback.
pub(super) async fn run<C, Fut, F>(
    mut upgrading: Upgrading,
    protocol: Option<HeaderValue>,
    write_buffer: usize,
    callback: C,
    failed: F,
) where
    C: FnOnce(WebSocket) -> Fut,
    Fut: Future<Output = ()>,
    F: OnFailedUpgrade,
{
    let core = match poll_fn(|context| upgrading.poll_core(context)).await {
        Ok(core) => core,
        Err(error) => return failed.call(Error::new(error)),
    };
    let shared = Arc::new(Shared::new(core, write_buffer));
    let mut user = pin!(callback(WebSocket { shared: Arc::clone(&shared), protocol }));
    let mut is_over = false;
    poll_fn(|context| {
        if !is_over {
            let _polled = shared.poll_begins();
            is_over = user.as_mut().poll(context).is_ready();
        }
        let written = shared.poll_deferred(context);
        if is_over { written } else { Poll::Pending }
    })
    .await;
}
