//! [`JoinHandle`]: the output of a task.

use core::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use crate::{
    budget::poll_proceed, handle::Handle, join::AbortHandle, task::error::JoinError,
    task::join_ref::JoinRef,
};

/// Spawns a future as a task of the executor that runs on this thread.
///
/// The future and its output need not be `Send`: both stay on this thread. The task starts when the
/// executor comes to it, not in this call. It is one allocation, with the future inside.
///
/// In a destructor that runs at the end of the executor, the future is never polled. It is dropped
/// with the other tasks.
///
/// ```
/// use std::rc::Rc;
/// use windlass_task::{block_on, spawn};
///
/// let output = block_on(async {
///     let text = Rc::new("not Send");
///     spawn(async move { text.len() }).await
/// });
/// assert_eq!(output.unwrap(), 8);
/// ```
///
/// # Panics
/// If no executor runs on this thread. Use a [`Spawner`](crate::Spawner) on other threads.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    JoinHandle::new(Handle::expect_current().owner().spawn(future))
}

/// A handle to a task, and the future of its output.
///
/// Dropping it detaches the task: it goes on, and its output is dropped. [`abort`](Self::abort)
/// cancels it. Where nobody takes an output, a panic of its destructor is not resumed, whether the
/// task had ended or not.
///
/// The output is `Err` if the task has panicked, was aborted, or its executor is gone. The handle
/// stays on the executor's thread. An [`AbortHandle`] may leave it.
///
/// ```
/// use windlass_task::{JoinError, block_on, spawn};
///
/// block_on(async {
///     assert_eq!(spawn(async { 1 + 1 }).await.unwrap(), 2);
///     let aborted = spawn(std::future::pending::<()>());
///     aborted.abort();
///     assert!(aborted.await.unwrap_err().is_cancelled());
/// });
/// ```
///
/// # Panics
/// If it is polled again after it was ready.
#[must_use = "dropping a handle detaches the task; `let _ =` says that this is meant"]
pub struct JoinHandle<T>(JoinRef<T>);

impl<T> JoinHandle<T> {
    pub(crate) fn new(task: JoinRef<T>) -> Self {
        Self(task)
    }

    pub(crate) fn inner(&self) -> &JoinRef<T> {
        &self.0
    }

    /// Cancels the task. Its future is dropped when the executor next comes to the task, never in
    /// this call. A task that is ready by then, or was before, keeps its output.
    pub fn abort(&self) {
        self.0.task().abort();
    }

    /// Whether the future is gone: ready, panicked or cancelled.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// A handle that cancels the task from any thread.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(self.0.task().clone())
    }

    /// Detaches the task, as dropping the handle does.
    pub fn detach(self) {
        drop(self);
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let proceed = ready!(poll_proceed(context));
        let output = ready!(self.0.poll_output(context));
        proceed.made_progress();
        Poll::Ready(output)
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("is_finished", &self.is_finished()).finish()
    }
}
