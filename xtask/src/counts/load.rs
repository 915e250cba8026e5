//! Keeps the processors busy while something is measured.

use std::sync::atomic::{AtomicBool, Ordering};

/// Runs `work` beside one busy thread for each processor.
pub(super) fn beside<T>(work: impl FnOnce() -> T) -> T {
    let is_done = AtomicBool::new(false);
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        // Dropped when `work` panics too, so that the scope ends.
        let _guard = Done(&is_done);
        work()
    })
}

/// Ends the busy threads when it is dropped.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::beside;

    #[test]
    fn the_load_ends_with_the_work() {
        assert_eq!(beside(|| 7), 7);
        // This unwinds without a message.
        let unwound = || beside(|| std::panic::resume_unwind(Box::new(())));
        assert!(std::panic::catch_unwind(unwound).is_err());
    }
}
