//! [`WorkersHandle`]: all workers, from any thread.

use core::{fmt, time::Duration};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use windlass::{Remote, Stats};
use windlass_flow::{Push, PushError, Sender, panics::Panics};

use crate::{ExecutorStats, Spawner, workers::stop::StopSignal};

/// A handle to all workers of [`Workers`](crate::Workers), for any thread. Cheap to clone.
///
/// ```
/// use windlass_task::{PushReason, WorkerContext, Workers, block_on};
///
/// # fn main() -> std::io::Result<()> {
/// let workers = Workers::builder().count(2).start(|worker: WorkerContext<u32>| async move {
///     let mut inbox = worker.take_inbox()?;
///     let mut sum = 0;
///     while let Some(number) = inbox.recv().await {
///         sum += number;
///     }
///     Ok::<u32, std::io::Error>(sum)
/// })?;
/// let handle = workers.handle();
/// handle.try_send(1, 20)?;
/// block_on(handle.send(1, 22))?;
/// handle.stop();
/// let rejected = handle.try_send(1, 5).unwrap_err();
/// assert_eq!((rejected.reason, rejected.item.into_inner()), (PushReason::Closed, 5));
/// let sums: Vec<u32> = workers.join().into_iter().map(|sum| sum.unwrap().unwrap()).collect();
/// assert_eq!(sums, [0, 42]);
/// # Ok(())
/// # }
/// ```
pub struct WorkersHandle<M: Send + 'static = ()>(Arc<[WorkerEntry<M>]>);

/// What all threads know of one worker.
pub(super) struct WorkerEntry<M> {
    pub(super) sender: Sender<M>,
    pub(super) stop: StopSignal,
    pub(super) remote: Remote,
    pub(super) spawner: Spawner,
    pub(super) is_finished: AtomicBool,
    /// The counters at its end.
    pub(super) last: Mutex<Option<(ExecutorStats, Stats)>>,
}

/// The counters of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// The worker's index, from 0.
    pub index: usize,
    /// The worker has ended: its future is gone.
    pub is_finished: bool,
    /// The counters of its executor.
    pub executor: ExecutorStats,
    /// The counters of its reactor.
    pub reactor: Stats,
}

impl<M: Send + 'static> WorkersHandle<M> {
    pub(super) fn new(entries: Vec<WorkerEntry<M>>) -> Self {
        Self(entries.into())
    }

    /// # Panics
    /// If there is no such worker.
    #[track_caller]
    pub(super) fn entry(&self, index: usize) -> &WorkerEntry<M> {
        let count = self.0.len();
        assert!(index < count, "there is no worker {index}: the last of {count} is {}", count - 1);
        &self.0[index]
    }

    /// The number of workers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Sends a message to a worker, if there is room in its queue. It wakes the worker by a system
    /// call only if that waits for a message.
    ///
    /// # Errors
    /// The error returns the message, and the reason:
    ///
    /// - [`Full`](crate::PushReason::Full): the queue holds
    ///   [`inbox_len_max`](crate::WorkersBuilder::inbox_len_max) messages.
    /// - [`Closed`](crate::PushReason::Closed): the workers were stopped, or this one has ended.
    ///
    /// # Panics
    /// If there is no worker with this index.
    #[track_caller]
    pub fn try_send(&self, index: usize, message: M) -> Result<(), PushError<M>> {
        self.entry(index).sender.try_push(message)
    }

    /// Sends a message to a worker, and waits for room in its queue. The future works with any
    /// executor. Dropping it drops the message, unless the queue has taken it;
    /// [`Push::into_item`] returns it instead.
    ///
    /// The error of the future returns the message if the workers were stopped, or this one has
    /// ended. Two workers whose queues are full and that wait for each other wait forever. To
    /// exclude that, receive in a task of its own, or use [`try_send`](Self::try_send).
    ///
    /// # Panics
    /// If there is no worker with this index.
    #[track_caller]
    pub fn send(&self, index: usize, message: M) -> Push<M> {
        self.entry(index).sender.push_async(message)
    }

    /// Spawns futures on a worker.
    ///
    /// # Panics
    /// If there is no worker with this index.
    #[must_use]
    #[track_caller]
    pub fn spawner(&self, index: usize) -> &Spawner {
        &self.entry(index).spawner
    }

    /// Whether a worker has ended: with its output, by a panic, or at the deadline of a stop.
    ///
    /// # Panics
    /// If there is no worker with this index.
    #[must_use]
    #[track_caller]
    pub fn is_finished(&self, index: usize) -> bool {
        self.entry(index).is_finished.load(Ordering::Acquire)
    }

    /// Asks all workers to stop, without a deadline. Does not wait.
    ///
    /// All queues are closed: later messages come back to their senders, and those that are queued
    /// are still received. [`WorkerContext::stopped`](crate::WorkerContext::stopped) is ready. It
    /// is up to the workers' futures to end.
    pub fn stop(&self) {
        self.request_stop(None);
    }

    /// Asks all workers to stop, as [`stop`](Self::stop) does. A future that is not ready after
    /// this time is dropped, and its result is [`JoinError::Cancelled`](crate::JoinError). Of two
    /// deadlines, the earlier one holds. A poll that blocks its thread is not interrupted. The time
    /// is that of the system, also for executors with a paused clock.
    pub fn stop_within(&self, time: Duration) {
        // A deadline beyond the clock's range means no deadline.
        self.request_stop(Instant::now().checked_add(time));
    }

    /// Protocol 3. A panic of a waker of the user's, which waits for room, does not keep the other
    /// workers from being stopped.
    fn request_stop(&self, deadline: Option<Instant>) {
        let mut panics = Panics::default();
        for entry in self.0.iter() {
            panics.catch(|| entry.sender.close());
        }
        for entry in self.0.iter() {
            entry.stop.request(deadline);
        }
        panics.resume();
    }

    /// The counters of all workers, in their order. Each worker answers at the beginning of a turn,
    /// so a worker that is busy answers late. One that has ended has its last counters. The future
    /// works with any executor.
    pub async fn stats(&self) -> Vec<WorkerStats> {
        let mut all = Vec::with_capacity(self.count());
        for (index, entry) in self.0.iter().enumerate() {
            let read = entry.remote.call_async(|turn| Some((crate::stats()?, turn.stats())));
            let live = read.await.ok().flatten();
            let last = || *entry.last.lock().unwrap_or_else(PoisonError::into_inner);
            // Neither exists for a moment while the executor is being dropped after a panic.
            let Some((executor, reactor)) = live.or_else(last) else { continue };
            let is_finished = self.is_finished(index);
            all.push(WorkerStats { index, is_finished, executor, reactor });
        }
        all
    }
}

impl<M: Send + 'static> Clone for WorkersHandle<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: Send + 'static> fmt::Debug for WorkersHandle<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkersHandle").field("count", &self.count()).finish()
    }
}
