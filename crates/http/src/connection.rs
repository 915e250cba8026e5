//! A connection: handshake, protocol, requests, end.

use core::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};
use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    rc::Rc,
};

use hyper::{
    Request, Response,
    body::{Body, Incoming},
    rt::{Read, Write},
    service::Service,
};
use windlass_task::time::timeout;

use crate::{
    ConnectionInfo, Handshaken, HttpServer, HttpVersion, ServeEvent,
    graceful_shutdown::ShutdownWatcher,
    http1, http2,
    prefixed::Prefixed,
    service::{BoxError, ConnectionService},
    write_timeout::WriteTimeout,
};

/// A connection before its handshake.
pub(crate) struct Accepted<H, I> {
    pub(crate) handshake: H,
    pub(crate) peer: Option<SocketAddr>,
    /// [`HttpListener::reset_at_drop`](crate::HttpListener::reset_at_drop).
    pub(crate) reset_at_drop: fn(&I),
}

/// The task of a connection.
pub(crate) async fn run<H, I, S, B>(
    accepted: Accepted<H, I>,
    shutdown: ShutdownWatcher,
    server: Rc<HttpServer>,
    service: Rc<S>,
) where
    H: Future<Output = io::Result<Handshaken<I>>>,
    I: Read + Write + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>, Future: 'static>,
    S: 'static,
    B: Body<Data: 'static, Error: Into<BoxError>> + 'static,
{
    let Accepted { handshake, peer, reset_at_drop } = accepted;
    let opened = match until_drain(&shutdown, open(handshake, reset_at_drop, &server)).await {
        Some(Ok(opened)) => opened,
        Some(Err(OpenError::Handshake(error))) => {
            return server.report(&ServeEvent::HandshakeFailed { peer, error: &error });
        }
        Some(Err(OpenError::Request(error))) => {
            return server.report(&ServeEvent::NoRequest { peer, error: &error });
        }
        None => return,
    };
    let Some(Opened { version, stream, is_encrypted }) = opened else { return };
    let info = server.has_info.then_some(ConnectionInfo { peer, is_encrypted });
    let service = ConnectionService { service, info };
    let output = WriteTimeout::new(Rc::clone(&stream.output), server.write_timeout);
    let outcome = match version {
        HttpVersion::Http1 => http1::serve(stream, service, &shutdown, &server, output).await,
        HttpVersion::Http2 => http2::serve(stream, service, &shutdown, &server, output, peer).await,
    };
    if let Err(error) = outcome {
        server.report(&ServeEvent::ConnectionFailed { peer, error: &error });
    }
}

struct Opened<I> {
    version: HttpVersion,
    stream: Prefixed<I>,
    is_encrypted: bool,
}

/// What has failed before a request.
enum OpenError {
    Handshake(io::Error),
    Request(io::Error),
}

/// The handshake, and the first bytes. `None` if the peer has ended the connection before.
async fn open<H, I>(
    handshake: H,
    reset_at_drop: fn(&I),
    server: &HttpServer,
) -> Result<Option<Opened<I>>, OpenError>
where
    H: Future<Output = io::Result<Handshaken<I>>>,
    I: Read + Unpin,
{
    let Handshaken { stream, version, is_encrypted } = timeout(server.handshake_timeout, handshake)
        .await
        .unwrap_or_else(|_| Err(late("no handshake", "handshake_timeout")))
        .map_err(OpenError::Handshake)?;
    let known = match (server.has_http1, server.has_http2) {
        (true, true) => version,
        (true, false) => Some(HttpVersion::Http1),
        _ => Some(HttpVersion::Http2),
    };
    if version.is_some() && version != known {
        return Err(OpenError::Handshake(io::Error::new(
            ErrorKind::Unsupported,
            "the handshake has negotiated a version of HTTP that the server has switched off: \
             change the protocols of its ALPN",
        )));
    }
    let detected = timeout(server.header_timeout, Prefixed::detect(stream, known, reset_at_drop))
        .await
        .unwrap_or_else(|_| Err(late("no request", "header_timeout")))
        .map_err(OpenError::Request)?;
    Ok(detected.map(|(version, stream)| Opened { version, stream, is_encrypted }))
}

fn late(what: &str, setting: &str) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, format!("{what} came within the time of `{setting}`"))
}

/// Waits for a future, unless the server is being shut down. What is there already counts.
async fn until_drain<F: Future>(shutdown: &ShutdownWatcher, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if shutdown.is_draining(context.waker()) => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
    .await
}
