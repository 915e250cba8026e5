//! [`CancelExt`]: futures that a token cancels.

#![allow(unsafe_code, reason = "a future is pinned inside of the future that cancels it")]

use core::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use std::io;

use crate::cancel::token::{Cancel, Cancellation};

/// Cancellation of any future by a token.
pub trait CancelExt: Future + Sized {
    /// Runs the future until it is ready or the token is cancelled. The future is then dropped, and
    /// the result is [`Cancelled`].
    ///
    /// The token is looked at first. So a future whose token is cancelled already is never polled.
    ///
    /// ```
    /// use windlass_task::{block_on, cancel::{Cancel, CancelExt, Cancelled}};
    ///
    /// block_on(async {
    ///     let token = Cancel::new();
    ///     assert_eq!(async { 1 }.cancelled_by(&token).await, Ok(1));
    ///     token.cancel();
    ///     let never = async { unreachable!("it is not polled") };
    ///     assert_eq!(never.cancelled_by(&token).await, Err::<(), _>(Cancelled));
    /// });
    /// ```
    fn cancelled_by(self, token: &Cancel) -> CancelledBy<Self> {
        CancelledBy { future: Some(self), cancellation: token.cancelled() }
    }
}

impl<F: Future> CancelExt for F {}

/// The future of [`CancelExt::cancelled_by`].
///
/// # Panics
/// If it is polled again after it was ready.
#[must_use = "nothing happens before the future is polled"]
pub struct CancelledBy<F> {
    /// Pinned with the whole. `None` at the end.
    future: Option<F>,
    cancellation: Cancellation,
}

impl<F> CancelledBy<F> {
    fn project(self: Pin<&mut Self>) -> (Pin<&mut Option<F>>, &mut Cancellation) {
        // SAFETY: the future is not moved out of the reference: it is pinned again right below. The
        // other field is not pinned, and is `Unpin`.
        let this = unsafe { self.get_unchecked_mut() };
        // SAFETY: the whole is pinned, and with it the future, which is never moved afterwards. The
        // whole has no destructor of its own, and is `Unpin` only if the future is.
        let future = unsafe { Pin::new_unchecked(&mut this.future) };
        (future, &mut this.cancellation)
    }
}

impl<F: Future> Future for CancelledBy<F> {
    type Output = Result<F::Output, Cancelled>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (mut future, cancellation) = self.project();
        let running = future.as_mut().as_pin_mut().expect("it was polled after it was ready");
        if !cancellation.is_cancelled() {
            if let Poll::Ready(output) = running.poll(context) {
                future.set(None);
                return Poll::Ready(Ok(output));
            }
        }
        if Pin::new(cancellation).poll(context).is_pending() {
            return Poll::Pending;
        }
        future.set(None);
        Poll::Ready(Err(Cancelled))
    }
}

impl<F> fmt::Debug for CancelledBy<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_cancelled = self.cancellation.is_cancelled();
        f.debug_struct("CancelledBy").field("is_cancelled", &is_cancelled).finish_non_exhaustive()
    }
}

/// A token has cancelled the operation: [`CancelExt::cancelled_by`].
///
/// As an [`io::Error`], its kind is [`Other`](io::ErrorKind::Other), and
/// [`get_ref`](io::Error::get_ref) returns this value.
///
/// ```
/// use std::io;
/// use windlass_task::cancel::Cancelled;
///
/// let error = io::Error::from(Cancelled);
/// assert!(error.get_ref().unwrap().is::<Cancelled>());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the operation was cancelled")
    }
}

impl core::error::Error for Cancelled {}

impl From<Cancelled> for io::Error {
    fn from(cancelled: Cancelled) -> Self {
        Self::other(cancelled)
    }
}
