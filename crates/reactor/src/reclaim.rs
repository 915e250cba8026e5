//! What was deleted: values whose destructor has yet to run, and headers whose memory the kernel
//! may still name.
//!
//! # The protocol of this module
//!
//! 1. A cell comes here by [`ReclaimQueue::retire`] once: struck from the registry, its function
//!    swapped for one that touches no value, its handler not running. From here on the queue alone
//!    holds its pointer, beside the batch and the kernel, which have only its address.
//! 2. It is `waiting` until its value has been dropped or taken; then it is `dead`, or
//!    `quarantined` if the epoll set may still have its address. Being moved on precedes the
//!    destructor, which may panic (rule 3).
//! 3. `dead` cells are freed when the batch is empty and the driver holds no events: every event
//!    that was fetched has been dispatched; and when the cell is owed nothing: every request that
//!    carries its address has completed for good (rule 2). Quarantined ones become dead when the
//!    epoll set has been replaced (rule 7).
//! 4. A dead cell that was added after the batch was fetched is freed at once. The conditions are
//!    those of 3, except that the batch need not be empty: it must not name the cell.

#![allow(unsafe_code, reason = "values and blocks end here; the protocol above")]

use core::any::TypeId;
use std::collections::VecDeque;

use crate::{
    Reactor, Subscriber,
    backend::Driver,
    batch::Batch,
    cell::CellPtr,
    pending_work,
    reactor::{Phase, SelfDeleted},
    timer::TimerCall,
    turn::ReactorOps,
};

/// Something with a destructor of the user's that has yet to run.
enum Waiting<R: ReactorOps> {
    Cell { cell: CellPtr<R>, is_stale: bool, early: bool },
    Timer(Box<dyn TimerCall<R>>),
}

pub(crate) struct ReclaimQueue<R: ReactorOps> {
    waiting: VecDeque<Waiting<R>>,
    dead: Vec<CellPtr<R>>,
    quarantine: Vec<CellPtr<R>>,
}

impl<R: ReactorOps> ReclaimQueue<R> {
    pub(crate) const fn new() -> Self {
        Self { waiting: VecDeque::new(), dead: Vec::new(), quarantine: Vec::new() }
    }

    /// Takes a cell that has been struck from the books and whose handler is not running (protocol
    /// 1). `early` says that protocol 4 may apply.
    pub(crate) fn retire(&mut self, cell: CellPtr<R>, is_stale: bool, early: bool) {
        disarm(cell, is_stale);
        self.waiting.push_back(Waiting::Cell { cell, is_stale, early });
    }

