//! The sockets of streams and listeners, and all calls on them.

mod listen;
mod stream;

pub(crate) use listen::ListenSocket;
pub(crate) use stream::StreamSocket;
