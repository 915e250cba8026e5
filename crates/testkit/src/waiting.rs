//! Waiting for a state that has no event.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Maximum time of any wait, after which the test fails.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// Waits until the closure returns something.
///
/// # Panics
/// If it does not in [`WAIT_MAX`].
#[track_caller]
pub fn until<T>(mut there: impl FnMut() -> Option<T>, describe: impl Fn() -> String) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = there() {
            return found;
        }
        assert!(begin.elapsed() < WAIT_MAX, "not in time: {}", describe());
        // sleep: the state has no event to wait for.
        thread::sleep(Duration::from_millis(1));
    }
}
