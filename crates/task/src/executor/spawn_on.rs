//! Tasks of a [`JoinSet`] on an executor that does not run.

use core::future::Future;

use crate::{
    executor::Executor,
    join::{AbortHandle, JoinSet},
};

impl<T: 'static> JoinSet<T> {
    /// Spawns a task into the set, on an executor that does not run at the moment. See
    /// [`Executor::spawn`]. One set may have tasks of several executors of the thread.
    ///
    /// ```
    /// use windlass_task::{Executor, JoinSet};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let mut executor = Executor::new()?;
    /// let mut set = JoinSet::new();
    /// for number in 0..3 {
    ///     set.spawn_on(async move { number }, &executor);
    /// }
    /// let outputs = executor.block_on(set.join_all());
    /// assert!(outputs.into_iter().map(Result::unwrap).eq(0..3));
    /// # Ok(())
    /// # }
    /// ```
    pub fn spawn_on<F>(&mut self, future: F, executor: &Executor) -> AbortHandle
    where
        F: Future<Output = T> + 'static,
    {
        self.insert(executor.spawn(future))
    }
}
