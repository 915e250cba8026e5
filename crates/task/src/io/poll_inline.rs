//! A future made of a poll, which the compiler inlines.

use core::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// As [`core::future::poll_fn`], whose future is polled by a call. That call took twenty
/// instructions of each read and write.
#[inline(always)]
pub(crate) fn poll_inline<T, F>(poll: F) -> impl Future<Output = T>
where
    F: FnMut(&mut Context<'_>) -> Poll<T> + Unpin,
{
    PollInline(poll)
}

struct PollInline<F>(F);

impl<T, F: FnMut(&mut Context<'_>) -> Poll<T> + Unpin> Future for PollInline<F> {
    type Output = T;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        (self.0)(context)
    }
}
