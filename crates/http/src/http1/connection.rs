//! A connection, from its first bytes to its end.

use core::{future::poll_fn, pin::Pin, task::Poll};
use std::{io, rc::Rc};

use hyper::{
    Request, Response,
    body::{Body, Bytes, Incoming},
    rt::{Read, Write},
    server::conn::http1::UpgradeableConnection,
    service::Service,
};
use windlass_task::Pinned;

use crate::{
    HttpServer,
    graceful_shutdown::ShutdownWatcher,
    http1::{
        head_timer::{HeadLimit, HeadTimer, poll_with},
        idle::Idle,
        service::Http1Service,
        stream::Http1Stream,
    },
    prefixed::{Prefixed, poll_append},
    service::BoxError,
    write_timeout::WriteTimeout,
};

/// A connection of hyper.
type Hyper<I, S> = Pin<Box<UpgradeableConnection<Pinned<Http1Stream<I>>, Http1Service<S>>>>;

/// Serves requests until the end of the connection, whose first bytes were read.
pub(crate) async fn serve<I, S, B>(
    stream: Prefixed<I>,
    service: S,
    shutdown: &ShutdownWatcher,
    server: &HttpServer,
    mut output: WriteTimeout,
) -> hyper::Result<()>
where
    I: Read + Write + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>> + 'static,
    B: Body<Error: Into<BoxError>> + 'static,
{
    let idle = Rc::new(Idle::new(server.idle_buffers_timeout, server.header_timeout));
    let mut head = HeadLimit::new(Rc::clone(&idle));
    let mut parts = Parts { stream, read: None, service };
    loop {
        let mut connection = begin(parts, &idle, server);
        if let Some(outcome) = drive(&mut connection, &idle, shutdown, &mut output, &mut head).await
        {
            return outcome;
        }
        let Some(apart) = take_apart(connection, &idle) else { return Ok(()) };
        parts = apart;
        if parts.stream.read_buf.is_empty() {
            parts.read = wait(&mut parts.stream, &mut head, shutdown).await;
        }
    }
}

/// What a connection consists of without hyper.
struct Parts<I, S> {
    stream: Prefixed<I>,
    /// The result of a read without bytes, for hyper's first read.
    read: Option<io::Result<()>>,
    service: S,
}

fn begin<I, S, B>(parts: Parts<I, S>, idle: &Rc<Idle>, server: &HttpServer) -> Hyper<I, S>
where
    I: Read + Write + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>>,
    B: Body<Error: Into<BoxError>> + 'static,
{
    let Parts { stream, read, service } = parts;
    let stream = Pinned::new(Http1Stream { stream, read, idle: Rc::clone(idle) });
    let service = Http1Service { service, idle: Rc::clone(idle) };
    let mut builder = server.http1.clone();
    let timer = HeadTimer(Pinned::new(Rc::clone(idle)));
    builder.timer(timer).header_read_timeout(server.header_timeout);
    Box::pin(builder.serve_connection(stream, service).with_upgrades())
}

/// Serves requests until the end, or until the connection has been idle for some time: `None`.
///
/// A request that is there already is answered although the server is being shut down: hyper closes
/// a connection that it has read nothing of. One that was told to end is not idle any more, because
/// hyper ends its output at once ([`Http1Stream`]).
async fn drive<I, S, B>(
    connection: &mut Hyper<I, S>,
    idle: &Idle,
    shutdown: &ShutdownWatcher,
    output: &mut WriteTimeout,
    head: &mut HeadLimit,
) -> Option<hyper::Result<()>>
where
    I: Read + Write + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>>,
    B: Body<Error: Into<BoxError>> + 'static,
{
    let (mut is_told, mut is_late) = (false, false);
    poll_fn(|context| {
        loop {
            idle.polls();
            let poll = || connection.as_mut().poll(context).map(Some);
            let polled = poll_with(core::mem::take(&mut is_late), poll);
            if polled.is_ready() {
                return polled;
            }
            if !is_told && shutdown.is_draining(context.waker()) {
                is_told = true;
                connection.as_mut().graceful_shutdown();
            } else if output.poll(context).is_ready() {
                // Its stream fails now, and hyper returns that error.
                output.expire();
            } else if head.is_late(context) {
                // Its sleep is ready now, and hyper returns an error.
                is_late = true;
            } else if idle.may_be_taken_apart() {
                return Poll::Ready(None);
            } else {
                return Poll::Pending;
            }
        }
    })
    .await
}

/// `None` if the connection was upgraded, so not after a poll that was pending.
fn take_apart<I, S, B>(connection: Hyper<I, S>, idle: &Idle) -> Option<Parts<I, S>>
where
    I: Read + Write + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>>,
    B: Body<Error: Into<BoxError>> + 'static,
{
    debug_assert!(idle.may_be_taken_apart());
    idle.taken_apart();
    let parts = Pin::into_inner(connection).into_parts()?;
    let Http1Stream { mut stream, .. } = Pinned::into_inner(parts.io);
    debug_assert!(stream.read_buf.is_empty(), "a read was pending");
    if !parts.read_buf.is_empty() {
        stream.read_buf = parts.read_buf;
    }
    Some(Parts { stream, read: None, service: parts.service.service })
}

/// Waits for whatever comes next. Bytes are put before the stream, and the result of another read
/// is returned. There is neither at the time limit, and when the server is being shut down.
async fn wait<I: Read + Unpin>(
    stream: &mut Prefixed<I>,
    head: &mut HeadLimit,
    shutdown: &ShutdownWatcher,
) -> Option<io::Result<()>> {
    poll_fn(|context| {
        let mut bytes = Vec::new();
        match poll_append(&mut stream.stream, context, &mut bytes) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Some(Ok(()))),
            Poll::Ready(Ok(_)) => {
                stream.read_buf = Bytes::from(bytes);
                return Poll::Ready(None);
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
            Poll::Pending => {}
        }
        if shutdown.is_draining(context.waker()) {
            return Poll::Ready(None);
        }
        head.poll_deadline(context).map(|()| None)
    })
    .await
}
