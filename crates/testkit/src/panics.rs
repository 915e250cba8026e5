//! Expected panics of tests. They are not printed, because a reader would take them for failures.
//! Not every test program has a harness that captures output, and printing backtraces takes time.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::Once,
    thread,
};

std::thread_local! {
    /// The number of [`caught`] calls that this thread is in.
    static WANTED: Cell<u32> = const { Cell::new(0) };
}

/// Runs code that may panic, like `catch_unwind`. The panic is not printed.
pub fn caught<R>(run: impl FnOnce() -> R) -> thread::Result<R> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let tell = take_hook();
        set_hook(Box::new(move |panic| {
            // The variable is gone when the thread is ending. Then no panic is expected.
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
