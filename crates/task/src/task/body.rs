//! The allocation of a task: its header, and the slot of its future and output.

#![allow(
    unsafe_code,
    reason = "the future and the output share their memory, behind a header without their types"
)]

use core::{
    cell::UnsafeCell,
    future::Future,
    mem::{ManuallyDrop, MaybeUninit},
    pin::Pin,
    ptr::{self, NonNull},
    task::{Context, Poll},
};
use std::panic::{AssertUnwindSafe, catch_unwind};

use windlass_flow::panics::discard_panic;

use crate::{
    sync::Arc,
    task::{
        error::JoinError,
        header::{Content, Header, TaskPtr, TaskVtable},
        join_ref::JoinSlot,
        polls::note_finished,
        queue::RunQueue,
        shared::Shared,
        waker,
    },
};

#[repr(C)]
struct TaskBody<F: Future> {
    /// First, so that the address of the header is that of the allocation.
    header: Header,
    slot: UnsafeCell<Slot<F>>,
}

/// `Header::content` says which field is valid (protocol 3). All fields begin where it begins.
#[repr(C)]
union Slot<F: Future> {
    future: ManuallyDrop<F>,
    output: ManuallyDrop<Result<F::Output, JoinError>>,
}

/// Makes a task, schedules it and returns it. The task has one reference, the executor's.
///
/// # Safety
/// The caller is on the owner's thread of `shared`. What the future borrows lives until the task is
/// finished, which the caller ensures.
pub(crate) unsafe fn spawn<F: Future>(shared: &Arc<Shared>, future: F) -> TaskPtr {
    let body = TaskBody {
        header: Header::new(&Vtable::<F>::TABLE, Arc::clone(shared)),
        slot: UnsafeCell::new(Slot { future: ManuallyDrop::new(future) }),
    };
    let address = NonNull::from(Box::leak(Box::new(body))).cast::<Header>();
    let task = TaskPtr::new(address);
    // SAFETY: the caller's promise: this is the owner's thread.
    let local = unsafe { shared.local() };
    // SAFETY: as above. The task is new, and its only reference becomes the executor's.
    unsafe { local.adopt(task) };
    task
}

/// The functions for one type of future.
struct Vtable<F>(F);

impl<F: Future> Vtable<F> {
    const TABLE: TaskVtable = TaskVtable {
        poll: poll::<F>,
        end: end::<F>,
        take_output: take_output::<F>,
        drop_output: drop_output::<F>,
        free: free::<F>,
    };
}

/// The slot, which only the owner touches: a `Slot<F>`, an `F`, or a `Result<F::Output,
/// JoinError>`, which all have the same address.
///
/// # Safety
/// `task` is one of `F`, and a reference to it is held.
unsafe fn slot<F: Future>(task: TaskPtr) -> *mut Slot<F> {
    let body = task.as_non_null().cast::<TaskBody<F>>();
    // SAFETY: the allocation is a `TaskBody<F>` and lives. The borrow is a shared one of the cell.
    unsafe { body.as_ref() }.slot.get()
}

/// Notes that the slot, which has held `from`, holds `to` from now on (protocol 3).
///
/// # Safety
/// The caller is on the owner's thread, and a reference to the task is held.
unsafe fn change_content(task: TaskPtr, from: Content, to: Content) {
    // SAFETY: a reference is held.
    let header = unsafe { task.header() };
    // SAFETY: this is the owner's thread.
    let before = unsafe { header.content() }.replace(to);
    debug_assert_eq!(before, from, "the slot of a task has another content");
}

/// See [`TaskVtable::poll`].
///
/// # Safety
/// `task` is one of `F`, the caller is on the owner's thread, the executor has a reference, and the
/// slot holds the future.
unsafe fn poll<F: Future>(task: TaskPtr) {
    // SAFETY: the executor keeps its reference during the poll.
    let waker = unsafe { waker::borrowed(task) };
    // SAFETY: the caller's promise.
    let slot = unsafe { slot::<F>(task) };
    // SAFETY: the slot holds the future. Nothing else touches the slot while it is polled: polls
    // are not nested, and a join handle looks at the slot of a finished task alone.
    let future = unsafe { &mut *slot.cast::<F>() };
    // SAFETY: the future never moves: it is dropped where it is.
    let future = unsafe { Pin::new_unchecked(future) };
    if let Poll::Ready(output) = future.poll(&mut Context::from_waker(&waker)) {
        // SAFETY: the caller's promise.
        let dropped = catch_unwind(AssertUnwindSafe(move || unsafe { drop_future::<F>(task) }));
        let output = match dropped {
            Ok(()) => Ok(output),
            Err(payload) => {
                discard_panic(catch_unwind(AssertUnwindSafe(|| drop(output))));
                Err(JoinError::panicked(payload))
            }
        };
        // SAFETY: the future is gone.
        unsafe { finish::<F>(task, output) };
    }
}

