//! What the parts of a service share: the options, the counts, the budgets, the pass that is under
//! way.

mod available_memory;
mod codec_budget;
mod connection_rates;
mod memory_budget;
mod message_rates;
mod pass;
#[expect(clippy::module_inception, reason = "the folder is named for its main type")]
mod shared;

pub(crate) use available_memory::quarter_of_available;
pub(crate) use codec_budget::{HEAVY_BYTES, HEAVY_TICKS, LIGHT_LEN};
pub(crate) use connection_rates::{ConnectionRates, RateExceeded, SharedRates};
pub(crate) use memory_budget::{MemoryBudget, MemoryHolder, MemoryPool};
pub(crate) use pass::PendingOutput;
pub(crate) use shared::Shared;
