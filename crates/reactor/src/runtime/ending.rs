//! The end of a reactor: what is dropped, and in which order.

use crate::{Reactor, util::unwind_safe_drop::Panics};

impl Drop for Reactor {
    fn drop(&mut self) {
        let mut panics = Panics::default();
        let is_owner = self.kernel.check_owner().is_ok();
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
        self.streams.end_all(&mut self.kernel, &mut panics);
        self.kernel.end_watches();
        // Rule 8: every destructor runs, even if others panic.
        self.timing.drop_timers(&mut panics);
        self.kernel.drop_subscribers(&mut panics);
        while let Some(closure) = self.deferred.pop() {
            panics.catch(|| drop(closure));
        }
        while let Some(hook) = self.hooks.pop() {
            panics.catch(|| drop(hook));
        }
        let on_no_progress = self.on_no_progress.take();
        panics.catch(|| drop(on_no_progress));
        while let Some(group) = self.groups.pop() {
            panics.catch(|| drop(group));
        }
        self.timing.drop_clock(&mut panics);
        self.kernel.free_all(is_owner);
        panics.resume();
    }
}
