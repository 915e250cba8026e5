//! Panics that a test wants. They are not told on the terminal: who runs the tests would take them
//! for failures. A harness may hold back what a test prints, but not every program of tests has one
//! that does, and a backtrace of each takes its time.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::Once,
    thread,
};

std::thread_local! {
    /// How many calls of [`caught`] this thread is in.
    static WANTED: Cell<u32> = const { Cell::new(0) };
}

/// Runs what may panic in this thread, as `catch_unwind` does. The panic is not told.
pub(crate) fn caught<R>(run: impl FnOnce() -> R) -> thread::Result<R> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let tell = take_hook();
        set_hook(Box::new(move |panic| {
            // A thread that ends has no such variable any more, and wants nothing.
            if WANTED.try_with(Cell::get).unwrap_or(0) == 0 {
                tell(panic);
            }
        }));
    });
    WANTED.set(WANTED.get() + 1);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    WANTED.set(WANTED.get() - 1);
    outcome
}
