//! Sockets on connections of hyper: both roles, HTTP/1.1 and HTTP/2, and axum's extractor.

mod axum;
mod axum_tasks;
mod bed;
mod chromium;
mod http1;
mod http2;
mod http2_ends;
mod http2_pressure;
mod hypercorn;
#[cfg(target_os = "linux")]
mod windlass_http;
