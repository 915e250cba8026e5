//! Clocks and timers.

pub(crate) mod clock;
pub(crate) mod index_wheel;
mod run;
pub(crate) mod timers;
pub(crate) mod wheel;
