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
