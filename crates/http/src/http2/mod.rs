//! HTTP/2: what hyper does not do for a connection of it.
//!
//! - `connection.rs` drives hyper's connection.
//! - `requests.rs` counts the requests, limits their times and reports their failures.

mod connection;
mod requests;

pub(crate) use connection::serve;
