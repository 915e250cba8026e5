//! One connection: the handler of its stream, from the first request to the last callback.

mod adopt;
mod handler;
mod handshake;

pub use adopt::Upgraded;
pub(crate) use handler::{ConnHandler, FirstCallback, LARGE_LEN, Open, PassInput, after_output};
