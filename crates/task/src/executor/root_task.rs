//! [`RootTask`]: the future of `block_on` as a task.

#![allow(unsafe_code, reason = "a task borrows the future of `block_on`, which is not static")]

use core::{
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll},
};

use crate::task::{error::JoinError, join_ref::JoinRef, shared::OwnerShared};

/// The future of `block_on`, in a task of its own. The future stays with `block_on` and need not be
/// `'static`. The task ends before the borrow does.
pub(super) struct RootTask<'f> {
    task: JoinRef<()>,
    not_static: core::marker::PhantomData<&'f mut ()>,
}

type RootPoll<'f> = dyn FnMut(&mut Context<'_>) -> Poll<()> + 'f;

/// Calls the poll of `block_on`.
struct RootFuture(*mut RootPoll<'static>);

impl Future for RootFuture {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the closure is borrowed by `RootTask` for as long as the task is not finished,
        // and nothing else calls it. A finished task is not polled.
        let poll = unsafe { &mut *self.0 };
        poll(context)
    }
}

impl<'f> RootTask<'f> {
    pub(super) fn spawn(owner: &OwnerShared, poll: &'f mut RootPoll<'f>) -> Self {
        let poll: *mut RootPoll<'f> = poll;
        // SAFETY: only the lifetime changes, which `RootTask` keeps.
        let poll = unsafe { mem::transmute::<*mut RootPoll<'f>, *mut RootPoll<'static>>(poll) };
        // SAFETY: this is the owner's thread. The drop of `RootTask` finishes the task before the
        // borrow of the closure ends, and `block_on` does not leak it.
        let task = unsafe { JoinRef::spawn(owner.shared(), RootFuture(poll)) };
        Self { task, not_static: core::marker::PhantomData }
    }

    /// The task itself.
    pub(super) fn task(&self) -> &JoinRef<()> {
        &self.task
    }

    pub(super) fn take_output(&self) -> Option<Result<(), JoinError>> {
        self.task.take_output()
    }
}

impl Drop for RootTask<'_> {
    fn drop(&mut self) {
        if !self.task.is_finished() {
            let task = self.task.task();
            // SAFETY: this is the owner's thread. The task is not finished and not being polled, so
            // the executor has a reference and the slot holds the future.
            unsafe { (task.header().vtable.end)(task.ptr(), JoinError::Cancelled) };
        }
    }
}
