//! Clocks and timers.

pub(crate) mod clock;
pub(crate) mod timers;
pub(crate) mod wheel;
