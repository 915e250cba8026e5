//! A cell as its owner holds it.

#![allow(
    unsafe_code,
    reason = "the value is reached by its address; the protocol of `cell/mod.rs`"
)]

use core::{fmt, ops::Deref, ptr};
use std::alloc;

use crate::{
    Interest, Reactor,
    api::ops::{ReactorOps, Subscriber},
    cell::{CellPtr, CellVTable},
};

/// A cell's address with the functions of its value's type. The block's owner holds it: a
/// subscription, the registry, or the queue of deleted cells.
///
/// The functions are here and not in the header, because dispatch does not use them. The smaller
/// the header, the more cells fit into the cache.
pub(crate) struct OwnedCell<R: 'static = Reactor> {
    cell: CellPtr<R>,
    vtable: &'static CellVTable<R>,
}

impl<R> Clone for OwnedCell<R> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<R> Copy for OwnedCell<R> {}
impl<R> fmt::Debug for OwnedCell<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cell.fmt(f)
    }
}

impl<R> Deref for OwnedCell<R> {
    type Target = CellPtr<R>;

    fn deref(&self) -> &CellPtr<R> {
        &self.cell
    }
}

impl<R: ReactorOps> OwnedCell<R> {
    /// # Safety
    /// The vtable was made for the type of the value in the block.
    pub(super) const unsafe fn new(cell: CellPtr<R>, vtable: &'static CellVTable<R>) -> Self {
        Self { cell, vtable }
    }

    /// Stores the requested interest and selects the matching trampoline.
    pub(crate) fn set_interest(self, interest: Interest) {
        self.set_interest_bits(interest.bits());
        self.set_dispatch_fn(if interest.has_one_shot() {
            self.vtable.dispatch_one_shot
        } else {
            self.vtable.dispatch
        });
    }

    /// Events of a paused member reach its handler again.
    pub(crate) fn resume(self) {
        self.set_group(self.group());
        self.set_interest(self.interest());
    }

    /// The value as a trait object. The pointer is valid while the value is alive. The caller must
    /// prove that it may be borrowed.
    ///
    /// # Safety
    /// The value is alive.
    unsafe fn value(self) -> *mut dyn Subscriber<R> {
        // SAFETY: the vtable was made for the type of the value in this block (`new`).
        unsafe { (self.vtable.value)(self.cell.0) }
    }

    /// Passes a shared reference to the value to `look`.
    ///
    /// # Safety
    /// The value is alive, and no handler of it runs.
    pub(crate) unsafe fn with_value<U>(self, look: impl FnOnce(&dyn Subscriber<R>) -> U) -> U {
        // SAFETY: the value is alive (the caller's promise).
        let value = unsafe { self.value() };
        // SAFETY: nothing borrows the value mutably, because only its handler could (protocol 2).
        look(unsafe { &*value })
    }

    /// Runs the value's destructor, which may panic. The block stays allocated.
    ///
    /// # Safety
    /// The value is alive, no handler of it runs (rule 1), it is not used afterwards, and the
    /// cell's dispatch function is no longer the trampoline.
    pub(crate) unsafe fn drop_value(self) {
        // SAFETY: the value is alive (the caller's promise).
        let value = unsafe { self.value() };
        // SAFETY: the value is alive, not borrowed, and not used again (the caller's promise).
        unsafe { ptr::drop_in_place(value) }
    }

    /// Moves the value out. The block stays allocated.
    ///
    /// # Safety
    /// As [`drop_value`](Self::drop_value).
    pub(crate) unsafe fn take_boxed(self) -> Box<dyn Subscriber<R>> {
        // SAFETY: the vtable was made for the type of the value (`new`). The rest is the caller's
        // promise.
        unsafe { (self.vtable.unbox)(self.cell.0) }
    }

    /// Frees the memory of the block.
    ///
    /// # Safety
    /// The value is gone, no copy of the cell's address is used again, and the kernel cannot return
    /// it (rule 2).
    pub(crate) unsafe fn free(self) {
        // SAFETY: the block was allocated with this layout in `Subscription::new`, and it is not
        // used again.
        unsafe { alloc::dealloc(self.cell.0.as_ptr().cast(), self.vtable.layout) }
    }
}
