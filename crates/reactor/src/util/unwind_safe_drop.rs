//! Isolates destructors that may panic, because two panics at once abort the process.

#![allow(
    unsafe_code,
    reason = "ManuallyDrop has no safe way out by reference, and `UnwindSafeDrop` has a destructor"
)]

use core::{
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

pub(crate) use windlass_flow::panics::Panics;
use windlass_flow::panics::discard_panic;

/// A field whose destructor may panic while the thread is unwinding already.
///
/// If one field's destructor panics, the other fields are dropped during unwinding, and a second
/// panic there would abort. This wrapper catches its own panic while the thread is unwinding.
pub(crate) struct UnwindSafeDrop<T>(ManuallyDrop<T>);

impl<T> UnwindSafeDrop<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }

    pub(crate) fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is neither used nor dropped afterwards.
        unsafe { take(&mut this.0) }
    }
}

/// Moves the value out of a field.
///
/// # Safety
/// The caller gives up the field: its value is not used again.
unsafe fn take<T>(part: &mut ManuallyDrop<T>) -> T {
    // SAFETY: the caller's promise.
    unsafe { ManuallyDrop::take(part) }
}

impl<T> Deref for UnwindSafeDrop<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for UnwindSafeDrop<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for UnwindSafeDrop<T> {
    fn drop(&mut self) {
        // SAFETY: this is the last use of the field.
        let value = unsafe { take(&mut self.0) };
        if thread::panicking() {
            discard_panic(catch_unwind(AssertUnwindSafe(|| drop(value))));
        } else {
            drop(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, rc::Rc};

    struct Bomb(Rc<Cell<u32>>);
    impl Drop for Bomb {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            panic!("bomb");
        }
    }

    #[test]
    fn two_parts_that_panic_are_both_dropped_and_one_panic_comes_out() {
        struct Pair(
            #[expect(dead_code, reason = "dropped")] UnwindSafeDrop<Bomb>,
            #[expect(dead_code, reason = "dropped")] UnwindSafeDrop<Bomb>,
        );
        let count = Rc::new(Cell::new(0));
        let pair = Pair(
            UnwindSafeDrop::new(Bomb(count.clone())),
            UnwindSafeDrop::new(Bomb(count.clone())),
        );
        assert!(catch_unwind(AssertUnwindSafe(|| drop(pair))).is_err());
        assert_eq!(count.get(), 2);
    }
}
