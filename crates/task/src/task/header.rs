//! The header of a task: the part that does not depend on the type of its future.

#![allow(
    unsafe_code,
    reason = "wakers are raw pointers to headers, counted by hand; the protocol in `task`"
)]

use core::{
    cell::Cell,
    ptr::{self, NonNull},
};

use crate::{
    sync::{Arc, AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering, fence},
    task::{error::JoinError, join_ref::JoinSlot, shared::Shared},
};

/// More references than this are a leak. The process then aborts, as `Arc` does with the same
/// number, before the count wraps around and frees a task that is in use.
const REFS_MAX: usize = usize::MAX / 2;

/// A note of a [`Header`]: `abort` was called.
const ABORTED: u8 = 1;
/// The future is gone. Written by the owner.
const FINISHED: u8 = 2;

/// First in the allocation of a task.
#[repr(C)]
pub(crate) struct Header {
    owner: OwnerPart,
    /// One `Arc`, as a pointer that can be compared with that of the thread's executor.
    shared: *const Shared,
    pub(crate) vtable: &'static TaskVtable,
    /// The next task in the injector.
    pub(super) remote_next: AtomicPtr<Header>,
    refs: AtomicUsize,
    /// [`ABORTED`] and [`FINISHED`].
    notes: AtomicU8,
    /// Linked in the injector (protocol 6).
    pub(super) is_remote: AtomicBool,
    /// For the owner. Here and not in `owner`, because there it would take a word of its own.
    content: Cell<Content>,
    /// Stands for the whole allocation in the models: each use reads it, and the end writes it. So
    /// loom reports a use that does not happen before the end.
    #[cfg(loom)]
    memory: loom::cell::UnsafeCell<()>,
}

/// The part that only the owner's thread touches (protocol 2).
#[repr(C)]
pub(crate) struct OwnerPart {
    /// What the executor calls when it comes to the task in the run queue: [`TaskVtable::poll`],
    /// or what replaces it when the task is aborted or finished (protocol 9).
    pub(super) run: Cell<unsafe fn(TaskPtr)>,
    /// The next task in the run queue, null for the last one, or [`UNLINKED`] (protocol 5).
    pub(super) next: Cell<*mut Header>,
    /// Neighbours in the list of live tasks.
    pub(super) live_before: Cell<Option<TaskPtr>>,
    pub(super) live_after: Cell<Option<TaskPtr>>,
    /// What is to be done when the task is finished.
    pub(crate) join: Cell<JoinSlot>,
}

/// The link of a task that is in no run queue, and that a wake links. No task has this address.
pub(super) const UNLINKED: *mut Header = ptr::without_provenance_mut(1);

/// What is in the slot of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Future,
    Output,
    Nothing,
}

/// The functions of a task that depend on the type of its future. All but `free` are for the owner.
pub(crate) struct TaskVtable {
    /// Polls the future, and finishes the task if it is ready. A panic of the future propagates,
    /// and the task is not finished then. The slot holds the future.
    pub(crate) poll: unsafe fn(TaskPtr),
    /// Drops the future and finishes the task with this error. Does not panic. The slot holds the
    /// future.
    pub(crate) end: unsafe fn(TaskPtr, JoinError),
    /// Moves the output to this target, a `MaybeUninit<Result<T, JoinError>>`. The slot holds the
    /// output.
    pub(crate) take_output: unsafe fn(TaskPtr, NonNull<()>),
    /// Drops the output. Its panic propagates. The slot holds the output.
    pub(crate) drop_output: unsafe fn(TaskPtr),
    /// Frees the memory, for the last reference. The slot is empty.
    pub(super) free: unsafe fn(TaskPtr),
}

impl Header {
    /// With one reference, for the executor.
    pub(super) fn new(vtable: &'static TaskVtable, shared: Arc<Shared>) -> Self {
        Self {
            owner: OwnerPart {
                run: Cell::new(vtable.poll),
                next: Cell::new(UNLINKED),
                live_before: Cell::new(None),
                live_after: Cell::new(None),
                join: Cell::new(JoinSlot::Detached),
            },
            shared: Arc::into_raw(shared),
            vtable,
            refs: AtomicUsize::new(1),
            is_remote: AtomicBool::new(false),
            notes: AtomicU8::new(0),
            content: Cell::new(Content::Future),
            remote_next: AtomicPtr::new(core::ptr::null_mut()),
            #[cfg(loom)]
            memory: loom::cell::UnsafeCell::new(()),
        }
    }

    /// The part of the owner's thread.
    ///
    /// # Safety
    /// The caller is on the owner's thread (protocol 2).
    #[inline(always)]
    pub(crate) unsafe fn owner(&self) -> &OwnerPart {
        &self.owner
    }

    /// What is in the slot.
    ///
    /// # Safety
    /// The caller is on the owner's thread (protocol 2).
    #[inline(always)]
    pub(crate) unsafe fn content(&self) -> &Cell<Content> {
        &self.content
    }

    /// The address of what the tasks of the executor share.
    #[inline(always)]
    pub(crate) fn shared_ptr(&self) -> *const Shared {
        self.shared
    }

