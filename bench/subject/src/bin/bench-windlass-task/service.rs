//! The services in the suite `http`, the same for windlass-task and tokio.

use std::convert::Infallible;

use axum::{Router, routing::get};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use windlass_bench_driver::http::BODY;

pub(crate) async fn hello(
    _request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(BODY.as_bytes()))))
}

/// Axum's router, which answers the path of the requests.
pub(crate) fn router() -> Router {
    Router::new().route("/api", get(async || BODY))
}
