//! [`JoinSet`]: the outputs of many tasks, in the order in which they finish.

use core::{
    fmt,
    future::{Future, poll_fn},
    mem,
    task::{Context, Poll, ready},
};
use std::rc::Rc;

use crate::{
    budget::poll_proceed,
    join::{AbortHandle, JoinHandle, spawn},
    task::{
        error::JoinError,
        join_ref::{SetMember, SetQueue},
        waker_slot,
    },
};

/// A set of tasks with outputs of one type. Outputs come in the order in which tasks finish.
///
/// Dropping the set aborts its tasks. [`detach_all`](Self::detach_all) lets them go on.
///
/// ```
/// use windlass_task::{JoinSet, block_on};
///
/// block_on(async {
///     let mut set = JoinSet::new();
///     for number in 0..3 {
///         set.spawn(async move { number });
///     }
///     let mut sum = 0;
///     while let Some(output) = set.join_next().await {
///         sum += output.unwrap();
///     }
///     assert_eq!(sum, 3);
/// });
/// ```
pub struct JoinSet<T> {
    /// The tasks by index; `None` is free.
    members: Vec<Option<JoinHandle<T>>>,
    free: Vec<usize>,
    queue: Rc<SetQueue>,
}

impl<T> JoinSet<T> {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self { members: Vec::new(), free: Vec::new(), queue: Rc::default() }
    }

    /// The number of tasks whose output was not taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len() - self.free.len()
    }

    /// Whether there are no such tasks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Spawns a task into the set. See [`spawn`](crate::spawn()). [`spawn_on`](Self::spawn_on) does
    /// so outside of `block_on`.
    ///
    /// # Panics
    /// If no executor runs on this thread.
    #[track_caller]
    pub fn spawn<F>(&mut self, future: F) -> AbortHandle
    where
        F: Future<Output = T> + 'static,
        T: 'static,
    {
        self.insert(spawn(future))
    }

    /// Adds a task.
    pub(crate) fn insert(&mut self, task: JoinHandle<T>) -> AbortHandle {
        let abort = task.abort_handle();
        let index = self.free.pop().unwrap_or(self.members.len());
        if index == self.members.len() {
            self.members.push(None);
        }
        // Room for all members, so that the end of a task does not allocate.
        let mut finished = self.queue.finished.borrow_mut();
        let room = self.members.len().saturating_sub(finished.len());
        finished.reserve(room);
        drop(finished);
        task.inner().join_set(SetMember { set: Rc::clone(&self.queue), index });
        self.members[index] = Some(task);
        abort
    }

    /// The next output. `None` if the set is empty. Cancel safe: if the future is dropped, no
    /// output is lost.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|context| self.poll_join_next(context)).await
    }

    /// The output of a task that has finished already.
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        loop {
            let index = self.queue.finished.borrow_mut().pop_front()?;
            let task = self.members.get_mut(index).and_then(Option::take);
            if let Some(task) = task {
                self.free.push(index);
                if let Some(output) = task.inner().take_output() {
                    return Some(output);
                }
            }
        }
    }

    /// Polls for the next output: `Ready(None)` if the set is empty. The last waker is woken when a
    /// task finishes.
    pub fn poll_join_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<T, JoinError>>> {
        let proceed = ready!(poll_proceed(context));
        if let Some(output) = self.try_join_next() {
            proceed.made_progress();
            return Poll::Ready(Some(output));
        }
        if self.is_empty() {
            return Poll::Ready(None);
        }
        waker_slot::store(&self.queue.waker, context.waker());
        // The clone of a foreign waker may have run the executor, or dropped it. Nobody was told of
        // the tasks that have finished then.
        let Some(output) = self.try_join_next() else { return Poll::Pending };
        proceed.made_progress();
        Poll::Ready(Some(output))
    }

    /// Waits for all tasks and returns their outputs, in the order in which they finished.
    pub async fn join_all(mut self) -> Vec<Result<T, JoinError>> {
        let mut outputs = Vec::with_capacity(self.len());
        while let Some(output) = self.join_next().await {
            outputs.push(output);
        }
        outputs
    }

    /// Aborts all tasks. They stay in the set, and their outputs say that they were cancelled.
    pub fn abort_all(&self) {
        self.members.iter().flatten().for_each(JoinHandle::abort);
    }

    /// Aborts all tasks and waits for their end.
    pub async fn shutdown(&mut self) {
        self.abort_all();
        while self.join_next().await.is_some() {}
    }

    /// Lets all tasks go on without the set. Their outputs are dropped.
    pub fn detach_all(&mut self) {
        self.free.clear();
        self.queue.finished.borrow_mut().clear();
        for task in mem::take(&mut self.members).into_iter().flatten() {
            task.inner().leave_set();
        }
    }
}

/// Spawns tasks into the set.
///
/// ```
/// use windlass_task::{JoinSet, block_on};
///
/// let outputs = block_on(async {
///     let mut set: JoinSet<u32> = (0..3).map(|number| async move { number }).collect();
///     set.extend((3..5).map(|number| async move { number }));
///     set.join_all().await
/// });
/// assert!(outputs.into_iter().map(Result::unwrap).eq(0..5));
/// ```
///
/// # Panics
/// If no executor runs on this thread.
impl<T: 'static, F: Future<Output = T> + 'static> Extend<F> for JoinSet<T> {
    #[track_caller]
    fn extend<I: IntoIterator<Item = F>>(&mut self, futures: I) {
        for future in futures {
            self.spawn(future);
        }
    }
}

/// Spawns tasks into a new set.
///
/// # Panics
/// If no executor runs on this thread.
impl<T: 'static, F: Future<Output = T> + 'static> FromIterator<F> for JoinSet<T> {
    #[track_caller]
    fn from_iter<I: IntoIterator<Item = F>>(futures: I) -> Self {
        let mut set = Self::new();
        set.extend(futures);
        set
    }
}

impl<T> Default for JoinSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.abort_all();
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinSet").field("len", &self.len()).finish()
    }
}
