//! The end of a [`Kernel`], with its reactor.

use crate::{cell::CellFlags, kernel::Kernel, util::unwind_safe_drop::Panics};

impl Kernel {
    /// Ends all watches and requests. The descriptors are still open.
    pub(crate) fn end_watches(&mut self) {
        if let Some(ring) = self.backend.ring() {
            ring.withdraw_receives();
        }
        // Rule 14: sent data is submitted before descriptors are closed.
        self.backend.submit_now();
        // Cells with requests that do not complete in time are leaked (rule 2).
        self.backend.end(self.registry.iter());
        self.backend.close();
    }

    /// Drops the values of all cells. Rule 8: every destructor runs, even if others panic.
    pub(crate) fn drop_subscribers(&mut self, panics: &mut Panics) {
        // A cell leaves the registry before its value is dropped (rule 3).
        while let Some(cell) = self.registry.pop() {
            cell.set_flag(CellFlags::ABSENT, true);
            self.reclaim.retire(cell, false, false);
        }
        while self.reclaim.has_waiting() {
            panics.catch(|| self.reclaim.drop_next());
        }
    }

    /// Frees the blocks of all cells, after the last wait: the kernel returns no more addresses
    /// (rule 2).
    pub(crate) fn free_all(&mut self, is_owner: bool) {
        debug_assert_eq!(
            self.registry.len(),
            0,
            "values are dropped before their blocks are freed"
        );
        debug_assert!(
            !self.reclaim.has_waiting(),
            "values are dropped before their blocks are freed"
        );
        self.batch.clear();
        self.reclaim.release_quarantine();
        if is_owner {
            self.free_dead();
        } else {
            self.reclaim.free_in_child();
        }
    }
}
