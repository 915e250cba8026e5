//! The two lists of tasks that the owner keeps: those that are to be polled, and all that live.

#![allow(unsafe_code, reason = "the lists are linked through the tasks; the protocol in `task`")]

use core::cell::Cell;

use crate::task::header::{OwnerPart, TaskPtr};

/// The tasks that are to be polled, the first to be scheduled first. A task is linked at most once.
///
/// A linked task lives: the executor keeps its reference to it (protocol 1).
#[derive(Default)]
pub(crate) struct RunQueue {
    first: Cell<Option<TaskPtr>>,
    last: Cell<Option<TaskPtr>>,
}

/// # Safety
/// The caller is on the owner's thread, and the executor has a reference to the task.
#[inline(always)]
unsafe fn owner<'t>(task: TaskPtr) -> &'t OwnerPart {
    // SAFETY: the caller's promise: a reference is held.
    let header = unsafe { task.header() };
    // SAFETY: the caller's promise: this is the owner's thread.
    unsafe { header.owner() }
}

impl RunQueue {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.get().is_none()
    }

    /// The number of tasks. It walks over them, so that a wake need not count.
    ///
    /// # Safety
    /// The caller is on the owner's thread.
    pub(crate) unsafe fn count(&self) -> usize {
        let mut count = 0;
        let mut next = self.first.get();
        while let Some(task) = next {
            count += 1;
            // SAFETY: a linked task lives, and this is the owner's thread.
            next = unsafe { owner(task) }.next.get();
        }
        count
    }

    /// Links a task at the end.
    ///
    /// # Safety
    /// The caller is on the owner's thread. The executor has a reference to the task, which it
    /// keeps while the task is linked. The task is not linked.
    #[inline(always)]
    pub(super) unsafe fn push(&self, task: TaskPtr) {
        match self.last.replace(Some(task)) {
            // SAFETY: a linked task lives, and this is the owner's thread.
            Some(last) => unsafe { owner(last) }.next.set(Some(task)),
            None => self.first.set(Some(task)),
        }
    }

    /// Unlinks the first task. `is_scheduled` stays as it is.
    ///
    /// # Safety
    /// The caller is on the owner's thread.
    #[inline(always)]
    pub(crate) unsafe fn pop(&self) -> Option<TaskPtr> {
        let task = self.first.get()?;
        // SAFETY: a linked task lives, and this is the owner's thread.
        let next = unsafe { owner(task) }.next.take();
        self.first.set(next);
        if next.is_none() {
            self.last.set(None);
        }
        Some(task)
    }
}

/// The tasks that are not finished, the last to be spawned first.
#[derive(Default)]
pub(crate) struct LiveTasks {
    first: Cell<Option<TaskPtr>>,
    len: Cell<usize>,
}

impl LiveTasks {
    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }

    pub(crate) fn first(&self) -> Option<TaskPtr> {
        self.first.get()
    }

    /// # Safety
    /// The caller is on the owner's thread, and the executor has a reference to the task. The task
    /// is in no list.
    pub(super) unsafe fn push(&self, task: TaskPtr) {
        let after = self.first.replace(Some(task));
        if let Some(after) = after {
            // SAFETY: a task in the list is not finished, so the executor has a reference to it.
            unsafe { owner(after) }.live_before.set(Some(task));
        }
        // SAFETY: the caller's promise.
        unsafe { owner(task) }.live_after.set(after);
        self.len.set(self.len.get() + 1);
    }

    /// # Safety
    /// The caller is on the owner's thread, and the task is in this list.
    pub(super) unsafe fn remove(&self, task: TaskPtr) {
        // SAFETY: a task in the list is not finished, so the executor has a reference to it.
        let task = unsafe { owner(task) };
        let (before, after) = (task.live_before.take(), task.live_after.take());
        match before {
            // SAFETY: as above.
            Some(before) => unsafe { owner(before) }.live_after.set(after),
            None => self.first.set(after),
        }
        if let Some(after) = after {
            // SAFETY: as above.
            unsafe { owner(after) }.live_before.set(before);
        }
        self.len.set(self.len.get() - 1);
    }
}
