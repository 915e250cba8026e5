//! Data structures that know nothing of the reactor.

pub(crate) mod arena;
pub(crate) mod generations;
pub(crate) mod memory_trimmer;
pub(crate) mod prefetch;
pub(crate) mod unwind_safe_drop;
