//! [`Spawner`]: futures from other threads.

use core::{fmt, future::Future};
use std::io;

use windlass_flow::Returned;

use crate::{
    sync::Arc,
    task::{
        injector::{Rejected, SpawnJob},
        shared::{OwnerShared, Shared},
    },
};

/// Spawns futures on an executor from any thread. Cheap to clone.
///
/// The queue holds at most [`spawns_max`](crate::ExecutorBuilder::spawns_max) futures. A future
/// that is not accepted is in the error. To get an output back, send it through a channel, or from
/// the future's own end.
///
/// ```
/// use windlass_task::{Executor, Spawner};
///
/// # fn main() -> std::io::Result<()> {
/// let mut executor = Executor::new()?;
/// let spawner: Spawner = executor.spawner();
/// let (sender, receiver) = std::sync::mpsc::channel();
/// std::thread::spawn(move || {
///     // The closure is sent. The future that it makes stays on the executor's thread.
///     spawner.spawn_with(move || async move {
///         let not_send = std::rc::Rc::new(7);
///         windlass_task::yield_now().await;
///         sender.send(*not_send).unwrap();
///     })
/// });
/// let received = executor.block_on(async move {
///     loop {
///         if let Ok(number) = receiver.try_recv() {
///             break number;
///         }
///         windlass_task::yield_now().await;
///     }
/// });
/// assert_eq!(received, 7);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Spawner(Arc<Shared>);

impl Spawner {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Spawns a future that is `Send`. Its output is dropped. Does not wait.
    ///
    /// # Errors
    /// The error returns the future, and the reason:
    ///
    /// - [`Full`](SpawnReason::Full): the queue is full.
    /// - [`Closed`](SpawnReason::Closed): the executor was dropped.
    pub fn spawn<F: Future + Send + 'static>(&self, future: F) -> Result<(), SpawnError<F>> {
        self.push(future, |future| Box::new(Ready(future)))
    }

    /// Spawns the future that a closure makes on the executor's thread. The closure is `Send`, the
    /// future need not be. Its output is dropped. Does not wait.
    ///
    /// # Errors
    /// The error returns the closure, and the reason:
    ///
    /// - [`Full`](SpawnReason::Full): the queue is full.
    /// - [`Closed`](SpawnReason::Closed): the executor was dropped.
    pub fn spawn_with<F, M>(&self, make: M) -> Result<(), SpawnError<M>>
    where
        F: Future + 'static,
        M: FnOnce() -> F + Send + 'static,
    {
        self.push(make, |make| Box::new(Maker(make)))
    }

    fn push<V>(
        &self,
        value: V,
        pack: impl FnOnce(V) -> Box<dyn SpawnJob>,
    ) -> Result<(), SpawnError<V>> {
        let mut value = Some(value);
        let pushed = self.0.injector.push_spawn(|| pack(value.take().expect("it is packed once")));
        pushed.map_err(|rejected| SpawnError {
            reason: match rejected {
                Rejected::Full => SpawnReason::Full,
                Rejected::Closed => SpawnReason::Closed,
            },
            rejected: value.expect("a rejected value was not packed").into(),
        })
    }

    /// Whether the executor was dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.injector.is_closed()
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spawner").field("is_closed", &self.is_closed()).finish()
    }
}

struct Ready<F>(F);

impl<F: Future + Send + 'static> SpawnJob for Ready<F> {
    fn start(self: Box<Self>, owner: &OwnerShared) {
        owner.spawn_detached(self.0);
    }
}

struct Maker<M>(M);

impl<F: Future + 'static, M: FnOnce() -> F + Send + 'static> SpawnJob for Maker<M> {
    fn start(self: Box<Self>, owner: &OwnerShared) {
        let make = self.0;
        // In the task, so that a panic of the closure is one of the task.
        owner.spawn_detached(async move { make().await });
    }
}

/// A future that a [`Spawner`] has rejected, or the closure that makes it.
pub struct SpawnError<F> {
    /// Why it was rejected.
    pub reason: SpawnReason,
    /// The future or the closure.
    pub rejected: Returned<F>,
}

/// Why a [`Spawner`] has rejected a future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpawnReason {
    /// [`spawns_max`](crate::ExecutorBuilder::spawns_max) futures are queued.
    Full,
    /// The executor was dropped.
    Closed,
}

impl fmt::Display for SpawnReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the queue of spawned futures is full; raise `spawns_max`, or try later",
            Self::Closed => "the executor was dropped",
        })
    }
}

impl<F> fmt::Debug for SpawnError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpawnError").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<F> fmt::Display for SpawnError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<F> core::error::Error for SpawnError<F> {}

impl<F> From<SpawnError<F>> for io::Error {
    fn from(error: SpawnError<F>) -> Self {
        let kind = match error.reason {
            SpawnReason::Full => io::ErrorKind::WouldBlock,
            SpawnReason::Closed => io::ErrorKind::BrokenPipe,
        };
        Self::new(kind, error.reason.to_string())
    }
}
