//! Wakers: counted pointers to tasks.

#![allow(unsafe_code, reason = "a waker is a raw pointer with a table of functions; `task`")]

use core::{
    mem::ManuallyDrop,
    ptr::{self, NonNull},
    task::{RawWaker, RawWakerVTable, Waker},
};

use crate::task::{
    current,
    header::{Header, TaskPtr, TaskRef},
    polls::note_abort,
};

/// A static, so that all wakers of a task have the same address here: `Waker::will_wake` compares
/// it.
static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

/// A waker without a reference of its own, for one poll.
///
/// # Safety
/// A reference to the task is held for as long as the result is used.
#[inline(always)]
pub(super) unsafe fn borrowed(task: TaskPtr) -> ManuallyDrop<Waker> {
    let raw = RawWaker::new(task.as_ptr().cast_const().cast(), &VTABLE);
    // SAFETY: the functions of the table keep the contract of `RawWakerVTable`: they may be called
    // on any thread, and each waker that is dropped or woken by value owns one reference. This one
    // owns none and is not dropped.
    ManuallyDrop::new(unsafe { Waker::from_raw(raw) })
}

/// Whether it is the waker of a task of this crate, whose clone runs no code of the user.
#[inline]
pub(super) fn is_of_a_task(waker: &Waker) -> bool {
    ptr::eq(waker.vtable(), &VTABLE)
}

/// # Safety
/// `data` is that of a waker.
#[inline(always)]
unsafe fn task(data: *const ()) -> TaskPtr {
    // SAFETY: it is the address of a task, which is not null.
    TaskPtr::new(unsafe { NonNull::new_unchecked(data.cast_mut().cast::<Header>()) })
}

/// # Safety
/// As `RawWakerVTable::new` demands: `data` is that of a live waker.
unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: the caller's promise.
    let task = unsafe { task(data) };
    // SAFETY: the waker holds a reference, or is borrowed from a poll that does.
    unsafe { task.retain() };
    RawWaker::new(data, &VTABLE)
}

/// # Safety
/// As `RawWakerVTable::new` demands: `data` is that of a live waker, which ends here.
unsafe fn wake(data: *const ()) {
    // SAFETY: the waker lives until the release below.
    unsafe { wake_by_ref(data) };
    // SAFETY: the caller gives up the waker, which owns one reference.
    unsafe { drop_waker(data) };
}

/// # Safety
/// As `RawWakerVTable::new` demands: `data` is that of a live waker.
#[inline]
unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: the caller's promise.
    let task = unsafe { task(data) };
    // SAFETY: the waker holds a reference during this call.
    unsafe { wake_task(task) };
}

/// # Safety
/// As `RawWakerVTable::new` demands: `data` is that of a live waker, which ends here.
unsafe fn drop_waker(data: *const ()) {
    // SAFETY: the caller's promise.
    let task = unsafe { task(data) };
    // SAFETY: the caller gives up the waker, which owns one reference.
    unsafe { task.release() };
}

/// Wakes a task from any thread. It never fails, blocks or allocates, and runs no user code.
///
/// # Safety
/// A reference to the task is held during the call.
#[inline(always)]
pub(super) unsafe fn wake_task(task: TaskPtr) {
    // First, because it is a call where the linker does not resolve it. So only `task` is kept in a
    // register that must be saved.
    let executor = current::executor();
    // SAFETY: the caller's promise.
    let header = unsafe { task.header() };
    if !ptr::eq(executor, header.shared_ptr()) {
        // SAFETY: the caller's promise.
        return unsafe { wake_remotely(task) };
    }
    // SAFETY: this thread runs the task's executor, so it is the owner (protocol 2).
    let local = unsafe { header.shared().local() };
    // SAFETY: as above, and the caller holds a reference.
    unsafe { local.schedule(task) };
}

/// # Safety
/// A reference to the task is held during the call.
#[cold]
#[inline(never)]
unsafe fn wake_remotely(task: TaskPtr) {
    // SAFETY: the reference is the caller's, and is not released here.
    let task = ManuallyDrop::new(unsafe { TaskRef::from_counted(task) });
    task.header().shared().injector.wake(&task);
}

impl TaskRef {
    /// Requests the end of the task. Its future is dropped when the executor next comes to it.
    pub(crate) fn abort(&self) {
        self.header().set_aborted();
        if current::is(self.header().shared_ptr()) {
            // SAFETY: this thread runs the task's executor, so it is the owner (protocol 2), and
            // `self` is a reference. On another thread, the owner does it (protocol 9).
            unsafe { note_abort(self.ptr()) };
        }
        // SAFETY: `self` is a reference.
        unsafe { wake_task(self.ptr()) };
    }
}
