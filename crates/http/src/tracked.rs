//! [`TrackedService`]: tells when a request begins.

use std::rc::Rc;

use hyper::{Request, body::Incoming, service::Service};

use crate::idle::Idle;

pub(crate) struct TrackedService<S> {
    pub(crate) service: S,
    pub(crate) idle: Rc<Idle>,
}

impl<S: Service<Request<Incoming>>> Service<Request<Incoming>> for TrackedService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    #[inline]
    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.idle.serves();
        self.service.call(request)
    }
}
