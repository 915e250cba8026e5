//! Cooperation: a poll may do a bounded number of operations.
//!
//! A task whose operations are always ready would never return to the executor. So each operation
//! of this crate asks [`poll_proceed`] first. When the poll's budget of 32 operations is used up,
//! it wakes the task and is pending, and the other tasks have their turn.

use core::{
    future::poll_fn,
    task::{Context, Poll},
};

use crate::task::current;

/// Asks whether the running poll may do one more operation. For futures that are made by hand, such
/// as those of sockets and channels.
///
/// `Ready` gives a [`Proceed`]. Call [`made_progress`](Proceed::made_progress) if the operation was
/// done. That includes a system call that has failed with `EAGAIN`, because it cost time. Dropping
/// it unused gives the operation back. So a task that waits for many things at once can ask all of
/// them.
///
/// `Pending` means that the budget is used up. The task is woken and is polled again after the
/// others.
///
/// Outside of an executor of this crate, it is always `Ready`.
///
/// ```
/// use std::{future::poll_fn, task::Poll};
/// use windlass_task::{block_on, budget::poll_proceed, stats};
///
/// block_on(async {
///     for _ in 0..100 {
///         poll_fn(|context| poll_proceed(context).map(|proceed| proceed.made_progress())).await;
///     }
///     assert_eq!(stats().unwrap().budget_exhausted, 3);
/// });
/// ```
#[inline]
pub fn poll_proceed(context: &mut Context<'_>) -> Poll<Proceed> {
    let proceed = current::with(|current| {
        if !current.is_polling.get() {
            return Some(Proceed { is_counted: false });
        }
        let left = current.budget.get().checked_sub(1)?;
        current.budget.set(left);
        Some(Proceed { is_counted: true })
    });
    match proceed {
        Some(proceed) => Poll::Ready(proceed),
        None => {
            exhausted(context);
            Poll::Pending
        }
    }
}

/// Whether the running poll may do one more operation. It counts none.
#[must_use]
pub fn has_remaining() -> bool {
    current::with(|current| !current.is_polling.get() || current.budget.get() > 0)
}

/// Counts an operation that does not wait for the budget.
pub(crate) fn count() {
    current::with(|current| current.budget.set(current.budget.get().saturating_sub(1)));
}

/// Waits until the poll has budget left. It counts none. Futures of readiness begin with it, so a
/// loop of such a future and an operation that does not wait returns to the executor.
pub(crate) async fn remaining() {
    poll_fn(|context| poll_proceed(context).map(drop)).await;
}

#[cold]
fn exhausted(context: &Context<'_>) {
    if let Some(handle) = crate::ambient::Handle::current() {
        let count = &handle.local().counters.budget_exhausted;
        count.set(count.get() + 1);
    }
    context.waker().wake_by_ref();
}

/// The permission for one operation, from [`poll_proceed`].
#[derive(Debug)]
#[must_use = "dropping it gives the operation back"]
pub struct Proceed {
    is_counted: bool,
}

impl Proceed {
    /// Counts the operation.
    #[inline]
    pub fn made_progress(mut self) {
        self.is_counted = false;
    }
}

impl Drop for Proceed {
    #[inline]
    fn drop(&mut self) {
        if self.is_counted {
            current::with(|current| current.budget.set(current.budget.get().saturating_add(1)));
        }
    }
}
