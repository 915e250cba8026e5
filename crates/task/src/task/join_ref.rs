//! The handle's side of a task: its output, and who is to be told.

#![allow(unsafe_code, reason = "the output is behind a header without its type; `task`")]

use core::{
    cell::{Cell, RefCell},
    future::Future,
    marker::PhantomData,
    mem::MaybeUninit,
    ptr::NonNull,
    task::{Context, Poll, Waker},
};
use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
};

use windlass_flow::panics::discard_panic;

use crate::{
    sync::Arc,
    task::{
        body,
        error::JoinError,
        header::{Content, OwnerPart, TaskRef},
        shared::Shared,
    },
};

/// What is to be done when a task is finished.
pub(crate) enum JoinSlot {
    /// There is no handle: the output is dropped.
    Detached,
    /// There is a handle that is not being awaited.
    Idle,
    Waker(Waker),
    Member(SetMember),
}

/// A task of a `JoinSet`.
pub(crate) struct SetMember {
    pub(crate) set: Rc<SetQueue>,
    pub(crate) index: usize,
}

/// What the tasks of a `JoinSet` share.
#[derive(Default)]
pub(crate) struct SetQueue {
    /// The members that are finished, by index. It has room for all members, so that the end of a
    /// task allocates nothing.
    pub(crate) finished: RefCell<VecDeque<usize>>,
    pub(crate) waker: Cell<Option<Waker>>,
}

impl SetMember {
    pub(super) fn finished(self) {
        self.set.finished.borrow_mut().push_back(self.index);
        if let Some(waker) = self.set.waker.take() {
            waker.wake();
        }
    }
}

/// A join handle's reference to its task, with the type of the output. It stays on the owner's
/// thread.
pub(crate) struct JoinRef<T> {
    task: TaskRef,
    not_send: PhantomData<*mut ()>,
    output: PhantomData<fn() -> T>,
}

impl<T> JoinRef<T> {
    /// Spawns a task with a handle.
    ///
    /// # Safety
    /// As for [`body::spawn`].
    pub(crate) unsafe fn spawn<F: Future<Output = T>>(shared: &Arc<Shared>, future: F) -> Self {
        // SAFETY: the caller's promise.
        let task = unsafe { body::spawn(shared, future) };
        // SAFETY: the executor has a reference.
        unsafe { task.retain() };
        // SAFETY: the reference counted above belongs to the result.
        let task = unsafe { TaskRef::from_counted(task) };
        let this = Self { task, not_send: PhantomData, output: PhantomData };
        this.owner().join.set(JoinSlot::Idle);
        this
    }

    pub(crate) fn task(&self) -> &TaskRef {
        &self.task
    }

    fn owner(&self) -> &OwnerPart {
        // SAFETY: this value is `!Send` and was made on the owner's thread.
        unsafe { self.task.header().owner() }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.task.header().is_finished()
    }

    /// Makes the task tell a set when it is finished.
    pub(crate) fn join_set(&self, member: SetMember) {
        if self.is_finished() {
            member.finished();
        } else {
            drop(self.owner().join.replace(JoinSlot::Member(member)));
        }
    }

    /// Makes the task tell nobody when it is finished.
    pub(crate) fn leave_set(&self) {
        drop(self.owner().join.replace(JoinSlot::Idle));
    }

    /// The output, if the task is finished and nobody has taken it.
    pub(crate) fn take_output(&self) -> Option<Result<T, JoinError>> {
        // SAFETY: this value is `!Send` and was made on the owner's thread.
        let content = unsafe { self.task.header().content() };
        if !self.is_finished() || content.get() != Content::Output {
            return None;
        }
        let mut output = MaybeUninit::<Result<T, JoinError>>::uninit();
        let target = NonNull::from(&mut output).cast::<()>();
        // SAFETY: this is the owner's thread, the slot holds the output, and `T` is the output of
        // the task's future by `spawn`.
        unsafe { (self.task.header().vtable.take_output)(self.task.ptr(), target) };
        // SAFETY: the call has written it.
        Some(unsafe { output.assume_init() })
    }

    /// The output; before it is there, the waker is kept and replaces an earlier one.
    ///
    /// # Panics
    /// If the output was taken already.
    pub(crate) fn poll_output(&mut self, context: &Context<'_>) -> Poll<Result<T, JoinError>> {
        if self.is_finished() || !self.keep_waker(context.waker()) {
            let output = self.take_output();
            return Poll::Ready(output.expect("a `JoinHandle` was polled after it was ready"));
        }
        Poll::Pending
    }

    /// Keeps a waker for the end of the task. False if the task has ended meanwhile.
    fn keep_waker(&self, waker: &Waker) -> bool {
        let join = &self.owner().join;
        // The slot is put back before user code runs: the clone and the destructor of a waker.
        match join.replace(JoinSlot::Idle) {
            JoinSlot::Waker(before) if before.will_wake(waker) => {
                join.set(JoinSlot::Waker(before));
            }
            old => {
                let waker = waker.clone();
                // The clone may have run the executor, or dropped it. Nobody was told then.
                if self.is_finished() {
                    return false;
                }
                join.set(JoinSlot::Waker(waker));
                drop(old);
            }
        }
        true
    }
}

impl<T> Drop for JoinRef<T> {
    fn drop(&mut self) {
        if self.is_finished() {
            if let Some(output) = self.take_output() {
                discard(output);
            }
            return;
        }
        // The task goes on, and its waker is dropped here.
        match self.owner().join.replace(JoinSlot::Detached) {
            JoinSlot::Detached | JoinSlot::Idle => {}
            told => discard(told),
        }
    }
}

/// Drops something of the user's. Its panic is discarded, as it is where a task ends without a
/// handle. So it does not matter whether the task ends before its handle is dropped or after.
fn discard<T>(value: T) {
    discard_panic(catch_unwind(AssertUnwindSafe(|| drop(value))));
}
