//! Services of hyper and tower as one.

use core::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
};
use std::{error::Error, net::SocketAddr, rc::Rc};

use hyper::{Request, Response, body::Incoming};
use pin_project_lite::pin_project;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// The connection that a request came on. It is among the extensions of requests, if
/// [`connection_info`](crate::HttpServer::connection_info) is on. In axum, use
/// `Extension<ConnectionInfo>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// The peer's address, if it has one.
    pub peer: Option<SocketAddr>,
    /// Whether the connection is encrypted.
    pub is_encrypted: bool,
}

/// The services that a server takes: those of hyper, and those of tower that can be cloned, as
/// axum's `Router`.
///
/// `Kind` is [`FromHyper`] or [`FromTower`], and is inferred.
pub trait IntoHttpService<Kind> {
    /// The body of responses.
    type Body;
    /// The error of the service, which ends the connection.
    type Error;
    /// The future of a response.
    type Future: Future<Output = Result<Response<Self::Body>, Self::Error>>;
    /// The service of hyper.
    type Service: hyper::service::Service<
            Request<Incoming>,
            Response = Response<Self::Body>,
            Error = Self::Error,
            Future = Self::Future,
        > + 'static;

    /// Makes it a service of hyper.
    fn into_http_service(self) -> Self::Service;
}

/// The kind of hyper's services in [`IntoHttpService`].
#[derive(Debug)]
pub struct FromHyper(PhantomData<()>);

/// The kind of tower's services in [`IntoHttpService`].
#[derive(Debug)]
pub struct FromTower(PhantomData<()>);

impl<S, B> IntoHttpService<FromHyper> for S
where
    S: hyper::service::Service<Request<Incoming>, Response = Response<B>> + 'static,
{
    type Body = B;
    type Error = S::Error;
    type Future = S::Future;
    type Service = S;

    fn into_http_service(self) -> S {
        self
    }
}

impl<S, B> IntoHttpService<FromTower> for S
where
    S: tower_service::Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
{
    type Body = B;
    type Error = S::Error;
    type Future = TowerFuture<S>;
    type Service = TowerService<S>;

    fn into_http_service(self) -> TowerService<S> {
        TowerService(self)
    }
}

/// A service of tower as one of hyper. It is cloned for each request.
#[derive(Clone, Debug)]
pub struct TowerService<S>(pub S);

impl<S, B> hyper::service::Service<Request<Incoming>> for TowerService<S>
where
    S: tower_service::Service<Request<Incoming>, Response = Response<B>> + Clone,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = TowerFuture<S>;

    fn call(&self, request: Request<Incoming>) -> TowerFuture<S> {
        TowerFuture { state: TowerState::Waits { service: self.0.clone(), request: Some(request) } }
    }
}

pin_project! {
    /// Waits until the service is ready, and then for its response.
    #[derive(Debug)]
    pub struct TowerFuture<S: tower_service::Service<Request<Incoming>>> {
        #[pin]
        state: TowerState<S, S::Future>,
    }
}

pin_project! {
    #[project = TowerStateProjection]
    #[derive(Debug)]
    enum TowerState<S, F> {
        Waits { service: S, request: Option<Request<Incoming>> },
        Runs { #[pin] future: F },
    }
}

impl<S: tower_service::Service<Request<Incoming>>> Future for TowerFuture<S> {
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                TowerStateProjection::Waits { service, request } => {
                    ready!(service.poll_ready(context))?;
                    let request = request.take().expect("a future is not polled after its end");
                    let future = service.call(request);
                    state.set(TowerState::Runs { future });
                }
                TowerStateProjection::Runs { future } => return future.poll(context),
            }
        }
    }
}

/// A service as a connection uses it.
pub(crate) struct ConnectionService<S> {
    pub(crate) service: Rc<S>,
    /// For the extensions of requests.
    pub(crate) info: Option<ConnectionInfo>,
}

impl<S: hyper::service::Service<Request<Incoming>>> hyper::service::Service<Request<Incoming>>
    for ConnectionService<S>
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    #[inline]
    fn call(&self, mut request: Request<Incoming>) -> S::Future {
        if let Some(info) = self.info {
            request.extensions_mut().insert(info);
        }
        self.service.call(request)
    }
}
