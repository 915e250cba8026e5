//! The state that the connections of a service share, and what works on all of them.

mod drain;
mod inspection;
mod live_status;
mod memory_relief;
#[expect(clippy::module_inception, reason = "the folder is named for its main type")]
mod state;
mod tables;
mod timeouts;

pub(crate) use state::{PassGuard, ServiceState};
pub(crate) use tables::Tables;
