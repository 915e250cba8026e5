//! The system's clock, for transports without a timer.

use std::time::Duration;

/// The time since the first call.
#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
pub(crate) fn now() -> Option<Duration> {
    use std::{sync::OnceLock, time::Instant};
    static START: OnceLock<Instant> = OnceLock::new();
    Some(START.get_or_init(Instant::now).elapsed())
}

/// There is none.
#[cfg(all(target_family = "wasm", target_os = "unknown"))]
pub(crate) fn now() -> Option<Duration> {
    None
}
