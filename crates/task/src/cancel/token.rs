//! [`Cancel`]: a token.

use core::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use std::sync::Arc;

use crate::cancel::node::Node;

/// A cancellation token. Clones are the same token. [`child`](Self::child) makes another one, which
/// is cancelled with it.
///
/// `Send` and `Sync`. Dropping a token cancels nothing; [`cancel_on_drop`](Self::cancel_on_drop)
/// does.
///
/// ```
/// use windlass_task::cancel::Cancel;
///
/// let (service, other) = (Cancel::new(), Cancel::new());
/// let connection = service.child();
/// let request = connection.child();
/// connection.cancel();
/// assert!(connection.is_cancelled() && request.is_cancelled());
/// assert!(!service.is_cancelled() && !other.is_cancelled());
/// ```
#[doc(alias = "CancellationToken")]
#[derive(Clone, Default)]
pub struct Cancel(Arc<Node>);

impl Cancel {
    /// A token that is not cancelled, without a parent.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A token that is cancelled with this one. If this one is cancelled already, so is the child.
    #[must_use]
    pub fn child(&self) -> Self {
        Self(self.0.child())
    }

    /// Cancels this token and its descendants, and wakes all that wait for them.
    ///
    /// Does nothing if it is cancelled. If another thread is just cancelling it, the call may
    /// return before that thread has come to all descendants.
    ///
    /// # Panics
    /// With the first panic of a waker, after all were woken.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Whether the token is cancelled.
    #[must_use]
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until the token is cancelled.
    ///
    /// ```
    /// use windlass_task::{block_on, cancel::Cancel, spawn};
    ///
    /// block_on(async {
    ///     let token = Cancel::new();
    ///     let waiting = spawn(token.cancelled());
    ///     token.cancel();
    ///     waiting.await.unwrap();
    /// });
    /// ```
    pub fn cancelled(&self) -> Cancellation {
        Cancellation { node: Arc::clone(&self.0), slot: None }
    }

    /// A guard that cancels the token when it is dropped.
    ///
    /// ```
    /// use windlass_task::cancel::Cancel;
    ///
    /// let token = Cancel::new();
    /// drop(token.clone().cancel_on_drop());
    /// assert!(token.is_cancelled());
    /// ```
    pub fn cancel_on_drop(self) -> CancelOnDrop {
        CancelOnDrop(Some(self))
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("is_cancelled", &self.is_cancelled()).finish()
    }
}

/// Cancels a token when it is dropped: [`Cancel::cancel_on_drop`].
#[derive(Debug)]
#[must_use = "dropping it cancels the token"]
pub struct CancelOnDrop(Option<Cancel>);

impl CancelOnDrop {
    /// Returns the token without cancelling it.
    #[must_use = "the token; without it, drop the guard into `drop`"]
    pub fn disarm(mut self) -> Cancel {
        self.0.take().expect("only the destructor and this take it")
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(token) = self.0.take() {
            token.cancel();
        }
    }
}

/// The future of [`Cancel::cancelled`]. It keeps the token. After it was ready, it stays ready.
#[must_use = "nothing happens before the future is polled"]
pub struct Cancellation {
    node: Arc<Node>,
    /// The place of the waker.
    slot: Option<usize>,
}

impl Cancellation {
    pub(super) fn is_cancelled(&self) -> bool {
        self.node.is_cancelled()
    }
}

impl Future for Cancellation {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if !this.node.is_cancelled() && this.node.listen(&mut this.slot, context.waker()) {
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

impl Drop for Cancellation {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.node.forget(slot);
        }
    }
}

impl fmt::Debug for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancellation").field("is_cancelled", &self.is_cancelled()).finish()
    }
}
