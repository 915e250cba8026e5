//! Deleted objects: values whose destructors have not run yet, and blocks whose addresses the
//! kernel may still return.
//!
//! # The protocol of this module
//!
//! 1. A cell is passed to [`ReclaimQueue::retire`] once. It is removed from the registry before,
//!    and its handler is not running. `retire` replaces its dispatch function by one that does not
//!    access the value. Afterwards only the queue holds its pointer. The batch and the kernel
//!    have only its address.
//! 2. A cell is `waiting` until its value has been dropped or taken. Then it is `dead`, or
//!    `quarantined` if the epoll set may still have its address. The cell changes state before its
//!    destructor runs, because the destructor may panic (rule 3).
//! 3. `dead` cells are freed when two conditions hold. The batch is empty and the backend holds no
//!    events, so every fetched event has been dispatched. The cell has no requests in flight, so
//!    every request with its address has posted its final completion (rule 2). Quarantined cells
//!    become dead when the epoll set has been replaced (rule 7).
//! 4. A dead cell that was added after the batch was fetched is freed at once. The conditions are
//!    those of 3, with one change: the batch may hold events, but none of this cell.

#![allow(unsafe_code, reason = "values and blocks end here; the protocol above")]

use core::any::TypeId;
use std::collections::VecDeque;

use crate::{
    Subscriber,
    api::{inline_call::InlineTimer, ops::ReactorOps},
    backend::{ActiveBackend, batch::Batch},
    cell::{CellPtr, OwnedCell},
};

/// A value with a user's destructor that has not run yet.
enum Waiting<R: ReactorOps> {
    Cell { cell: OwnedCell<R>, is_stale: bool, early: bool },
    Timer(InlineTimer<R>),
}

pub(crate) struct ReclaimQueue<R: ReactorOps> {
    waiting: VecDeque<Waiting<R>>,
    dead: Vec<OwnedCell<R>>,
    quarantine: Vec<OwnedCell<R>>,
}

impl<R: ReactorOps> ReclaimQueue<R> {
    pub(crate) const fn new() -> Self {
        Self { waiting: VecDeque::new(), dead: Vec::new(), quarantine: Vec::new() }
    }

    /// Takes a cell that is removed from the registry and whose handler is not running
    /// (protocol 1). `early` means that protocol 4 may apply.
    pub(crate) fn retire(&mut self, cell: OwnedCell<R>, is_stale: bool, early: bool) {
        disarm(*cell, is_stale);
        self.waiting.push_back(Waiting::Cell { cell, is_stale, early });
    }

