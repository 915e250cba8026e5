//! When the destructors of deleted values run.

#![allow(unsafe_code, reason = "the owner looks at registered values between turns")]

use crate::{
    Reactor, Subscriber,
    api::inline_timer::InlineTimer,
    cell::CellPtr,
    registry::reclaim::ReclaimQueue,
    runtime::{pending_work, reactor::SelfDeleted},
};

impl Reactor {
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
    pub(crate) fn drop_timer(&mut self, call: InlineTimer<Self>) {
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

    fn free_if_idle(&mut self) {
        if !self.is_in_turn() {
            self.reclaim.free(&self.batch, &self.backend);
            self.recompute_pending();
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

    /// Takes the value out of a removed cell. `early` means that protocol 4 may apply.
    pub(crate) fn take_with<T>(
        &mut self,
        early: bool,
        take: impl FnOnce(&mut ReclaimQueue<Self>) -> T,
    ) -> T {
        let value = take(&mut self.reclaim);
        if early {
            self.reclaim.free_early(&self.batch, &self.backend);
        }
        self.pending_work |= pending_work::RECLAIM;
        self.free_if_idle();
        value
    }

    /// Passes a registered subscriber to `look`, outside a turn.
    ///
    /// # Panics
    /// In a turn, because the subscriber may be running.
    pub(crate) fn look_at<T>(
        &self,
        cell: CellPtr<Self>,
        look: impl FnOnce(&dyn Subscriber<Self>) -> T,
    ) -> T {
        assert!(!self.is_in_turn(), "only the owner looks at subscribers");
        // SAFETY: a registered cell's value is alive, and no handler runs outside a turn.
        unsafe { cell.with_value(look) }
    }
}
