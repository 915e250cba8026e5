//! The state that the connections of a service share, and what works on all of them.

mod available_memory;
mod codec_budget;
mod drain;
mod lifecycle;
mod live_status;
mod memory_budget;
mod output;
mod requests;
#[expect(clippy::module_inception, reason = "the folder is named for its main type")]
mod state;
mod stats;

pub(crate) use available_memory::quarter_of_available;
pub(crate) use codec_budget::{HEAVY_BYTES, HEAVY_TICKS, LIGHT_LEN};
pub(crate) use memory_budget::{MemoryBudget, MemoryPool};
pub(crate) use state::{PassGuard, PendingOutput, ServiceState, Tables};
