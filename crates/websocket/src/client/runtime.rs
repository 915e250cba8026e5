//! The sockets, names and timers of a runtime.

use std::{future::Future, io, net::SocketAddr};

use crate::{timer::Timer, transport::Transport};

#[cfg(feature = "async-io")]
mod async_io;
#[cfg(feature = "tokio")]
mod tokio;
#[cfg(all(feature = "windlass-task", target_os = "linux"))]
mod windlass_task;

#[cfg(feature = "async-io")]
pub use async_io::AsyncIo;
#[cfg(feature = "tokio")]
pub use tokio::Tokio;
#[cfg(all(feature = "windlass-task", target_os = "linux"))]
pub use windlass_task::{TaskTimer, WindlassTask};

/// What a client needs of a runtime. `Tokio`, `AsyncIo` and `WindlassTask` are there; implement it
/// for another one, or to resolve names in another way.
///
/// The futures are types of the implementation, so that a connection is `Send` where they are.
pub trait Runtime: Clone + Unpin {
    /// A connection.
    type Stream: Transport;
    /// A timer.
    type Timer: Timer;
    /// A name that is being resolved.
    type Resolving: Future<Output = io::Result<Vec<SocketAddr>>> + Unpin;
    /// A connection that is being opened. Dropping it gives it up.
    type Connecting: Future<Output = io::Result<Self::Stream>> + Unpin;

    /// A new timer.
    fn timer(&self) -> Self::Timer;

    /// Resolves a name. Addresses in text form are not passed to it.
    fn resolve(&self, host: &str, port: u16) -> Self::Resolving;

    /// Opens a connection, with `TCP_NODELAY` set.
    fn connect(&self, address: SocketAddr) -> Self::Connecting;
}
