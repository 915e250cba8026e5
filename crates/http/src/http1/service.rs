//! [`Http1Service`]: the service as hyper uses it. It tells [`Idle`] when a request begins, and
//! permits no upgrade with a body.

use core::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use std::rc::Rc;

use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Incoming},
    header::{self, HeaderValue},
    service::Service,
};
use pin_project_lite::pin_project;

use crate::http1::idle::Idle;

pub(crate) struct Http1Service<S> {
    pub(crate) service: S,
    pub(crate) idle: Rc<Idle>,
}

impl<S, B> Service<Request<Incoming>> for Http1Service<S>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Http1Future<S::Future>;

    #[inline]
    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        self.idle.serves();
        let has_body = !request.body().is_end_stream();
        if has_body {
            // hyper would fulfil it at the end of the connection, whatever the status was.
            drop(hyper::upgrade::on(&mut request));
        }
        let is_connect = request.method() == Method::CONNECT;
        Http1Future { future: self.service.call(request), has_body, is_connect }
    }
}

pin_project! {
    /// The response of a service. To a request with a body, one that switches the protocol becomes
    /// status 400, and the connection ends. The service gets an error in place of the connection.
    ///
    /// hyper hands the connection over without regard to the body. Its bytes would be bytes of the
    /// next protocol, or vanish, as they happen to arrive. The response is replaced, and not the
    /// request rejected, because a server may ignore `Upgrade` (RFC 9110 section 7.8).
    pub(crate) struct Http1Future<F> {
        #[pin]
        future: F,
        has_body: bool,
        is_connect: bool,
    }
}

impl<F, B, E> Future for Http1Future<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let mut response = ready!(this.future.poll(context))?;
        if *this.has_body && switches(response.status(), *this.is_connect) {
            *response.status_mut() = StatusCode::BAD_REQUEST;
            response.headers_mut().clear();
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Poll::Ready(Ok(response))
    }
}

/// Whether the connection is no longer one of HTTP after a response with this status (RFC 9110
/// sections 15.2.2 and 9.3.6).
fn switches(status: StatusCode, is_connect: bool) -> bool {
    status == StatusCode::SWITCHING_PROTOCOLS || (is_connect && status.is_success())
}
