//! A loop under test.

use std::time::Duration;

use crate::measured::Error;

/// A loop that other threads wake. It is made and runs on one thread.
pub trait LoopSubject: Sized + 'static {
    /// What wakes it.
    type Waker: Waker;

    /// Makes one on the named backend. When nothing is to be done it looks for a wake for as long
    /// as `spin` before it sleeps.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::measured::Unsupported) if it cannot spin; or what the kernel says.
    fn new(backend: &str, spin: Duration) -> Result<Self, Error>;

    /// One more handle that wakes it.
    fn waker(&self) -> Self::Waker;

    /// Sleeps until a wake comes, calls `handler`, and goes on until that says false. Wakes that
    /// come while the handler runs have it called again, once or more.
    ///
    /// # Errors
    ///
    /// If a wait fails.
    fn run(&mut self, handler: &mut dyn FnMut() -> bool) -> Result<(), Error>;
}

/// Wakes a [`LoopSubject`] from any thread.
pub trait Waker: Send + 'static {
    /// Wakes it. Every implementation marks this `#[inline]`.
    fn wake(&self);
}
