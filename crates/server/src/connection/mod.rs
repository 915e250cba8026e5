//! One connection: the handler of its stream, from the first request to the last callback.

mod accept;
mod adopt;
mod codec;
mod deciding;
mod events;
mod handler;
mod handshake;
mod open;
mod proxy;
mod rejection;
mod tls;

pub use adopt::Upgraded;
pub(crate) use rejection::parse_response;
