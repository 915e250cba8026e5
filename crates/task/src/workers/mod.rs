//! One executor a processor: threads that share nothing but bounded queues.
//!
//! # The protocol of this module
//!
//! 1. *Start.* [`WorkersBuilder::start`] opens the listeners, and then starts the threads. Each
//!    builds its executor and reports. When all have reported, all are let go. If one fails, the
//!    others end, and no future was made.
//! 2. *Run.* A worker's future is a task of its executor. The future of `block_on` supervises it:
//!    it waits for the task's end and for a stop.
//! 3. *Stop.* A stop closes all mailboxes, so that nothing is handed over any more. It then wakes
//!    the supervisors, which tell their tasks. At the deadline, a supervisor ends without its task,
//!    which the end of the executor drops.
//! 4. *End.* A worker ends with its future: with its output, its panic, or at the deadline. Its
//!    executor sends what its streams still hold, for at most `drain_timeout`. Its mailbox closes,
//!    and the other workers go on.

mod backlog;
mod builder;
mod context;
mod handle;
mod inbox;
mod run;
mod stop;

use core::{fmt, time::Duration};
use std::{
    net::SocketAddr,
    thread::{self, JoinHandle},
};

pub use backlog::Backlog;
pub use builder::WorkersBuilder;
pub use context::WorkerContext;
pub use handle::{WorkerStats, WorkersHandle};
pub use inbox::WorkerInbox;
pub use windlass_flow::{PushError, PushReason};

use crate::task::error::JoinError;

/// Threads with one executor each, so that a program uses several processors.
///
/// Each worker runs the future that a closure makes on its thread. The future need not be `Send`,
/// because it stays there. `T` is its output. Workers exchange messages of type `M` through bounded
/// queues: [`WorkersHandle::try_send`], [`WorkerInbox::recv`]. Connections are distributed by the
/// kernel, over one listener for each worker ([`WorkersBuilder::listen`]).
///
/// A worker whose future has ended or has panicked does not end the others.
///
/// Dropping this stops all workers at once and waits for their threads. The end of a worker's
/// executor may take [`drain_timeout`](crate::ExecutorBuilder::drain_timeout), also after the
/// deadline of a stop.
///
/// ```
/// use windlass_task::{WorkerContext, Workers};
///
/// # fn main() -> std::io::Result<()> {
/// let workers = Workers::builder().count(2).start(|worker: WorkerContext| async move {
///     worker.stopped().await;
///     worker.index()
/// })?;
/// workers.stop();
/// let outputs: Vec<usize> = workers.join().into_iter().map(Result::unwrap).collect();
/// assert_eq!(outputs, [0, 1]);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it stops the workers"]
pub struct Workers<T: Send + 'static, M: Send + 'static = ()> {
    threads: Vec<JoinHandle<Result<T, JoinError>>>,
    handle: WorkersHandle<M>,
    addresses: Vec<SocketAddr>,
}

impl Workers<()> {
    /// A builder with the default settings.
    pub fn builder() -> WorkersBuilder {
        WorkersBuilder::new()
    }
}

impl<T: Send + 'static, M: Send + 'static> Workers<T, M> {
    /// A handle for other threads.
    #[must_use]
    pub fn handle(&self) -> WorkersHandle<M> {
        self.handle.clone()
    }

    /// The addresses of the listeners, in the order of the calls of [`WorkersBuilder::listen`],
    /// with the ports that were chosen.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Asks all workers to stop, without a deadline; see [`WorkersHandle::stop`].
    pub fn stop(&self) {
        self.handle.stop();
    }

    /// Asks all workers to stop, within a time; see [`WorkersHandle::stop_within`].
    pub fn stop_within(&self, time: Duration) {
        self.handle.stop_within(time);
    }

    /// Waits until all threads have ended. Returns the workers' outputs in their order. Call
    /// [`stop`](Self::stop) before, unless the futures end by themselves.
    ///
    /// An error is [`JoinError::Panicked`] with the panic of the worker's future, or of a handler
    /// of its reactor. It is [`JoinError::Cancelled`] if the future was dropped at the deadline of
    /// a stop.
    ///
    /// It blocks the thread.
    ///
    /// # Panics
    /// On the thread of one of the workers, which would wait for itself.
    #[must_use]
    pub fn join(mut self) -> Vec<Result<T, JoinError>> {
        assert!(
            !self.threads.iter().any(is_own),
            "a worker cannot wait for its own end: join the workers on another thread",
        );
        self.threads.drain(..).map(join).collect()
    }
}

fn is_own<T>(thread: &JoinHandle<T>) -> bool {
    thread.thread().id() == thread::current().id()
}

fn join<T>(thread: JoinHandle<Result<T, JoinError>>) -> Result<T, JoinError> {
    thread.join().unwrap_or_else(|payload| Err(JoinError::panicked(payload)))
}

impl<T: Send + 'static, M: Send + 'static> Drop for Workers<T, M> {
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        self.handle.stop_within(Duration::ZERO);
        for thread in self.threads.drain(..).filter(|thread| !is_own(thread)) {
            // The outputs are dropped one by one, because their destructors may panic.
            drop(join(thread));
        }
    }
}

impl<T: Send + 'static, M: Send + 'static> fmt::Debug for Workers<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers")
            .field("count", &self.handle.count())
            .field("addresses", &self.addresses)
            .finish()
    }
}
