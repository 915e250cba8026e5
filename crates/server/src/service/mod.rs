//! One service: the state that its connections share, and what works on all of them.

mod available_memory;
mod close_info;
mod codec_budget;
mod commands;
mod conn_state;
mod conn_table;
mod drain;
mod host;
mod lifecycle;
mod live_status;
mod memory_budget;
mod output;
mod requests;
#[expect(clippy::module_inception, reason = "the folder is named for its main type")]
mod service;
mod state;
mod stats;
mod timeouts;

pub(crate) use close_info::CloseInfo;
pub(crate) use codec_budget::{HEAVY_BYTES, HEAVY_TICKS, LIGHT_LEN};
pub(crate) use conn_state::{
    ConnState, HALT_CLOSING, HALT_CODEC, HALT_HELD, HALT_OUTPUT_MAX, HALT_PAUSED, HALT_QUEUED,
    HALTS, HAS_DEFLATE, LARGE_LEN,
};
pub(crate) use conn_table::{ConnEntry, ConnFlags, ConnTable};
pub use service::Service;
pub(crate) use service::{ServiceInner, WorkerLinks, memory_pool};
pub(crate) use state::{PassGuard, PendingOutput, ServiceState, Tables};
