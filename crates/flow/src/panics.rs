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
    let Err(mut payload) = outcome else { return };
    for _ in 0..8 {
        match catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            Ok(()) => return,
            Err(next) => payload = next,
        }
    }
    core::mem::forget(payload);
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
        if let Some(payload) = self.0 {
            if thread::panicking() {
                discard_panic(Err(payload));
            } else {
                std::panic::resume_unwind(payload);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::{cell::Cell, rc::Rc};

    #[test]
    fn a_panic_whose_payload_panics_is_survived() {
        let count = Rc::new(Cell::new(0));
        struct Payload;
        impl Drop for Payload {
            fn drop(&mut self) {
                panic!("payload");
            }
        }
        let mut panics = Panics::default();
        for _ in 0..3 {
            let count = count.clone();
            panics.catch(move || {
                count.set(count.get() + 1);
                std::panic::panic_any(Payload)
            });
        }
        assert_eq!(count.get(), 3);
        core::mem::forget(catch_unwind(AssertUnwindSafe(|| panics.resume())).unwrap_err());
    }
}
