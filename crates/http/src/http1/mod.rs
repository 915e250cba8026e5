//! HTTP/1.1: what hyper does not do for a connection of it.
//!
//! The parser and the encoder are hyper's. Its connection is wrapped on both sides, so that the
//! task of the connection knows what it does:
//!
//! ```text
//!    socket <-- Http1Stream <-- connection of hyper --> Http1Service --> service
//!                   |              HeadTimer |               |
//!                   +------------> Idle <----+---------------+
//! ```
//!
//! - `connection.rs` drives it, takes it apart while it is idle, and makes it again.
//! - `idle.rs` says when it may be taken apart.
//! - `head_timer.rs` limits the time of heads, with one timer for all of them.
//! - `upgrade.rs` returns the socket after an upgrade.

mod connection;
mod head_timer;
mod idle;
mod service;
mod stream;
mod upgrade;

pub(crate) use connection::serve;
pub use upgrade::{UpgradedParts, upgraded_parts};
