//! [`TrackedService`]: tells when a request begins, and when its response has ended.

use core::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use std::sync::Arc;

use hyper::{
    Request, Response,
    body::{Body, Frame, Incoming, SizeHint},
    service::Service,
};
use pin_project_lite::pin_project;

use crate::idle::Idle;

pub(crate) struct TrackedService<S> {
    pub(crate) service: S,
    pub(crate) idle: Arc<Idle>,
}

impl<S, B> Service<Request<Incoming>> for TrackedService<S>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
{
    type Response = Response<TrackedBody<B>>;
    type Error = S::Error;
    type Future = TrackedFuture<S::Future>;

    #[inline]
    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.idle.busy();
        let answers = Answers(Arc::clone(&self.idle));
        TrackedFuture { future: self.service.call(request), answers: Some(answers) }
    }
}

/// Exists until the response has ended.
struct Answers(Arc<Idle>);

impl Drop for Answers {
    fn drop(&mut self) {
        self.0.ends();
    }
}

pin_project! {
    pub(crate) struct TrackedFuture<F> {
        #[pin]
        future: F,
        // `None` once it has moved to the body.
        answers: Option<Answers>,
    }
}

impl<F, B, E> Future for TrackedFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<TrackedBody<B>>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.future.poll(context))?;
        let answers = this.answers.take();
        Poll::Ready(Ok(response.map(|body| TrackedBody { body, answers })))
    }
}

pin_project! {
    /// The body of a response.
    pub(crate) struct TrackedBody<B> {
        #[pin]
        body: B,
        answers: Option<Answers>,
    }
}

impl<B: Body> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(context)
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
