//! Sets of watched descriptors and queues of completions: pure state.

pub(crate) mod queue;
pub(crate) mod set;