    #[inline(always)]
    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: the header has one `Arc` until its own end.
        unsafe { &*self.shared }
    }

    pub(crate) fn is_finished(&self) -> bool {
        // Pairs with the change at the end of the future.
        self.notes.load(Ordering::Acquire) & FINISHED != 0
    }

    pub(super) fn set_finished(&self) {
        self.notes.fetch_or(FINISHED, Ordering::Release);
    }

    /// Whether the task was aborted before it was finished.
    pub(super) fn is_aborted(&self) -> bool {
        self.notes.load(Ordering::Acquire) == ABORTED
    }

    /// Requests the end of the task. The caller wakes it afterwards.
    pub(super) fn set_aborted(&self) {
        self.notes.fetch_or(ABORTED, Ordering::Release);
    }
}

impl Drop for Header {
    fn drop(&mut self) {
        // SAFETY: `new` has made the pointer from an `Arc`, whose count ends here.
        drop(unsafe { Arc::from_raw(self.shared) });
    }
}

/// The address of a task, with the provenance of its whole allocation. It counts no reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct TaskPtr(NonNull<Header>);

impl TaskPtr {
    /// `address` is that of a whole allocation, of which the header is the first field.
    pub(super) fn new(address: NonNull<Header>) -> Self {
        Self(address)
    }

    /// The task of a link that is neither null nor [`UNLINKED`].
    #[inline(always)]
    pub(super) fn from_link(link: *mut Header) -> Option<Self> {
        NonNull::new(link).map(Self)
    }

    #[inline(always)]
    pub(super) fn as_non_null(self) -> NonNull<Header> {
        self.0
    }

    #[inline(always)]
    pub(super) fn as_ptr(self) -> *mut Header {
        self.0.as_ptr()
    }

    /// Borrows the header. All that changes in it is in cells and atomics.
    ///
    /// # Safety
    /// A reference to the task is held for as long as the result is used.
    #[inline(always)]
    pub(crate) unsafe fn header<'t>(self) -> &'t Header {
        // SAFETY: while a reference is held, the allocation lives (protocol 1).
        let header: &'t Header = unsafe { self.0.as_ref() };
        #[cfg(loom)]
        header.memory.with(|_| ());
        header
    }

    /// Counts one more reference.
    ///
    /// # Safety
    /// A reference is held during the call.
    pub(super) unsafe fn retain(self) {
        // SAFETY: the caller holds a reference.
        let header = unsafe { self.header() };
        // Relaxed, as in `Arc`: the new reference is made from one that the thread can see.
        if header.refs.fetch_add(1, Ordering::Relaxed) > REFS_MAX {
            std::process::abort();
        }
    }

    /// Gives up one reference. The last one frees the task.
    ///
    /// # Safety
    /// The caller owns a reference, and does not use it afterwards.
    pub(crate) unsafe fn release(self) {
        // SAFETY: the caller's reference is counted until this subtraction.
        let count = unsafe { self.header() }.refs.fetch_sub(1, Ordering::Release);
        debug_assert_ne!(count, 0, "a reference is given up twice");
        if count == 1 {
            // All uses through other references happen before the memory is freed, as in `Arc`.
            fence(Ordering::Acquire);
            // SAFETY: no reference is left, so the slot is empty (protocol 4).
            unsafe { self.free() };
        }
    }

    /// # Safety
    /// No reference is left.
    #[cold]
    unsafe fn free(self) {
        // SAFETY: this call frees the memory, so it is there until then.
        let header = unsafe { self.header() };
        #[cfg(loom)]
        header.memory.with_mut(|_| ());
        let free = header.vtable.free;
        // SAFETY: the vtable is that of this task.
        unsafe { free(self) };
    }
}

/// A counted reference to a task. It may be used and dropped on any thread.
pub(crate) struct TaskRef(TaskPtr);

// SAFETY: a reference gives safe code the parts of the header that are made for all threads. The
// owner's part is behind an unsafe function. Dropping the last reference frees memory, which may
// drop the task's `Arc<Shared>`, and `Shared` is `Send` and `Sync` (protocol 4).
unsafe impl Send for TaskRef {}
// SAFETY: as above.
unsafe impl Sync for TaskRef {}

impl TaskRef {
    /// Takes over a counted reference.
    ///
    /// # Safety
    /// The caller owns a reference, which now belongs to the result.
    pub(super) unsafe fn from_counted(task: TaskPtr) -> Self {
        Self(task)
    }

    pub(crate) fn ptr(&self) -> TaskPtr {
        self.0
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: this reference is counted while `self` lives.
        unsafe { self.0.header() }
    }
}

impl Clone for TaskRef {
    fn clone(&self) -> Self {
        // SAFETY: this reference is counted.
        unsafe { self.0.retain() };
        Self(self.0)
    }
}

impl Drop for TaskRef {
    fn drop(&mut self) {
        // SAFETY: this is the last use of the reference.
        unsafe { self.0.release() };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::handle::Handle;

    #[test]
    fn a_header_has_twelve_words() {
        assert_eq!(size_of::<Header>(), 96);
    }

    /// As `Arc`: four thousand million wakers that were forgotten are not too many.
    #[test]
    fn a_task_has_as_many_references_as_an_arc() {
        let task = crate::block_on(async { Handle::expect_current().owner().spawn(async {}) });
        let refs = &task.task().header().refs;
        let before = refs.load(Ordering::Relaxed);
        refs.store(1 << 32, Ordering::Relaxed);
        drop([task.task().clone(), task.task().clone()]);
        assert_eq!(refs.load(Ordering::Relaxed), 1 << 32);
        refs.store(before, Ordering::Relaxed);
    }
}
