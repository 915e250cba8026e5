//! The end of an executor: tasks first, then the reactor.

use windlass_flow::panics::Panics;

use crate::{
    executor::Executor,
    handle::Handle,
    sync::Arc,
    task::{
        current::Entered,
        polls::{close_injector, end_tasks},
        shared::Phase,
    },
};

impl Drop for Executor {
    fn drop(&mut self) {
        // Destructors of futures find the executor that they belong to.
        let entered = Entered::new(Arc::as_ptr(self.handle.owner().shared()));
        let handle = self.handle.clone();
        let (mut panics, mut hook) = (Panics::default(), Panics::default());
        handle.local().phase.set(Phase::Closing);
        close_injector(handle.owner(), self.process.is_current(), &mut panics);
        // A panic of a task is in its handle. This one is of a hook of the reactor.
        hook.catch(|| {
            let _: Option<()> = self.in_turn(|| end_all(&handle, &mut panics));
        });
        // A second panic is dropped here, and its destructor is user code.
        panics.catch(|| hook.resume());
        // There was no turn, because of a panic, or the last ones have left something.
        end_all(&handle, &mut panics);
        // From the end of that loop on, no user code runs that finds this executor. What it left
        // here would be dropped with the last reference, perhaps on another thread.
        handle.local().phase.set(Phase::Closed);
        drop(entered);
        panics.resume();
    }
}

/// Ends all tasks, and all that they leave behind, until there is nothing. The destructors of
/// panics that are not kept run in the loop too.
fn end_all(handle: &Handle, panics: &mut Panics) {
    loop {
        end_tasks(handle.local());
        handle.run_last_requests(panics);
        let extensions = handle.local().extensions.take();
        if handle.local().live.first().is_none() && extensions.is_empty() {
            break;
        }
        for extension in extensions {
            panics.catch(|| drop(extension));
        }
    }
}
