//! When the destructors of deleted values run.

#![allow(unsafe_code, reason = "the owner looks at registered values between turns")]

use crate::{
    Reactor, Subscriber,
    api::inline_call::InlineTimer,
    cell::{CellFlags, CellPtr, OwnedCell},
    kernel::{Kernel, SelfDeleted, pending_work},
    registry::reclaim::ReclaimQueue,
};

impl Kernel {
    /// Runs the most recent destructors until `mark` are left in the queue.
    ///
    /// If one panics, the panic propagates and the rest waits for the next turn. If the thread is
    /// panicking already, all wait, because a second panic would abort (rule 8).
    pub(crate) fn drop_waiting_down_to(&mut self, mark: usize) {
        self.pending_work |= pending_work::RECLAIM;
        while self.reclaim.waiting() > mark && !std::thread::panicking() {
            if self.reclaim.drop_last() {
                self.reclaim.free_early(&self.batch, &self.backend);
            }
        }
        self.free_if_idle();
    }

    /// Runs the destructor of a timer's handler, which is not running. If the thread is panicking,
    /// it waits for the next turn, because a second panic would abort (rule 8).
    #[inline]
    pub(crate) fn drop_timer(&mut self, call: InlineTimer<Reactor>) {
        if std::thread::panicking() {
            self.reclaim.retire_timer(call);
            self.pending_work |= pending_work::RECLAIM;
        } else {
            drop(call);
        }
    }

    /// Runs the destructors that a panicking turn left in the queue (rule 8).
    pub(crate) fn drop_all_waiting(&mut self) {
        while self.reclaim.has_waiting() {
            self.reclaim.drop_next();
        }
    }

    /// Frees the blocks of dead cells that nothing names any more (rule 2).
    pub(crate) fn free_dead(&mut self) {
        self.reclaim.free(&self.batch, &self.backend);
    }

    fn free_if_idle(&mut self) {
        if !self.is_in_turn() {
            self.free_dead();
            self.recompute_own();
        }
    }

    /// Runs the destructor of the value whose handler deleted itself and has returned (rule 1).
    pub(crate) fn drop_self_deleted(&mut self) {
        // Rule 14: flush the changes that the handler made after it deleted itself.
        self.flush();
        let mark = self.reclaim.waiting();
        self.retire_self_deleted();
        self.drop_waiting_down_to(mark);
    }

    /// Retires the cell that has deleted itself. Runs no user code. The batch stays halted: the
    /// loop opens it again, and the end of a turn closes it.
    pub(crate) fn retire_self_deleted(&mut self) {
        self.pending_work &= !pending_work::SELF_DELETED;
        if let Some(SelfDeleted { cell, is_stale }) = self.self_deleted.take() {
            self.registry.release_number(cell.fd());
            // Not early: the cell's event was in the batch.
            self.reclaim.retire(cell, is_stale, false);
        }
    }

    /// Takes the value out of a registered cell that does not run.
    fn withdraw<T>(
        &mut self,
        cell: CellPtr,
        take: impl FnOnce(&mut ReclaimQueue<Reactor>, OwnedCell, bool) -> T,
    ) -> T {
        debug_assert!(!self.is_running(cell), "rule 1: a running value stays in its cell");
        self.flush();
        let is_stale = self.unwatch(cell);
        let early = !is_stale && self.is_new(cell);
        let cell = self.registry.remove(cell, false);
        let value = take(&mut self.reclaim, cell, is_stale);
        if early {
            self.reclaim.free_early(&self.batch, &self.backend);
        }
        self.note(pending_work::RECLAIM);
        self.free_if_idle();
        value
    }

    /// Removes a cell that does not run, and returns its value, which is known to be a `T`.
    pub(crate) fn take_value<T: Subscriber>(&mut self, cell: CellPtr) -> T {
        self.withdraw(cell, ReclaimQueue::take)
    }

    /// The same for a value of any type.
    pub(crate) fn take_boxed(&mut self, cell: CellPtr) -> Box<dyn Subscriber> {
        self.withdraw(cell, ReclaimQueue::take_boxed)
    }

    /// [`take_value`](Self::take_value) for the cell of a stream or listener.
    pub(crate) fn take_hidden<T: Subscriber>(&mut self, cell: CellPtr) -> T {
        debug_assert!(cell.has_flag(CellFlags::HIDDEN), "it is the cell of a stream or listener");
        self.take_value(cell)
    }

    /// The number of values whose destructors wait. A mark for
    /// [`drop_waiting_down_to`](Self::drop_waiting_down_to).
    pub(crate) fn waiting(&self) -> usize {
        self.reclaim.waiting()
    }

    /// Passes a registered subscriber to `look`, outside a turn.
    ///
    /// # Panics
    /// In a turn, because the subscriber may be running.
    pub(crate) fn look_at<T>(&self, cell: CellPtr, look: impl FnOnce(&dyn Subscriber) -> T) -> T {
        assert!(!self.is_in_turn(), "only the owner looks at subscribers");
        // SAFETY: a registered cell's value is alive, and no handler runs outside a turn.
        unsafe { self.registry.owned(cell).with_value(look) }
    }
}
