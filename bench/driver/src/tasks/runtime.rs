//! A runtime under test.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::measured::{Error, Unsupported};
use crate::protocol::Case;

/// A runtime that polls futures on the calling thread.
#[allow(async_fn_in_trait, reason = "all futures stay on their thread")]
pub trait Runtime: Sized + 'static {
    /// A listening socket.
    type Listener: 'static;
    /// A connection. Small messages are sent at once (TCP_NODELAY).
    type Stream: Stream;
    /// Spawns from other threads.
    type Remote: RemoteSpawn;

    /// Creates one on the named backend, with its defaults. [`polls_per_turn`] may ask for
    /// another number of polls between two turns of the event loop.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] if it does not have the case or the backend; otherwise the kernel's error.
    fn new(backend: &str, case: &Case) -> Result<Self, Error>;

    /// Runs a future to its end.
    fn block_on<F: Future>(&mut self, future: F) -> F::Output;

    /// Returns a handle that spawns from other threads.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] if there is none.
    fn remote(&self) -> Result<Self::Remote, Unsupported>;

    /// Spawns a task from inside of [`block_on`](Self::block_on), and returns a future that waits
    /// for it.
    fn spawn<F: Future<Output = ()> + 'static>(future: F) -> impl Future<Output = ()> + 'static;

    /// Spawns a task that nothing waits for, from inside of [`block_on`](Self::block_on).
    fn detach<F: Future<Output = ()> + 'static>(future: F);

    /// Returns a future that is ready after this time.
    fn sleep(span: Duration) -> impl Future<Output = ()> + 'static;

    /// Listens on a free port of 127.0.0.1.
    async fn listen() -> io::Result<(Self::Listener, SocketAddr)>;

    /// Accepts a connection.
    async fn accept(listener: &Self::Listener) -> io::Result<Self::Stream>;

    /// Connects.
    async fn connect(address: SocketAddr) -> io::Result<Self::Stream>;
}

/// Returns the number of polls of tasks between two turns of the event loop that the case asks for.
pub fn polls_per_turn(case: &Case) -> Option<u32> {
    match case {
        Case::TurnPerPoll { .. } => Some(1),
        Case::SelfWake { turns: false, .. } => Some(u32::MAX),
        _ => None,
    }
}

/// An end of a connection.
#[allow(async_fn_in_trait, reason = "all futures stay on their thread")]
pub trait Stream: 'static {
    /// Sends a message.
    async fn send(&mut self, number: u64) -> io::Result<()>;

    /// Receives a message and returns its number; `None` at the end of the stream.
    async fn receive(&mut self) -> io::Result<Option<u64>>;

    /// Makes the receive buffer as long as a message.
    fn read_exactly(&mut self);

    /// The number of its descriptor.
    fn descriptor(&self) -> RawFd;

    /// Number of its calls that returned `EAGAIN`, if it counts them.
    fn would_block_count(&self) -> Option<u32> {
        None
    }
}

/// Spawns from other threads.
pub trait RemoteSpawn: Send + 'static {
    /// Spawns a task that calls the closure. There are never more than a thousand that have not
    /// run.
    ///
    /// # Errors
    ///
    /// If it is not accepted.
    fn spawn(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Error>;
}

/// For runtimes without such a handle.
#[derive(Debug)]
pub enum NoRemote {}

impl RemoteSpawn for NoRemote {
    fn spawn(&self, _job: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        match *self {}
    }
}
