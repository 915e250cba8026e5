//! The two lists of tasks that the owner keeps: those that are to be polled, and all that live.

#![allow(unsafe_code, reason = "the lists are linked through the tasks; the protocol in `task`")]

use core::{cell::Cell, ptr};

use crate::task::header::{Header, OwnerPart, TaskPtr, UNLINKED};

/// The tasks that are to be polled, the first to be scheduled first. A task is linked at most once.
///
/// A linked task lives: the executor keeps its reference to it (protocol 1).
pub(crate) struct RunQueue {
    /// Null if the queue is empty.
    first: Cell<*mut Header>,
    last: Cell<*mut Header>,
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

impl Default for RunQueue {
    fn default() -> Self {
        Self { first: Cell::new(ptr::null_mut()), last: Cell::new(ptr::null_mut()) }
    }
}

impl RunQueue {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.get().is_null()
    }

    /// The number of tasks. It walks over them, so that a wake need not count.
    ///
    /// # Safety
    /// The caller is on the owner's thread.
    pub(crate) unsafe fn count(&self) -> usize {
        let mut count = 0;
        let mut next = TaskPtr::from_link(self.first.get());
        while let Some(task) = next {
            count += 1;
            // SAFETY: a linked task lives, and this is the owner's thread.
            next = TaskPtr::from_link(unsafe { owner(task) }.next.get());
        }
        count
    }

    /// Links a task at the end, unless it is linked or finished (protocol 5).
    ///
    /// # Safety
    /// The caller is on the owner's thread, and a reference to the task is held. If the task is not
    /// finished, the executor has a reference to it, which it keeps while the task is linked.
    #[inline(always)]
    pub(super) unsafe fn push(&self, task: TaskPtr) {
        // SAFETY: the caller's promise.
        let link = &unsafe { owner(task) }.next;
        if link.get() != UNLINKED {
            return;
        }
        link.set(ptr::null_mut());
        match TaskPtr::from_link(self.last.replace(task.as_ptr())) {
            // SAFETY: a linked task lives, and this is the owner's thread.
            Some(last) => unsafe { owner(last) }.next.set(task.as_ptr()),
            None => self.first.set(task.as_ptr()),
        }
    }

    /// Unlinks the first task. From now on a wake links it again. If the task is finished, the
    /// caller calls [`finished`](Self::finished) and gives up the executor's reference.
    ///
    /// # Safety
    /// The caller is on the owner's thread.
    #[inline(always)]
    pub(super) unsafe fn pop(&self) -> Option<TaskPtr> {
        let task = TaskPtr::from_link(self.first.get())?;
        // SAFETY: a linked task lives, and this is the owner's thread.
        let next = unsafe { owner(task) }.next.replace(UNLINKED);
        self.first.set(next);
        if next.is_null() {
            self.last.set(ptr::null_mut());
        }
        Some(task)
    }

    /// Makes wakes leave a finished task alone. True if it is linked: it then stays so until
    /// [`pop`](Self::pop).
    ///
    /// # Safety
    /// The caller is on the owner's thread, and a reference to the task is held.
    pub(super) unsafe fn finished(task: TaskPtr) -> bool {
        // SAFETY: the caller's promise.
        let link = &unsafe { owner(task) }.next;
        let is_linked = link.get() != UNLINKED;
        if !is_linked {
            link.set(ptr::null_mut());
        }
        is_linked
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
        // SAFETY: the caller's promise.
        let links = unsafe { owner(task) };
        debug_assert!(links.live_before.get().is_none() && links.live_after.get().is_none());
        let after = self.first.replace(Some(task));
        if let Some(after) = after {
            // SAFETY: a task in the list is not finished, so the executor has a reference to it.
            unsafe { owner(after) }.live_before.set(Some(task));
        }
        links.live_after.set(after);
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
