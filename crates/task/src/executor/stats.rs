//! A copy of an executor's counters.

use std::time::Duration;

use crate::{handle::Handle, task::shared::Local};

/// A copy of an executor's counters. It does not change after it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecutorStats {
    /// Polls of tasks.
    pub polls: u64,
    /// Operations that had to wait because their poll had used up its budget.
    pub budget_exhausted: u64,
    /// Tasks spawned, with the futures of `block_on`.
    pub spawned: u64,
    /// Tasks that are not finished.
    pub tasks: usize,
    /// Tasks that are scheduled.
    pub queue_depth: usize,
    /// The longest poll. It is measured only if
    /// [`measure_polls`](crate::ExecutorBuilder::measure_polls) is on, because it costs a read of
    /// the clock for each poll. Otherwise it stays zero.
    pub longest_poll: Duration,
}

impl ExecutorStats {
    pub(super) fn read(local: &Local) -> Self {
        let counters = &local.counters;
        Self {
            polls: counters.polls.get(),
            budget_exhausted: counters.budget_exhausted.get(),
            spawned: counters.spawned.get(),
            tasks: local.live.len(),
            queue_depth: local.queue_depth(),
            longest_poll: Duration::from_nanos(counters.longest_poll_ns.get()),
        }
    }
}

/// The counters of the executor that runs on this thread. `None` if there is none.
///
/// ```
/// windlass_task::block_on(async {
///     let stats = windlass_task::stats().unwrap();
///     assert_eq!((stats.tasks, stats.polls), (1, 1));
/// });
/// ```
#[must_use]
pub fn stats() -> Option<ExecutorStats> {
    Handle::current().map(|handle| ExecutorStats::read(handle.local()))
}
