//! The requests of a connection of HTTP/2: counted, timed, and their failures reported.
//!
//! hyper runs each of them in a task of its own, and tells nobody when one ends or fails.
//!
//! 1. A request is open as long as one of its parts is there: the future of its response, the body,
//!    or data that h2 has not sent yet. Each has a [`Part`].
//! 2. A request that is answered and whose data was sent leaves nothing.
//! 3. A tunnel of `CONNECT` has no such parts. Its connection counts as one that is never idle.

use core::{
    any::Any,
    cell::Cell,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};
use std::{
    io::IoSlice,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    time::Duration,
};

use hyper::{
    Method, Request, Response,
    body::{Body, Buf, Frame, Incoming, SizeHint},
    service::Service,
};
use pin_project_lite::pin_project;
use windlass_task::time::{Sleep, now, sleep_until};

use crate::{HttpServer, ServeEvent, service::BoxError};

/// The error of a stream.
const PANICKED: &str = "the service has panicked";

/// What the requests of a connection share with its task.
pub(crate) struct Requests {
    server: Rc<HttpServer>,
    peer: Option<SocketAddr>,
    parts: Cell<usize>,
    /// The number of parts that are data.
    unsent: Cell<usize>,
    /// Grows when the peer takes data. It may wrap.
    progress: Cell<u32>,
}

impl Requests {
    pub(crate) fn new(server: Rc<HttpServer>, peer: Option<SocketAddr>) -> Rc<Self> {
        let (parts, unsent, progress) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Rc::new(Self { server, peer, parts, unsent, progress })
    }

    fn advance(&self) {
        self.progress.set(self.progress.get().wrapping_add(1));
    }

    /// Reports the error of a service or of its body. The conversion is the service's code.
    fn failed(&self, error: impl Into<BoxError>) -> BoxError {
        match self.call(|| error.into()) {
            Ok(error) => {
                self.server.report(&ServeEvent::StreamFailed { peer: self.peer, error: &*error });
                error
            }
            Err(panicked) => panicked,
        }
    }

    /// Calls a service's code. Its panic is reported, and becomes the error of the stream.
    fn call<T>(&self, code: impl FnOnce() -> T) -> Result<T, BoxError> {
        catch_unwind(AssertUnwindSafe(code)).map_err(|payload: Box<dyn Any + Send>| {
            self.server.report(&ServeEvent::ServicePanicked);
            // Its destructor is the service's code as well.
            if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                mem::forget(second);
            }
            PANICKED.into()
        })
    }
}

/// A part of a request.
struct Part(Rc<Requests>);

impl Part {
    fn new(requests: &Rc<Requests>) -> Self {
        requests.parts.set(requests.parts.get() + 1);
        Self(Rc::clone(requests))
    }

    /// Counts a part that never ends.
    fn stays_open(&self) {
        self.0.parts.set(self.0.parts.get() + 1);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.0.parts.set(self.0.parts.get() - 1);
    }
}

/// A service, as a connection of HTTP/2 uses it.
pub(crate) struct Http2Service<S> {
    pub(crate) service: S,
    pub(crate) requests: Rc<Requests>,
}

impl<S, B> Service<Request<Incoming>> for Http2Service<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>>,
    B: Body<Error: Into<BoxError>>,
{
    type Response = Response<Http2Body<B>>;
    type Error = BoxError;
    type Future = Http2Future<S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let is_tunnel = request.method() == Method::CONNECT;
        let (future, error) = match self.requests.call(|| self.service.call(request)) {
            Ok(future) => (Some(future), None),
            Err(error) => (None, Some(error)),
        };
        Http2Future { future, error, is_tunnel, part: Some(Part::new(&self.requests)) }
    }
}

pin_project! {
    /// The future of a response.
    pub(crate) struct Http2Future<F> {
        #[pin]
        future: Option<F>,
        // Of a service that has panicked before it made a future.
        error: Option<BoxError>,
        is_tunnel: bool,
        part: Option<Part>,
    }

    impl<F> PinnedDrop for Http2Future<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            if let Some(part) = this.part {
                let _ = part.0.call(|| this.future.set(None));
            }
        }
    }
}

impl<F, B, E> Future for Http2Future<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<Http2Body<B>>, BoxError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        const ONCE: &str = "a future is not polled after its end";
        let mut this = self.project();
        let Some(future) = this.future.as_mut().as_pin_mut() else {
            return Poll::Ready(Err(this.error.take().expect(ONCE)));
        };
        let part = this.part.as_ref().expect(ONCE);
        let polled = part.0.call(|| future.poll(context));
        let response = match polled {
            Ok(polled) => ready!(polled).map_err(|error| part.0.failed(error))?,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let dropped = part.0.call(|| this.future.set(None));
        let part = this.part.take().expect(ONCE);
        let is_tunnel = *this.is_tunnel && response.status().is_success();
        if is_tunnel {
            part.stays_open();
        }
        let response = response.map(|body| Http2Body::new(body, part, is_tunnel));
        Poll::Ready(dropped.map(|()| response))
    }
}

