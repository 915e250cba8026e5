//! Work that blocks, on threads beside the executor.

mod call;
mod pool;

use core::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use std::{io, sync::Arc};

use windlass_flow::Returned;

use crate::{budget::poll_proceed, handle::Handle, task::error::JoinError};
use call::{Call, Output};
use pool::{Pool, Rejected};

/// Runs a closure on a thread of the executor's pool: for work that blocks or computes for long,
/// such as files and name resolution.
///
/// The pool starts a thread when a closure comes and none is idle, up to
/// [`blocking_threads_max`](crate::ExecutorBuilder::blocking_threads_max). A thread that is idle
/// for ten seconds ends. Closures beyond that wait in a queue of at most
/// [`blocking_queue_len_max`](crate::ExecutorBuilder::blocking_queue_len_max). If the queue is
/// full, the closure is in the error. To wait for room, await one of the handles, and try again.
///
/// At the end of the executor, queued closures are dropped. Those that run are not waited for.
///
/// A thread inherits the signal mask of the executor's thread at the time of its start.
///
/// ```
/// use windlass_task::{block_on, spawn_blocking};
///
/// # fn main() -> std::io::Result<()> {
/// let text = block_on(async {
///     let read = spawn_blocking(|| std::fs::read_to_string("/proc/self/comm"))?;
///     read.await?
/// })?;
/// assert!(text.ends_with('\n'));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The error returns the closure, and the reason:
///
/// - [`Full`](BlockingReason::Full): the queue is full.
/// - [`Closed`](BlockingReason::Closed): the executor is being dropped.
/// - [`Thread`](BlockingReason::Thread): no thread runs, and none can be started.
///
/// # Panics
/// If no executor runs on this thread.
#[track_caller]
pub fn spawn_blocking<T, F>(closure: F) -> Result<BlockingHandle<T>, BlockingError<F>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let handle = Handle::expect_current();
    if !handle.is_open() {
        return Err(BlockingError { reason: BlockingReason::Closed, closure: closure.into() });
    }
    #[cfg(feature = "sim")]
    if crate::simulation::host().is_some() {
        return Err(BlockingError { reason: BlockingReason::Unsupported, closure: closure.into() });
    }
    let pool = handle.extension::<Pool>();
    let call = Arc::new(Call::new(closure));
    match pool.push(Arc::clone(&call) as _, handle.local().limits.blocking) {
        Ok(()) => Ok(BlockingHandle(call)),
        Err(rejected) => {
            let reason = match rejected {
                Rejected::Full => BlockingReason::Full,
                Rejected::Thread(kind) => BlockingReason::Thread(kind),
            };
            let closure = call.take_back().expect("a rejected closure was not run");
            Err(BlockingError { reason, closure: closure.into() })
        }
    }
}

/// A handle to a closure of [`spawn_blocking`], and the future of its result.
///
/// Dropping it detaches the closure. The result is `Err` if the closure has panicked, was aborted
/// before it started, or was queued when the executor ended. The handle may be sent to and polled
/// on another thread.
///
/// # Panics
/// If it is polled again after it was ready.
#[must_use = "dropping a handle detaches the closure; `let _ =` says that this is meant"]
pub struct BlockingHandle<T>(Arc<dyn Output<T>>);

impl<T> BlockingHandle<T> {
    /// Drops the closure if it has not started, and returns true. Otherwise it goes on.
    pub fn abort(&self) -> bool {
        self.0.abort()
    }

    /// Whether the closure has returned, has panicked or was aborted.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T> Future for BlockingHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let proceed = ready!(poll_proceed(context));
        let output = ready!(self.0.poll_output(context.waker()));
        proceed.made_progress();
        Poll::Ready(output)
    }
}

impl<T> fmt::Debug for BlockingHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingHandle").field("is_finished", &self.is_finished()).finish()
    }
}

/// A closure that [`spawn_blocking`] has rejected.
pub struct BlockingError<F> {
    /// Why it was rejected.
    pub reason: BlockingReason,
    /// The closure.
    pub closure: Returned<F>,
}

/// Why [`spawn_blocking`] has rejected a closure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockingReason {
    /// [`blocking_queue_len_max`](crate::ExecutorBuilder::blocking_queue_len_max) closures are
    /// queued.
    Full,
    /// The executor is being dropped.
    Closed,
    /// No thread of the pool runs, and the system has refused to start one.
    Thread(io::ErrorKind),
    /// The executor is simulated (feature `sim`). A simulation has no threads of the system.
    Unsupported,
}

impl fmt::Display for BlockingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str(
                "the queue of blocking closures is full; raise `blocking_queue_len_max`, or await \
                 one of them and try again",
            ),
            Self::Closed => f.write_str("the executor is being dropped"),
            Self::Thread(kind) => write!(f, "cannot start a thread for blocking closures: {kind}"),
            Self::Unsupported => f.write_str(
                "a simulation has no threads for blocking closures: use `Sim::thread`, or \
                 addresses in place of names",
            ),
        }
    }
}

impl<F> fmt::Debug for BlockingError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingError").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<F> fmt::Display for BlockingError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<F> core::error::Error for BlockingError<F> {}

impl<F> From<BlockingError<F>> for io::Error {
    fn from(error: BlockingError<F>) -> Self {
        let kind = match error.reason {
            BlockingReason::Full => io::ErrorKind::WouldBlock,
            BlockingReason::Closed => io::ErrorKind::BrokenPipe,
            BlockingReason::Thread(kind) => kind,
            BlockingReason::Unsupported => io::ErrorKind::Unsupported,
        };
        Self::new(kind, error.reason.to_string())
    }
}
