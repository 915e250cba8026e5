//! The place of one waker, which the waker of the last poll replaces.

use core::{cell::Cell, task::Waker};

/// Stores the waker of a poll that is pending.
///
/// The waker before is dropped after that. Its destructor may be anybody's code, and what it makes
/// ready must find the new one.
#[inline]
pub(crate) fn store(slot: &Cell<Option<Waker>>, waker: &Waker) {
    let (new, old) = match slot.take() {
        Some(before) if before.will_wake(waker) => (before, None),
        before => (waker.clone(), before),
    };
    let meanwhile = slot.replace(Some(new));
    drop(old);
    // A waker that the clone has stored.
    drop(meanwhile);
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, task::Wake};

    use super::*;

    thread_local! {
        static SLOT: Cell<Option<Waker>> = const { Cell::new(None) };
        static FOUND: Cell<bool> = const { Cell::new(false) };
    }

    /// Notes when it is dropped whether there is a waker in the slot.
    struct LooksByDrop;

    impl Wake for LooksByDrop {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for LooksByDrop {
        fn drop(&mut self) {
            FOUND.set(SLOT.take().is_some());
        }
    }

    #[test]
    fn the_waker_before_is_dropped_when_the_new_one_is_there() {
        SLOT.with(|slot| store(slot, &Waker::from(Arc::new(LooksByDrop))));
        SLOT.with(|slot| store(slot, Waker::noop()));
        assert!(FOUND.get());
    }
}
