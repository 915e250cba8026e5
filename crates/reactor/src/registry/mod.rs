//! Which cells exist, by key and by descriptor number, and which wait to be freed.

pub(crate) mod reclaim;
pub(crate) mod table;
