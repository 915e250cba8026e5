//! The service of hyper in the suite `http`, the same for windlass-task and tokio.

use std::convert::Infallible;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use windlass_bench_driver::http::BODY;

pub(crate) async fn hello(
    _request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(BODY.as_bytes()))))
}
