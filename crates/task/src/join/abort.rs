//! [`AbortHandle`]: cancels a task from any thread.

use core::fmt;

use crate::task::header::TaskRef;

/// Cancels a task, from any thread. It does not keep the future alive, and works after the end of
/// the executor, when it does nothing.
///
/// ```
/// use windlass_task::{block_on, spawn};
///
/// block_on(async {
///     let task = spawn(std::future::pending::<()>());
///     let handle = task.abort_handle();
///     std::thread::spawn(move || handle.abort());
///     assert!(task.await.unwrap_err().is_cancelled());
/// });
/// ```
#[derive(Clone)]
pub struct AbortHandle(TaskRef);

impl AbortHandle {
    pub(super) fn new(task: TaskRef) -> Self {
        Self(task)
    }

    /// Cancels the task; see [`JoinHandle::abort`](crate::JoinHandle::abort).
    pub fn abort(&self) {
        self.0.abort();
    }

    /// Whether the future is gone: ready, panicked or cancelled.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.header().is_finished()
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").field("is_finished", &self.is_finished()).finish()
    }
}
