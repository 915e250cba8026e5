//! Cooperation: a poll may do a bounded number of operations.
//!
//! A task whose operations are always ready would never return to the executor. So each operation
//! of this crate asks [`poll_proceed`] first. When the poll's budget of 32 operations is used up,
//! it wakes the task and is pending, and the other tasks are polled.
//!
//! Futures of other crates do not know this budget. A loop over one that is always ready, such as
//! the receiver of a channel that is never empty, keeps the thread: no other task, timer or socket
//! is served. This is so for the channels of tokio, async-channel and futures, as tokio's own
//! budget counts on its runtime alone. In such a loop
//!
//! - wrap the future in [`cooperative`],
//! - or call [`consume`] once in each round.
//!
//! It is not needed in a loop that also awaits an operation of this crate.

use core::{
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll, ready},
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

/// Counts one operation of the running poll. If the budget is used up, the other tasks are
/// polled first.
///
/// ```
/// use windlass_task::{block_on, budget, spawn, stats};
///
/// block_on(async {
///     let other = spawn(async {});
///     for number in 0..100 {
///         // Something that is always ready, or a part of a long computation.
///         std::future::ready(number).await;
///         budget::consume().await;
///     }
///     assert!(other.is_finished());
/// });
/// ```
#[doc(alias = "consume_budget")]
pub async fn consume() {
    poll_fn(poll_proceed).await.made_progress();
}

/// Makes any future an operation that counts, as those of this crate do. If the budget is used up,
/// the future is polled after the other tasks.
///
/// It counts the future when it is ready. A loop inside of the future is not interrupted.
///
/// ```
/// use windlass_task::{block_on, budget::cooperative, spawn};
///
/// block_on(async {
///     let other = spawn(async {});
///     while !other.is_finished() {
///         // In place of a channel that is never empty.
///         cooperative(std::future::ready(())).await;
///     }
/// });
/// ```
pub async fn cooperative<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        let proceed = ready!(poll_proceed(context));
        let output = ready!(future.as_mut().poll(context));
        proceed.made_progress();
        Poll::Ready(output)
    })
    .await
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
    if let Some(handle) = crate::handle::Handle::current() {
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