pin_project! {
    /// The body of a response.
    pub(crate) struct Http2Body<B> {
        // `None` in the destructor.
        #[pin]
        body: Option<B>,
        part: Part,
        // That of a tunnel is not sent.
        is_tunnel: bool,
        has_panicked: Cell<bool>,
    }

    impl<B> PinnedDrop for Http2Body<B> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            let _ = this.part.0.call(|| this.body.set(None));
        }
    }
}

impl<B> Http2Body<B> {
    fn new(body: B, part: Part, is_tunnel: bool) -> Self {
        Self { body: Some(body), part, is_tunnel, has_panicked: Cell::new(false) }
    }

    /// Asks the body. A panic ends it: the answer is `otherwise`, and its next frame an error.
    fn ask<T>(&self, otherwise: T, question: impl FnOnce(&B) -> T) -> T {
        let Some(body) = self.body.as_ref().filter(|_| !self.is_tunnel) else { return otherwise };
        self.part.0.call(|| question(body)).unwrap_or_else(|_| {
            self.has_panicked.set(true);
            otherwise
        })
    }
}

impl<B: Body<Error: Into<BoxError>>> Body for Http2Body<B> {
    type Data = Unsent<B::Data>;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, BoxError>>> {
        let this = self.project();
        let (part, Some(body)) = (this.part, this.body.as_pin_mut()) else {
            return Poll::Ready(None);
        };
        if *this.is_tunnel {
            return Poll::Ready(None);
        }
        if this.has_panicked.get() {
            return Poll::Ready(Some(Err(PANICKED.into())));
        }
        let polled = match part.0.call(|| body.poll_frame(context)) {
            Ok(polled) => ready!(polled),
            Err(error) => return Poll::Ready(Some(Err(error))),
        };
        Poll::Ready(polled.map(|frame| match frame {
            Ok(frame) => Ok(frame.map_data(|data| Unsent::new(data, &part.0))),
            Err(error) => Err(part.0.failed(error)),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.ask(false, B::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.ask(SizeHint::default(), B::size_hint)
    }
}

/// Data of a response until it is sent.
pub(crate) struct Unsent<D> {
    data: D,
    part: Part,
}

impl<D> Unsent<D> {
    fn new(data: D, requests: &Rc<Requests>) -> Self {
        // Time that passed before does not count.
        if requests.unsent.replace(requests.unsent.get() + 1) == 0 {
            requests.advance();
        }
        Self { data, part: Part::new(requests) }
    }
}

impl<D> Drop for Unsent<D> {
    fn drop(&mut self) {
        let requests = &self.part.0;
        requests.unsent.set(requests.unsent.get() - 1);
    }
}

impl<D: Buf> Buf for Unsent<D> {
    #[inline]
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    #[inline]
    fn chunks_vectored<'a>(&'a self, parts: &mut [IoSlice<'a>]) -> usize {
        self.data.chunks_vectored(parts)
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        self.part.0.advance();
        self.data.advance(count);
    }
}

/// A limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// There was no request for too long: the connection is to end gracefully.
    Idle,
    /// The peer takes no data: the connection has failed.
    Stalled,
    /// The peer does not take part in the graceful end: it is to end at once.
    Late,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There may be requests.
    Busy,
    /// There was none at the last look.
    Idle,
    /// The connection was told to end.
    Closing,
}

/// The time limits of a connection of HTTP/2.
///
/// One timer looks at the counts. So a request costs no look at a clock, and what is found is found
/// at most one `write_timeout` late.
pub(crate) struct RequestsLimit {
    requests: Rc<Requests>,
    sleep: Pin<Box<Sleep>>,
    phase: Phase,
    /// The progress at the last look.
    seen: u32,
}

impl RequestsLimit {
    pub(crate) fn new(requests: Rc<Requests>) -> Self {
        let sleep = Box::pin(sleep_until(now() + requests.server.http2_idle_timeout));
        Self { requests, sleep, phase: Phase::Idle, seen: 0 }
    }

    /// Ready when a limit is reached. Call it after each poll of the connection.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Reached> {
        let write_timeout = self.requests.server.write_timeout;
        if self.phase == Phase::Idle && self.requests.parts.get() > 0 {
            self.look_after(Phase::Busy, write_timeout);
        }
        loop {
            ready!(self.sleep.as_mut().poll(context));
            let (is_idle, has_unsent) =
                (self.requests.parts.get() == 0, self.requests.unsent.get() > 0);
            let has_moved = self.seen != self.requests.progress.get();
            match self.phase {
                Phase::Busy | Phase::Closing if has_unsent && !has_moved => {
                    return Poll::Ready(Reached::Stalled);
                }
                Phase::Closing if is_idle => return Poll::Ready(Reached::Late),
                Phase::Idle if is_idle => {
                    self.look_after(Phase::Closing, write_timeout);
                    return Poll::Ready(Reached::Idle);
                }
                Phase::Busy if is_idle => {
                    self.look_after(Phase::Idle, self.requests.server.http2_idle_timeout);
                }
                Phase::Busy | Phase::Idle => self.look_after(Phase::Busy, write_timeout),
                Phase::Closing => self.look_after(Phase::Closing, write_timeout),
            }
        }
    }

    fn look_after(&mut self, phase: Phase, span: Duration) {
        self.phase = phase;
        self.seen = self.requests.progress.get();
        self.sleep.as_mut().get_mut().reset(now() + span);
    }
}
