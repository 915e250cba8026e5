//! Clocks and timers, and the alarm that wakes the loop for them.

pub(crate) mod clock;
pub(crate) mod index_wheel;
mod run;
pub(crate) mod timers;
pub(crate) mod timing;
pub(crate) mod wheel;
