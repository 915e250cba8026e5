//! A connection: handshake, protocol, requests, end.

use core::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
};
use std::{
    error::Error,
    io::{self, ErrorKind},
    net::SocketAddr,
    rc::Rc,
};

use hyper::{
    Request, Response,
    body::{Body, Incoming},
    rt::{Read, Write},
    server::conn::http2,
    service::Service,
};
use windlass_task::{
    rt::{WindlassExecutor, WindlassTimer},
    time::timeout,
};

use crate::{
    ConnectionInfo, Handshaken, HttpServer, HttpVersion, ServeEvent, http1, live::Place,
    prefixed::Prefixed, service::ConnectionService,
};

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// The task of a connection.
pub(crate) async fn run<H, I, S, B>(
    handshake: H,
    peer: Option<SocketAddr>,
    place: Place,
    server: Rc<HttpServer>,
    service: Rc<S>,
) where
    H: Future<Output = io::Result<Handshaken<I>>>,
    I: Read + Write + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>, Future: 'static>,
    S: 'static,
    B: Body<Data: 'static, Error: Into<BoxError>> + 'static,
{
    let opened = match until_drain(&place, open(handshake, &server)).await {
        Some(Ok(opened)) => opened,
        Some(Err(error)) => {
            return server.report(&ServeEvent::HandshakeFailed { peer, error: &error });
        }
        None => return,
    };
    let Some(Opened { version, stream, is_encrypted }) = opened else { return };
    let info = server.has_info.then_some(ConnectionInfo { peer, is_encrypted });
    let service = ConnectionService { service, info };
    let outcome = match version {
        HttpVersion::Http1 => http1::serve(stream, service, &place, &server).await,
        HttpVersion::Http2 => {
            let mut builder = server.http2.clone();
            builder.timer(WindlassTimer::new());
            drive(Box::pin(builder.serve_connection(stream, service)), &place).await
        }
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

/// The handshake, and the first bytes. `None` if the peer has ended the connection before.
async fn open<H, I>(handshake: H, server: &HttpServer) -> io::Result<Option<Opened<I>>>
where
    H: Future<Output = io::Result<Handshaken<I>>>,
    I: Read + Unpin,
{
    let Handshaken { stream, version, is_encrypted } = timeout(server.handshake_timeout, handshake)
        .await
        .map_err(|_| late("no handshake", "handshake_timeout"))??;
    let known = match (server.has_http1, server.has_http2) {
        (true, true) => version,
        (true, false) => Some(HttpVersion::Http1),
        _ => Some(HttpVersion::Http2),
    };
    if version.is_some() && version != known {
        return Err(io::Error::new(
            ErrorKind::Unsupported,
            "the handshake has negotiated a version of HTTP that the server has switched off: \
             change the protocols of its ALPN",
        ));
    }
    let detected = timeout(server.header_timeout, Prefixed::detect(stream, known))
        .await
        .map_err(|_| late("no request", "header_timeout"))??;
    Ok(detected.map(|(version, stream)| Opened { version, stream, is_encrypted }))
}

fn late(what: &str, setting: &str) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, format!("{what} came within the time of `{setting}`"))
}

/// Waits for a future, unless the server is being shut down. What is there already counts.
async fn until_drain<F: Future>(place: &Place, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if place.is_draining(context.waker()) => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// A connection of hyper.
trait Connection: Future<Output = hyper::Result<()>> {
    fn graceful_shutdown(self: Pin<&mut Self>);
}

impl<I, S, B> Connection for http2::Connection<I, S, WindlassExecutor>
where
    I: Read + Write + Unpin,
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>, Future: 'static>,
    B: Body<Data: 'static, Error: Into<BoxError>> + 'static,
{
    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Serves requests until the end of the connection. A request that is there already is answered
/// although the server is being shut down: hyper closes a connection that it has read nothing of.
async fn drive<C: Connection>(mut connection: Pin<Box<C>>, place: &Place) -> hyper::Result<()> {
    let mut is_told = false;
    poll_fn(|context| {
        let polled = connection.as_mut().poll(context);
        if polled.is_ready() || is_told || !place.is_draining(context.waker()) {
            return polled;
        }
        is_told = true;
        connection.as_mut().graceful_shutdown();
        connection.as_mut().poll(context)
    })
    .await
}
