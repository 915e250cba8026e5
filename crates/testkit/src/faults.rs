//! Calls that a fault of a simulation may strike.

use core::fmt::Display;

/// More faults in a row are no bad luck: the call never succeeds.
const TRIES_MAX: u32 = 10_000;

/// Repeats a call until it succeeds.
///
/// # Panics
/// With the last error, if the call never succeeds.
pub fn again<T, E: Display>(mut call: impl FnMut() -> Result<T, E>) -> T {
    for _ in 1..TRIES_MAX {
        if let Ok(made) = call() {
            return made;
        }
    }
    call().unwrap_or_else(|error| panic!("failed {TRIES_MAX} times: {error}"))
}
