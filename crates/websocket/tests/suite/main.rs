//! Sockets over streams in memory, driven poll by poll.

#[allow(dead_code, reason = "the next tests use it")]
mod bed;
mod cancel;
mod clock;
mod closing;
#[cfg(feature = "deflate")]
mod deflate;
mod echo;
mod executor;
mod failures;
mod halves;
mod handshake;
mod limits;
mod liveness;
mod peer;
mod pieces;
#[cfg(feature = "deflate")]
mod random;
