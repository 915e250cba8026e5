//! One service: the state that its connections share, and what works on all of them.

mod available_memory;
mod codec_budget;
mod conn_table;
mod drain;
mod memory_budget;
#[expect(clippy::module_inception, reason = "the folder is named for its main type")]
mod service;
mod state;
mod timeouts;

pub(crate) use conn_table::{ConnEntry, ConnFlags, ConnTable, NO_CONN};
pub use service::Service;
pub(crate) use service::{ServiceInner, WorkerLinks, memory_pool};
pub(crate) use state::{PassGuard, PendingOutput, ServiceState, Tables};
