//! The end of a reactor: what is dropped, and in which order.

use crate::{Reactor, cell::CellFlags, util::unwind_safe_drop::Panics};

impl Drop for Reactor {
    fn drop(&mut self) {
        let mut panics = Panics::default();
        let is_owner = self.kernel.backend.check_owner().is_ok();
        // Callers waiting for an answer are released before destructors run.
        if let Some(inbox) = self.inbox.take() {
            if is_owner {
                inbox.close(&mut panics);
            } else {
                // In a child of fork(2) no caller waits. Another thread of the parent may have held
                // the queue's lock at the fork, and the child's copy is never unlocked.
                core::mem::forget(inbox);
            }
        }
        self.end_streams(&mut panics);
        if let Some(ring) = self.kernel.backend.ring() {
            ring.withdraw_receives();
        }
        // Rule 14: sent data is submitted before descriptors are closed.
        self.kernel.backend.submit_now();
        // Cells with requests that do not complete in time are leaked (rule 2).
        self.kernel.backend.end(self.kernel.registry.iter());
        self.kernel.backend.close();
        // Rule 8: every destructor runs, even if others panic. A cell leaves the registry before
        // its value is dropped (rule 3).
        while let Some(cell) = self.kernel.registry.pop() {
            cell.set_flag(CellFlags::ABSENT, true);
            self.kernel.reclaim.retire(cell, false, false);
        }
        while let Some(call) = self.timing.timers.pop() {
            panics.catch(|| drop(call));
        }
        while self.kernel.reclaim.has_waiting() {
            panics.catch(|| self.kernel.reclaim.drop_next());
        }
        self.deferred.append(&mut self.deferred_later);
        while let Some(closure) = self.deferred.pop_front() {
            panics.catch(|| drop(closure));
        }
        while let Some(hook) = self.hooks.pop() {
            panics.catch(|| drop(hook));
        }
        while let Some(group) = self.groups.pop() {
            panics.catch(|| drop(group));
        }
        if let Some(clock) = self.timing.time.take_custom() {
            panics.catch(|| drop(clock));
        }
        // No further wait on the epoll set happens, so the kernel returns no addresses (rule 2).
        self.kernel.batch.clear();
        self.kernel.reclaim.release_quarantine();
        if is_owner {
            self.kernel.free_dead();
        } else {
            self.kernel.reclaim.free_in_child();
        }
        panics.resume();
    }
}
