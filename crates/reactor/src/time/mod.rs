//! Clocks and timers.

pub(crate) mod clock;
mod run;
pub(crate) mod timers;
pub(crate) mod wheel;
