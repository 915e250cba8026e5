//! The place of one waker, which the waker of the last poll replaces.

use core::{cell::Cell, task::Waker};

use crate::task::waker::is_of_a_task;

/// Stores the waker of a poll that is pending.
///
/// The waker before is dropped after that. Its destructor may be anybody's code, and what it makes
/// ready must find the new one.
#[inline]
pub(crate) fn store(slot: &Cell<Option<Waker>>, waker: &Waker) {
    let (new, old) = match slot.take() {
        Some(before) if before.will_wake(waker) => (before, None),
        before if is_of_a_task(waker) => (waker.clone(), before),
        before => return store_foreign(slot, waker, before),
    };
    slot.set(Some(new));
    drop(old);
}

/// The clone is anybody's code, which may run or drop the executor. What is waited for may come
/// meanwhile, and takes the waker that it finds. Then the new one is woken.
#[cold]
fn store_foreign(slot: &Cell<Option<Waker>>, waker: &Waker, before: Option<Waker>) {
    slot.set(Some(Waker::noop().clone()));
    let clone = waker.clone();
    let meanwhile = slot.replace(Some(clone));
    drop(before);
    if meanwhile.is_none() {
        waker.wake_by_ref();
    }
    // It may be one that the clone has stored.
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
