//! [`Pinned`]: a value of one thread that code may call `Send`.
//!
//! # The protocol of this module
//!
//! 1. The value is in a box of its own. It is made on its home thread, and never moves.
//! 2. References to the value, and its destructor, are for the home thread alone. Each access
//!    compares the number of the running thread with that of the home thread. Numbers of threads
//!    are never used again, so a thread that takes the place of another one is not mistaken for it.
//! 3. A value that is dropped elsewhere is not touched. Its box goes to the list of the executor
//!    that it was made on (`home.rs`), which drops it on the home thread.
//! 4. The end of the executor closes the list, after it has dropped what is there. From then on a
//!    box that is dropped elsewhere is leaked.

#![allow(unsafe_code, reason = "a value is called `Send`, and checked at run time instead")]

mod home;
#[cfg(test)]
mod tests;
mod traits;

use core::{
    cell::Cell,
    fmt,
    ops::{Deref, DerefMut},
    pin::Pin,
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use home::Home;

/// A value that stays on its thread, although its type is `Send` and `Sync`.
///
/// Some libraries for async/await ask for `Send` where one thread is enough: upgrades of hyper, the
/// client of hyper-util, handlers of axum. `Pinned` satisfies the compiler. The rule is checked at
/// run time: a value may be moved to other threads, and be used on its own alone.
///
/// - *Use elsewhere.* A dereference, a poll or a read panics on another thread.
///   [`is_home`](Self::is_home) asks first.
/// - *Drop elsewhere.* The value is handed back to its executor, which drops it in one of its next
///   turns, at the latest when it ends. A panic of the destructor is then ignored, as that of a
///   detached task.
/// - *Drop elsewhere after the executor's end.* The value is leaked: nobody is left on its thread
///   to drop it. In a child of fork(2) values may leak, too.
///
/// The value is in a box, at an address that never changes. A future need not be `Unpin`. The first
/// value of an executor spawns a task, which waits for values that are handed back.
///
/// As with [`Rc`](std::rc::Rc), its own functions are no methods, since it dereferences to the
/// value.
/// It implements `Deref`, `DerefMut` for values that are `Unpin`, `Future`, and with the features
/// of those names the traits for streams of tokio, futures-io and hyper, if the value does.
///
/// ```
/// use std::{cell::Cell, rc::Rc, thread};
/// use windlass_task::{Pinned, block_on};
///
/// fn must_be_send<T: Send + Sync + 'static>(value: T) -> T {
///     value
/// }
///
/// block_on(async {
///     let counter = must_be_send(Pinned::new(Rc::new(Cell::new(1))));
///     counter.set(2);
///     // It travels, and is of no use there.
///     let counter = thread::spawn(move || {
///         assert!(!Pinned::is_home(&counter));
///         counter
///     });
///     assert_eq!(counter.join().unwrap().get(), 2);
/// });
/// ```
pub struct Pinned<T: 'static> {
    /// `None` only in the destructor.
    value: Option<Pin<Box<T>>>,
    thread: ThreadNumber,
    home: Arc<Home>,
}

// SAFETY: the value is reached, and dropped, on its home thread alone (protocols 2 to 4). What else
// there is, the number of a thread and an `Arc` of a type that is `Send` and `Sync`, may be sent.
unsafe impl<T: 'static> Send for Pinned<T> {}
// SAFETY: as above: a shared reference gives a reference to the value on the home thread alone.
unsafe impl<T: 'static> Sync for Pinned<T> {}

impl<T: 'static> Pinned<T> {
    /// Puts a value into a box. This thread, and the executor that it runs, are its home.
    ///
    /// # Panics
    /// If no executor runs on this thread.
    #[track_caller]
    pub fn new(value: T) -> Self {
        let home = Home::current();
        Self { value: Some(Box::pin(value)), thread: ThreadNumber::current(), home }
    }

    /// Whether this is the value's home thread.
    #[must_use]
    #[inline]
    pub fn is_home(this: &Self) -> bool {
        this.thread == ThreadNumber::current()
    }

    /// The value, pinned.
    ///
    /// # Panics
    /// On another thread than that of [`new`](Self::new).
    #[must_use]
    #[inline]
    #[track_caller]
    pub fn as_pin_mut(this: &mut Self) -> Pin<&mut T> {
        this.assert_home();
        this.value.as_mut().expect(HAS_VALUE).as_mut()
    }

    /// Takes the value out.
    ///
    /// # Panics
    /// On another thread than that of [`new`](Self::new). The value is then handed back.
    #[must_use]
    #[track_caller]
    pub fn into_inner(mut this: Self) -> T
    where
        T: Unpin,
    {
        this.assert_home();
        *Pin::into_inner(this.value.take().expect(HAS_VALUE))
    }

    #[inline]
    #[track_caller]
    fn assert_home(&self) {
        if !Self::is_home(self) {
            not_home(core::any::type_name::<T>());
        }
    }
}

const HAS_VALUE: &str = "only the destructor takes the value";

#[cold]
#[track_caller]
fn not_home(name: &str) -> ! {
    panic!(
        "a `Pinned<{name}>` was used on another thread than its own: it may travel, but only the \
         thread that has made it may use it; keep the task that uses it on that thread"
    )
}

impl<T: 'static> Deref for Pinned<T> {
    type Target = T;

    #[inline]
    #[track_caller]
    fn deref(&self) -> &T {
        self.assert_home();
        self.value.as_ref().expect(HAS_VALUE)
    }
}

impl<T: Unpin + 'static> DerefMut for Pinned<T> {
    #[inline]
    #[track_caller]
    fn deref_mut(&mut self) -> &mut T {
        Self::as_pin_mut(self).get_mut()
    }
}

impl<T: 'static> Drop for Pinned<T> {
    fn drop(&mut self) {
        let Some(value) = self.value.take() else { return };
        if Self::is_home(self) {
            drop(value);
        } else {
            self.home.give_back(value);
        }
    }
}

impl<T: fmt::Debug + 'static> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if Self::is_home(self) {
            f.debug_tuple("Pinned").field(&**self).finish()
        } else {
            f.write_str("Pinned(<of another thread>)")
        }
    }
}

/// Tells threads apart. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ThreadNumber(u64);

impl ThreadNumber {
    #[inline]
    fn current() -> Self {
        std::thread_local! {
            // Without a destructor, so it can be read until the thread's very end.
            static NUMBER: Cell<u64> = const { Cell::new(0) };
        }
        NUMBER.with(|number| {
            if number.get() == 0 {
                number.set(Self::next());
            }
            Self(number.get())
        })
    }

    #[cold]
    fn next() -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // 2^64 threads are out of reach.
        LAST.fetch_add(1, Ordering::Relaxed) + 1
    }
}
