//! The sockets of streams and listeners: those of the kernel, or with the feature `sim` also
//! simulated ones. All calls on them stand here.

#[cfg(feature = "sim")]
mod either;
mod listen;
mod stream;

#[cfg(feature = "sim")]
pub(crate) use either::{ListenSocket, StreamSocket};
#[cfg(not(feature = "sim"))]
pub(crate) use {listen::ListenSocket, stream::StreamSocket};
