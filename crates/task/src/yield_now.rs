//! Letting the other tasks run.

use core::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// Lets the other tasks run: the task is polled again after those that are scheduled now.
///
/// ```
/// use windlass_task::{block_on, spawn, yield_now};
///
/// block_on(async {
///     let other = spawn(async {});
///     yield_now().await;
///     assert!(other.is_finished());
/// });
/// ```
pub fn yield_now() -> YieldNow {
    YieldNow { has_yielded: false }
}

/// The future of [`yield_now`].
#[derive(Debug)]
#[must_use = "nothing happens before the future is polled"]
pub struct YieldNow {
    has_yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.has_yielded {
            return Poll::Ready(());
        }
        self.has_yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
