//! The end of an executor: tasks first, then the reactor.

#![allow(unsafe_code, reason = "ends tasks through their tables; the protocol in `task`")]

use windlass_flow::panics::Panics;

use crate::{
    ambient::Handle,
    executor::Executor,
    sync::Arc,
    task::{current::Entered, error::JoinError, shared::Phase},
};

impl Drop for Executor {
    fn drop(&mut self) {
        // Destructors of futures find the executor that they belong to.
        let _entered = Entered::new(Arc::as_ptr(self.handle.owner().shared()));
        let handle = self.handle.clone();
        let mut panics = Panics::default();
        handle.local().phase.set(Phase::Closing);
        // Panics of tasks are in their handles. This one is of a handler or a hook of the reactor.
        panics.catch(|| {
            let _: Option<()> = self.in_turn(|| end_all(&handle));
        });
        // There was no turn, in a child of fork(2) or by a panic, or some came later.
        panics.catch(|| end_all(&handle));
        handle.local().phase.set(Phase::Closed);
        handle.local().requests.take();
        panics.resume();
    }
}

/// Ends all tasks, and all that they have left behind.
fn end_all(handle: &Handle) {
    let local = handle.local();
    let owner = handle.owner();
    let mut panics = Panics::default();
    // SAFETY: this is the owner's thread.
    for job in unsafe { owner.shared().inbox.close() } {
        panics.catch(|| drop(job));
    }
    loop {
        while let Some(task) = local.live.first() {
            // SAFETY: the executor has a reference to a live task.
            let header = unsafe { task.header() };
            // SAFETY: this is the owner's thread. A live task holds its future, and none is being
            // polled, because the executor is being dropped.
            unsafe { (header.vtable.end)(task, JoinError::Cancelled) };
        }
        handle.run_last_requests(&mut panics);
        let extensions = local.extensions.take();
        if local.live.first().is_none() && extensions.is_empty() {
            break;
        }
        for extension in extensions {
            panics.catch(|| drop(extension));
        }
    }
    // SAFETY: this is the owner's thread.
    while let Some(task) = unsafe { local.queue.pop() } {
        // SAFETY: the task is finished and was linked, so its end has left the executor's reference
        // to the run queue.
        unsafe { task.release() };
    }
    panics.resume();
}