    /// Takes the handler of a timer that is not running.
    pub(crate) fn retire_timer(&mut self, call: InlineTimer<R>) {
        self.waiting.push_back(Waiting::Timer(call));
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn has_dead(&self) -> bool {
        !self.dead.is_empty()
    }

    pub(crate) fn quarantined(&self) -> usize {
        self.quarantine.len()
    }

    /// Runs the destructor that has waited longest.
    pub(crate) fn drop_next(&mut self) {
        if let Some(next) = self.waiting.pop_front() {
            self.drop_waiting(next);
        }
    }

    /// Runs the most recent destructor. True if [`free_early`](Self::free_early) may free the
    /// block.
    pub(crate) fn drop_last(&mut self) -> bool {
        self.waiting.pop_back().is_some_and(|last| self.drop_waiting(last))
    }

    fn drop_waiting(&mut self, waiting: Waiting<R>) -> bool {
        match waiting {
            Waiting::Cell { cell, is_stale, early } => {
                self.await_free(cell, is_stale);
                // SAFETY: a waiting cell's value is alive, its handler does not run, and its
                // dispatch function is not the trampoline (protocol 1). The cell is no longer in
                // the queue, so nothing drops the value again.
                unsafe { cell.drop_value() };
                early && !is_stale
            }
            Waiting::Timer(call) => {
                drop(call);
                false
            }
        }
    }

    /// Takes out the value of a cell that is removed from the registry and whose handler is not
    /// running. The value is returned and not dropped.
    pub(crate) fn take_boxed(
        &mut self,
        cell: OwnedCell<R>,
        is_stale: bool,
    ) -> Box<dyn Subscriber<R>> {
        disarm(*cell, is_stale);
        self.await_free(cell, is_stale);
        // SAFETY: the value is alive, because the cell was registered until now and was never in
        // `waiting`. Its handler does not run.
        unsafe { cell.take_boxed() }
    }

    /// The same, if the type is known.
    ///
    /// # Panics
    /// If the value is not a `T`.
    pub(crate) fn take<T: Subscriber<R>>(&mut self, cell: OwnedCell<R>, is_stale: bool) -> T {
        // SAFETY: the value is alive and its handler does not run, as in `take_boxed`.
        let is_t = unsafe { cell.with_value(|value| value.type_id() == TypeId::of::<T>()) };
        assert!(is_t, "the caller has compared the types");
        disarm(*cell, is_stale);
        self.await_free(cell, is_stale);
        // SAFETY: as above, and the value is a `T`.
        unsafe { cell.take_as() }
    }

    /// Queues the cell's block to be freed.
    fn await_free(&mut self, cell: OwnedCell<R>, is_stale: bool) {
        if is_stale { &mut self.quarantine } else { &mut self.dead }.push(cell);
    }

    /// Makes quarantined cells dead, because the epoll set has been replaced.
    pub(crate) fn release_quarantine(&mut self) {
        self.dead.append(&mut self.quarantine);
        for waiting in &mut self.waiting {
            if let Waiting::Cell { is_stale, early, .. } = waiting {
                // Batches may have been fetched while the old set still had the cell's address.
                *early &= !*is_stale;
                *is_stale = false;
            }
        }
    }

    /// Frees the block of the cell that died last, unless the batch, the backend or the kernel may
    /// name it (protocol 4). For a cell that was [new](crate::kernel::Kernel::is_new) when it was
    /// deleted.
    pub(crate) fn free_early(&mut self, batch: &Batch, backend: &ActiveBackend) {
        let Some(&cell) = self.dead.last() else { return };
        if cell.has_inflight() || backend.holds_events() || batch.names(cell.expose()) {
            return;
        }
        self.dead.pop();
        // SAFETY: the value is gone (protocol 2) and the registry has no copy of the pointer
        // (protocol 1). No undelivered event in the batch or the backend names the cell (checked
        // above), and dispatched events are not read again. The kernel does not have the address:
        // the cell was deleted from the epoll set and is no stale entry, or the ring has no request
        // with its address (checked above).
        unsafe { cell.free() };
    }

    /// Frees the blocks of dead cells, unless the batch, the backend or the kernel may still name
    /// them (rule 2).
    pub(crate) fn free(&mut self, batch: &Batch, backend: &ActiveBackend) {
        if !batch.is_empty() || backend.holds_events() {
            return;
        }
        self.dead.retain(|cell| {
            if cell.has_inflight() {
                return true;
            }
            // SAFETY: the value is gone (protocol 2), the registry has no copy of the pointer
            // (protocol 1), and no fetched event names the cell. The kernel does not have the
            // address: the cell was deleted from the epoll set, or the set was replaced, or the
            // ring's requests for it have ended (protocol 3).
            unsafe { cell.free() };
            false
        });
    }
}

impl<R: ReactorOps> ReclaimQueue<R> {
    /// Frees the blocks of all dead cells when a reactor is dropped in a child of fork(2). Cells
    /// with requests in flight are included, because those requests belong to the parent.
    pub(crate) fn free_in_child(&mut self) {
        for cell in self.dead.drain(..) {
            // SAFETY: the value is gone (protocol 2), the registry has no copy of the pointer
            // (protocol 1), and no event names the cell: the batch is empty, and every wait in the
            // child was rejected. A request with the cell's address may still write, but only to
            // the parent's memory.
            unsafe { cell.free() };
        }
    }
}

/// Replaces the cell's dispatch function by one that does not access the value.
fn disarm<R: ReactorOps>(cell: CellPtr<R>, is_stale: bool) {
    if is_stale {
        cell.disarm_stale();
    } else {
        cell.disarm();
    }
}
