//! Waiting for room in a task.

use core::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use super::{PushError, PushReason, Sender, Weighed, rejected};
use crate::panics::Panics;

/// The future of [`Sender::push_async`]. It is ready when the mailbox has taken or rejected the
/// item.
///
/// ```
/// use std::{future::Future as _, pin::pin, sync::Arc, task::{Context, Poll, Waker}};
/// use windlass_flow::{Bounds, Latch, mailbox};
///
/// # fn main() -> std::io::Result<()> {
/// let (sender, mut inbox) = mailbox(Bounds::items(1), Arc::new(Latch::new()?));
/// sender.push("one")?;
/// let mut push = pin!(sender.push_async("two"));
/// // An executor does this:
/// let mut context = Context::from_waker(Waker::noop());
/// assert!(push.as_mut().poll(&mut context).is_pending(), "there is no room");
/// assert!(inbox.drain(1).eq(["one"]));
/// assert!(matches!(push.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is pushed before the future is polled"]
pub struct Push<T> {
    sender: Sender<T>,
    /// `None` once the future is finished.
    weighed: Option<Weighed<T>>,
    /// Identifies the waker that this future has registered.
    ticket: Option<u64>,
}

/// The item is not pinned, because it is moved into the mailbox.
impl<T> Unpin for Push<T> {}

impl<T> Push<T> {
    pub(super) fn new(sender: Sender<T>, weighed: Weighed<T>) -> Self {
        Self { sender, weighed: Some(weighed), ticket: None }
    }

    /// Cancels the push and returns the item. `None` if the mailbox has taken it, or the future's
    /// error has returned it.
    pub fn into_item(mut self) -> Option<T> {
        // This runs before the item is moved out, because a waker that panics would drop a moved
        // item.
        drop(self.forget_ticket());
        Some(self.weighed.take()?.item)
    }

    /// Unregisters the waker of this future. The caller drops it after the lock is released.
    fn forget_ticket(&mut self) -> Option<Waker> {
        self.sender.shared.side.room.unregister_task(self.ticket.take()?)
    }

    /// Pushes the item, or leaves the waker where [`Room::announce`](super::room::Room::announce)
    /// finds it. The waker is registered first; otherwise room could become free in between.
    fn offer_or_wait(
        &mut self,
        weighed: Weighed<T>,
        waker: Waker,
    ) -> Poll<Result<(), PushError<T>>> {
        let ticket = self.sender.shared.side.room.register_task(waker);
        self.ticket = Some(ticket);
        let outcome = self.sender.shared.try_push(weighed);
        if let Err((PushReason::Full, weighed)) = outcome {
            self.weighed = Some(weighed);
            return Poll::Pending;
        }
        // A rejected item is back in place before the user's waker is dropped, because that may
        // panic.
        let rejection = outcome.err().map(|(reason, weighed)| {
            self.weighed = Some(weighed);
            reason
        });
        drop(self.forget_ticket());
        Poll::Ready(match rejection {
            None => Ok(()),
            Some(reason) => {
                let weighed = self.weighed.take().expect("it was put there a moment ago");
                Err(rejected((reason, weighed)))
            }
        })
    }
}

impl<T> Future for Push<T> {
    type Output = Result<(), PushError<T>>;

    /// # Panics
    /// If it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        // Each future has at most one waker. Drop the older one first; it may belong to another
        // task.
        drop(this.forget_ticket());
        let weighed = this.weighed.take().expect("a `Push` was polled after it was ready");
        match this.sender.shared.try_push(weighed) {
            Ok(()) => Poll::Ready(Ok(())),
            Err((PushReason::Full, weighed)) => {
                // The item is back in place before the user's waker is cloned, because that may
                // panic.
                this.weighed = Some(weighed);
                let waker = context.waker().clone();
                let weighed = this.weighed.take().expect("it was put there a moment ago");
                this.offer_or_wait(weighed, waker)
            }
            Err(rejection) => Poll::Ready(Err(rejected(rejection))),
        }
    }
}

impl<T> Drop for Push<T> {
    fn drop(&mut self) {
        // Drop them one by one, because both the waker and the item may panic.
        let mut panics = Panics::default();
        let (waker, weighed) = (self.forget_ticket(), self.weighed.take());
        panics.catch(|| drop(waker));
        panics.catch(|| drop(weighed));
        panics.resume();
    }
}

impl<T> fmt::Debug for Push<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Push").field("is_waiting", &self.ticket.is_some()).finish_non_exhaustive()
    }
}
