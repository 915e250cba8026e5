//! Which cells exist, by key and by descriptor number, and which wait to be freed. The members of
//! each group.

pub(crate) mod groups;
pub(crate) mod reclaim;
pub(crate) mod table;
