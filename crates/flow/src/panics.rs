//! Runs several pieces of user code although some of them panic. Two panics at once would abort the
//! process.

use core::any::Any;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

/// Drops the payload of a panic. That may panic in turn, with another such payload. An endless
/// chain is cut, and its last payload leaked.
pub fn discard_panic(outcome: Result<(), Box<dyn Any + Send>>) {
    let Err(mut load) = outcome else { return };
    for _ in 0..8 {
        match catch_unwind(AssertUnwindSafe(|| drop(load))) {
            Ok(()) => return,
            Err(next) => load = next,
        }
    }
    core::mem::forget(load);
}

/// Runs pieces of user code, catches their panics and keeps the first one.
#[derive(Debug, Default)]
pub struct Panics(Option<Box<dyn Any + Send>>);

impl Panics {
    /// Runs one piece.
    pub fn catch(&mut self, run: impl FnOnce()) {
        let outcome = catch_unwind(AssertUnwindSafe(run));
        if self.0.is_none() {
            self.0 = outcome.err();
        } else {
            discard_panic(outcome);
        }
    }

    /// Whether a panic was caught.
    #[must_use]
    pub fn any(&self) -> bool {
        self.0.is_some()
    }

    /// Resumes the first panic, unless the thread is already panicking.
    pub fn resume(self) {
        if let Some(load) = self.0 {
            if thread::panicking() {
                discard_panic(Err(load));
            } else {
                std::panic::resume_unwind(load);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::{cell::Cell, rc::Rc};

    #[test]
    fn a_panic_whose_load_panics_is_survived() {
        let count = Rc::new(Cell::new(0));
        struct Load;
        impl Drop for Load {
            fn drop(&mut self) {
                panic!("load");
            }
        }
        let mut panics = Panics::default();
        for _ in 0..3 {
            let count = count.clone();
            panics.catch(move || {
                count.set(count.get() + 1);
                std::panic::panic_any(Load)
            });
        }
        assert_eq!(count.get(), 3);
        core::mem::forget(catch_unwind(AssertUnwindSafe(|| panics.resume())).unwrap_err());
    }
}
