//! The simulation that an executor belongs to.

use core::{any::Any, cell::OnceCell, ptr};

use windlass::sim::Host;

use crate::{handle::Handle, task::current::Entered};

/// The host of a simulated executor.
#[derive(Default)]
struct HostSlot(OnceCell<Host>);

/// Makes the executor one of a host.
pub(crate) fn install(handle: &Handle, host: &Host) {
    host.set_context(leave_executor);
    handle.extension::<HostSlot>().0.get_or_init(|| host.clone());
}

/// The test may wait inside of an executor. The other programs of the simulation run meanwhile, and
/// are not that executor: their wakes are those of other threads.
fn leave_executor() -> Box<dyn Any> {
    Box::new(Entered::new(ptr::null()))
}

/// Whether the executor that runs on this thread is simulated.
///
/// In a simulation nothing but the seed may decide what happens. So a library uses the time of
/// [`now`](crate::time::now) there, and not the date of the machine.
#[must_use]
pub fn is_simulated() -> bool {
    host().is_some()
}

/// The host of the executor that runs on this thread, if it is simulated.
pub(crate) fn host() -> Option<Host> {
    Handle::current()?.extension::<HostSlot>().0.get().cloned()
}
