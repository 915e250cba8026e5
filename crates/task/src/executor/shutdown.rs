//! The end of an executor: tasks first, then the reactor.

use windlass_flow::panics::Panics;

use crate::{
    ambient::Handle,
    executor::Executor,
    sync::Arc,
    task::{
        current::Entered,
        polls::{close_inbox, end_tasks},
        shared::Phase,
    },
};

impl Drop for Executor {
    fn drop(&mut self) {
        // Destructors of futures find the executor that they belong to.
        let _entered = Entered::new(Arc::as_ptr(self.handle.owner().shared()));
        let handle = self.handle.clone();
        let mut panics = Panics::default();
        handle.local().phase.set(Phase::Closing);
        close_inbox(handle.owner(), self.process.is_current(), &mut panics);
        // A panic of a task is in its handle. This one is of a hook of the reactor.
        panics.catch(|| {
            let _: Option<()> = self.in_turn(|| end_all(&handle));
        });
        // There was no turn, because of a panic, or the last requests have left something.
        panics.catch(|| end_all(&handle));
        handle.local().phase.set(Phase::Closed);
        panics.catch(|| drop(handle.local().requests.take()));
        panics.resume();
    }
}

/// Ends all tasks, and all that they leave behind.
fn end_all(handle: &Handle) {
    let mut panics = Panics::default();
    loop {
        end_tasks(handle.local());
        handle.run_last_requests(&mut panics);
        let extensions = handle.local().extensions.take();
        if handle.local().live.first().is_none() && extensions.is_empty() {
            break;
        }
        for extension in extensions {
            panics.catch(|| drop(extension));
        }
    }
    panics.resume();
}
