//! A connection, from its first bytes to its end.

use core::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};
use std::{net::SocketAddr, rc::Rc};

use hyper::{
    Request, Response,
    body::{Body, Incoming},
    rt::{Read, Write},
    server::conn::http2,
    service::Service,
};
use windlass_task::rt::{WindlassExecutor, WindlassTimer};

use crate::{
    HttpServer,
    graceful_shutdown::ShutdownWatcher,
    http2::requests::{Http2Service, Reached, Requests, RequestsLimit},
    prefixed::Prefixed,
    service::BoxError,
    write_timeout::WriteTimeout,
};

/// Serves requests until the end of the connection, whose first bytes were read.
pub(crate) async fn serve<I, S, B>(
    stream: Prefixed<I>,
    service: S,
    shutdown: &ShutdownWatcher,
    server: &Rc<HttpServer>,
    output: WriteTimeout,
    peer: Option<SocketAddr>,
) -> hyper::Result<()>
where
    I: Read + Write + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>, Future: 'static>,
    B: Body<Data: 'static, Error: Into<BoxError>> + 'static,
{
    let mut builder = server.http2.clone();
    builder.timer(WindlassTimer::new());
    let requests = Requests::new(Rc::clone(server), peer);
    let limits = Limits { output, requests: RequestsLimit::new(Rc::clone(&requests)) };
    let service = Http2Service { service, requests };
    drive(Box::pin(builder.serve_connection(stream, service)), shutdown, limits).await
}

/// The time limits of a connection, beside those of hyper.
struct Limits {
    output: WriteTimeout,
    requests: RequestsLimit,
}

impl Limits {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Reached> {
        if self.output.poll(context).is_ready() {
            return Poll::Ready(Reached::Stalled);
        }
        self.requests.poll(context)
    }
}

/// A request that is there already is answered although the server is being shut down: h2 takes
/// requests until its peer has seen the shutdown.
async fn drive<I, S, B>(
    mut connection: Pin<Box<http2::Connection<I, S, WindlassExecutor>>>,
    shutdown: &ShutdownWatcher,
    mut limits: Limits,
) -> hyper::Result<()>
where
    I: Read + Write + Unpin,
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>, Future: 'static>,
    B: Body<Data: 'static, Error: Into<BoxError>> + 'static,
{
    let (mut is_told, mut has_stalled) = (false, false);
    poll_fn(|context| {
        loop {
            let polled = connection.as_mut().poll(context);
            if polled.is_ready() {
                return polled;
            }
            if !is_told && shutdown.is_draining(context.waker()) {
                is_told = true;
                connection.as_mut().graceful_shutdown();
                continue;
            }
            match limits.poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Reached::Idle) => connection.as_mut().graceful_shutdown(),
                // Its stream fails now, and hyper returns that error.
                Poll::Ready(Reached::Stalled) if !has_stalled => {
                    has_stalled = true;
                    limits.output.expire();
                }
                Poll::Ready(Reached::Stalled | Reached::Late) => return Poll::Ready(Ok(())),
            }
        }
    })
    .await
}