    /// Takes a timer's handler that is not running.
    pub(crate) fn retire_timer(&mut self, call: Box<dyn TimerCall<R>>) {
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

    /// Runs the destructor that waits longest.
    pub(crate) fn drop_next(&mut self) {
        if let Some(next) = self.waiting.pop_front() {
            self.drop_waiting(next);
        }
    }

    /// Runs the destructor that came last. True if [`free_early`](Self::free_early) may free its
    /// block.
    pub(crate) fn drop_last(&mut self) -> bool {
        self.waiting.pop_back().is_some_and(|last| self.drop_waiting(last))
    }

    fn drop_waiting(&mut self, waiting: Waiting<R>) -> bool {
        match waiting {
            Waiting::Cell { cell, is_stale, early } => {
                self.await_free(cell, is_stale);
                // SAFETY: a waiting cell's value is alive, its handler does not run and its
                // function is not the trampoline (protocol 1); it is not waiting any more, so
                // nobody drops it again.
                unsafe { cell.drop_value() };
                early && !is_stale
            }
            Waiting::Timer(call) => {
                drop(call);
                false
            }
        }
    }

    /// Takes the value of a cell that has been struck from the books and whose handler is not
    /// running, instead of dropping it.
    pub(crate) fn take_boxed(
        &mut self,
        cell: CellPtr<R>,
        is_stale: bool,
    ) -> Box<dyn Subscriber<R>> {
        disarm(cell, is_stale);
        self.await_free(cell, is_stale);
        // SAFETY: the value is alive: it was registered until now, and the cell was never waiting.
        // Its handler does not run.
        unsafe { cell.take_boxed() }
    }

    /// The same, where the type is known.
    ///
    /// # Panics
    /// When it is not a `T`.
    pub(crate) fn take<T: Subscriber<R>>(&mut self, cell: CellPtr<R>, is_stale: bool) -> T {
        // SAFETY: the value is alive and its handler does not run, as in `take_boxed`.
        let is_t = unsafe { cell.with_value(|value| value.type_id() == TypeId::of::<T>()) };
        assert!(is_t, "the caller has compared the types");
        disarm(cell, is_stale);
        self.await_free(cell, is_stale);
        // SAFETY: as above, and it is a `T`.
        unsafe { cell.take_as() }
    }

    /// The cell's block waits to be freed.
    fn await_free(&mut self, cell: CellPtr<R>, is_stale: bool) {
        if is_stale { &mut self.quarantine } else { &mut self.dead }.push(cell);
    }

    /// The epoll set has been replaced: what was quarantined is merely dead.
    pub(crate) fn release_quarantine(&mut self) {
        self.dead.append(&mut self.quarantine);
        for waiting in &mut self.waiting {
            if let Waiting::Cell { is_stale, early, .. } = waiting {
                // Batches were fetched while the old set still had its address.
                *early &= !*is_stale;
                *is_stale = false;
            }
        }
    }

    /// Frees the block of the cell that died last, unless the batch, the driver or the kernel may
    /// name it (protocol 4). For a cell that was [new](Reactor::is_new) when it was deleted.
    pub(crate) fn free_early(&mut self, batch: &Batch, driver: &Driver) {
        let Some(&cell) = self.dead.last() else { return };
        if cell.has_inflight() || driver.holds_events() || batch.names(cell.expose()) {
            return;
        }
        self.dead.pop();
        // SAFETY: its value is gone (protocol 2) and the registry has no copy (protocol 1). No
        // event that waits in the batch or in the driver names it (tested above), and events that
        // were dispatched are not read again. The kernel does not have it: it was deleted from the
        // epoll set and is no stale entry, or a ring has no request that carries it (tested above).
        unsafe { cell.free() };
    }

    /// Frees the blocks of the dead, unless the batch, the driver or the kernel may still name one
    /// (rule 2).
    pub(crate) fn free(&mut self, batch: &Batch, driver: &Driver) {
        if !batch.is_empty() || driver.holds_events() {
            return;
        }
        self.dead.retain(|cell| {
            if cell.has_inflight() {
                return true;
            }
            // SAFETY: its value is gone (protocol 2), the registry has no copy (protocol 1), no
            // event that was fetched names it, and the kernel does not have it: it was deleted from
            // the epoll set, or the set has been replaced, or the ring's requests for it have ended
            // (protocol 3).
            unsafe { cell.free() };
            false
        });
    }
}

impl<R: ReactorOps> ReclaimQueue<R> {
    /// Frees the blocks of all the dead at the end of a reactor in a child of fork(2), those that
    /// the kernel owes something too: it owes it to the parent.
    pub(crate) fn free_in_child(&mut self) {
        for cell in self.dead.drain(..) {
            // SAFETY: its value is gone (protocol 2), the registry has no copy (protocol 1), and no
            // event names it: the batch is empty, and every wait of the child's was refused. What a
            // request that carries its address may still write is memory of the parent's.
            unsafe { cell.free() };
        }
    }
}

/// The cell's function touches no value from here on.
fn disarm<R: ReactorOps>(cell: CellPtr<R>, is_stale: bool) {
    if is_stale {
        cell.disarm_stale();
    } else {
        cell.disarm();
    }
}

impl Reactor {
    /// Runs the destructors of all that has come to the queue since there were `mark`, the last
    /// first.
    ///
    /// A panic comes out; the rest waits for the next turn. So does all of it while a panic is
    /// under way already: a second one would abort (rule 8).
    pub(crate) fn drop_waiting_down_to(&mut self, mark: usize) {
        self.pending_work |= pending_work::RECLAIM;
        while self.reclaim.waiting() > mark && !std::thread::panicking() {
            if self.reclaim.drop_last() {
                self.reclaim.free_early(&self.batch, &self.driver);
            }
        }
        self.free_if_idle();
    }

    /// Runs the destructors that a panic has left behind (rule 8).
    pub(crate) fn drop_all_waiting(&mut self) {
        while self.reclaim.has_waiting() {
            self.reclaim.drop_next();
        }
    }

    fn free_if_idle(&mut self) {
        if self.phase == Phase::Idle {
            self.reclaim.free(&self.batch, &self.driver);
            self.recompute_pending();
        }
    }

    /// The handler that has deleted itself has returned: its value's destructor runs now (rule 1).
    pub(crate) fn drop_self_deleted(&mut self) {
        // Rule 14: what the handler has changed after it deleted itself.
        self.flush();
        let mark = self.reclaim.waiting();
        self.retire_self_deleted();
        self.drop_waiting_down_to(mark);
    }

    /// Retires the cell that has deleted itself, and lets the batch go on. Runs no code of the
    /// user's.
    pub(crate) fn retire_self_deleted(&mut self) {
        self.pending_work &= !pending_work::SELF_DELETED;
        if let Some(SelfDeleted { cell, is_stale }) = self.self_deleted.take() {
            self.batch.resume();
            self.registry.release_number(cell.fd());
            // It was in the batch.
            self.reclaim.retire(cell, is_stale, false);
            self.pending_work |= pending_work::RECLAIM;
        }
    }

    /// Takes a struck cell's value out. `early` says that protocol 4 may apply.
    pub(crate) fn take_with<T>(
        &mut self,
        early: bool,
        take: impl FnOnce(&mut ReclaimQueue<Self>) -> T,
    ) -> T {
        let value = take(&mut self.reclaim);
        if early {
            self.reclaim.free_early(&self.batch, &self.driver);
        }
        self.pending_work |= pending_work::RECLAIM;
        self.free_if_idle();
        value
    }

    /// Looks at a registered subscriber, outside a turn.
    ///
    /// # Panics
    /// In a turn: the subscriber may be running.
    pub(crate) fn look_at<T>(
        &self,
        cell: CellPtr<Self>,
        look: impl FnOnce(&dyn Subscriber<Self>) -> T,
    ) -> T {
        assert_eq!(self.phase, Phase::Idle, "only the owner looks at subscribers");
        // SAFETY: a registered cell's value is alive, and no handler runs outside a turn.
        unsafe { cell.with_value(look) }
    }
}