/// See [`TaskVtable::end`].
///
/// # Safety
/// As for [`poll`].
unsafe fn end<F: Future>(task: TaskPtr, error: JoinError) {
    // SAFETY: the caller's promise.
    let dropped = catch_unwind(AssertUnwindSafe(|| unsafe { drop_future::<F>(task) }));
    let error = match (dropped, error) {
        (Err(payload), JoinError::Cancelled) => JoinError::panicked(payload),
        (dropped, error) => {
            discard_panic(dropped);
            error
        }
    };
    // SAFETY: the future is gone.
    unsafe { finish::<F>(task, Err(error)) };
}

/// # Safety
/// As for [`poll`]. Its panic is that of the future's destructor.
unsafe fn drop_future<F: Future>(task: TaskPtr) {
    // Protocol 3: first the tag, then the destructor.
    // SAFETY: the caller's promise.
    unsafe { change_content(task, Content::Future, Content::Nothing) };
    // SAFETY: the caller's promise.
    let slot = unsafe { slot::<F>(task) };
    // SAFETY: the slot has held the future, and the tag says that it no longer does.
    unsafe { ptr::drop_in_place(slot.cast::<F>()) };
}

/// Stores the output and finishes the task. Does not panic.
///
/// # Safety
/// `task` is one of `F`, the caller is on the owner's thread, the executor has a reference, and the
/// slot is empty.
unsafe fn finish<F: Future>(task: TaskPtr, output: Result<F::Output, JoinError>) {
    // SAFETY: the caller's promise.
    let slot = unsafe { slot::<F>(task) };
    // SAFETY: the slot is empty, and is the owner's.
    unsafe { slot.write(Slot { output: ManuallyDrop::new(output) }) };
    // SAFETY: the caller's promise.
    unsafe { change_content(task, Content::Nothing, Content::Output) };
    // SAFETY: as above.
    unsafe { finished(task) };
}

/// Tells the join handle, and gives up the executor's reference.
///
/// # Safety
/// The caller is on the owner's thread, the executor has a reference, and the slot holds the
/// output.
unsafe fn finished(task: TaskPtr) {
    // SAFETY: the executor has a reference until the end of this function.
    let header = unsafe { task.header() };
    // SAFETY: the caller's promise.
    let owner = unsafe { header.owner() };
    // SAFETY: the caller's promise.
    let local = unsafe { header.shared().local() };
    header.set_finished();
    note_finished(owner);
    // SAFETY: the task was in the list, because it was not finished.
    unsafe { local.live.remove(task) };
    // Protocol 5: no wake links it from now on.
    // SAFETY: this is the owner's thread, and the executor has a reference.
    let is_linked = unsafe { RunQueue::finished(task) };
    match owner.join.replace(JoinSlot::Idle) {
        JoinSlot::Detached => {
            // SAFETY: the slot holds the output, and nobody is there to take it.
            let drop_output = || unsafe { (header.vtable.drop_output)(task) };
            discard_panic(catch_unwind(AssertUnwindSafe(drop_output)));
        }
        JoinSlot::Idle => {}
        JoinSlot::Waker(waker) => {
            discard_panic(catch_unwind(AssertUnwindSafe(|| waker.wake())));
        }
        JoinSlot::Member(member) => {
            discard_panic(catch_unwind(AssertUnwindSafe(|| member.finished())));
        }
    }
    if !is_linked {
        // SAFETY: the task is in neither list of the executor, which gives up its reference. If it
        // is linked, the run queue does so when it comes to the task (protocol 1).
        unsafe { task.release() };
    }
}

/// See [`TaskVtable::take_output`].
///
/// # Safety
/// `task` is one of `F`, the caller is on the owner's thread with a reference, and the slot holds
/// the output. `target` is a `MaybeUninit<Result<F::Output, JoinError>>`.
unsafe fn take_output<F: Future>(task: TaskPtr, target: NonNull<()>) {
    // SAFETY: the caller's promise.
    unsafe { change_content(task, Content::Output, Content::Nothing) };
    // SAFETY: the caller's promise.
    let slot = unsafe { slot::<F>(task) };
    // SAFETY: the slot has held the output, and the tag says that it no longer does.
    let output = unsafe { slot.cast::<Result<F::Output, JoinError>>().read() };
    let target = target.cast::<MaybeUninit<Result<F::Output, JoinError>>>();
    // SAFETY: the target has this type, by the caller's promise.
    unsafe { target.write(MaybeUninit::new(output)) };
}

/// See [`TaskVtable::drop_output`].
///
/// # Safety
/// As for [`take_output`], without the target.
unsafe fn drop_output<F: Future>(task: TaskPtr) {
    // SAFETY: the caller's promise.
    unsafe { change_content(task, Content::Output, Content::Nothing) };
    // SAFETY: the caller's promise.
    let slot = unsafe { slot::<F>(task) };
    // SAFETY: the slot has held the output, and the tag says that it no longer does.
    unsafe { ptr::drop_in_place(slot.cast::<Result<F::Output, JoinError>>()) };
}

/// See [`TaskVtable::free`].
///
/// # Safety
/// `task` is one of `F`, and no reference to it is left.
unsafe fn free<F: Future>(task: TaskPtr) {
    // SAFETY: the allocation was made by `spawn` as a box of this type. The slot is empty (protocol
    // 4) and has no destructor.
    drop(unsafe { Box::from_raw(task.as_non_null().cast::<TaskBody<F>>().as_ptr()) });
}
