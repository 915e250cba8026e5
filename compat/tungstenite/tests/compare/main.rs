//! Every public call, made of tungstenite and of this crate, with the same results.
//!
//! A test's body is compiled twice, with `ws` as the one crate and as the other, and writes what it
//! sees to a log. `differences.rs` has the cases in which the two differ on purpose.

#![allow(
    clippy::cmp_owned,
    clippy::op_ref,
    clippy::result_large_err,
    reason = "the calls are made in every form that the interface has"
)]

#[macro_use]
mod log;

mod connecting;
mod differences;
mod errors;
mod frames;
mod handshakes;
mod messages;
mod more;
mod pieces;
mod sessions;
mod stream;
mod tls;
mod values;
