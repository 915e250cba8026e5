//! A loop under test.

use std::time::Duration;

use crate::measured::Error;

/// A loop that other threads wake. It is created and runs on one thread.
pub trait LoopSubject: Sized + 'static {
    /// The handle that wakes it.
    type Waker: Waker;

    /// Creates one on the named backend. It spins for up to `spin` before it sleeps.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::measured::Unsupported) if it cannot spin; otherwise the kernel's
    /// error.
    fn new(backend: &str, spin: Duration) -> Result<Self, Error>;

    /// Returns another handle that wakes it.
    fn waker(&self) -> Self::Waker;

    /// Sleeps until a wake, calls `handler`, and repeats this until the handler returns false.
    /// After wakes during the handler it is called again, at least once.
    ///
    /// # Errors
    ///
    /// If a wait fails.
    fn run(&mut self, handler: &mut dyn FnMut() -> bool) -> Result<(), Error>;
}

/// Wakes a [`LoopSubject`] from any thread.
pub trait Waker: Send + 'static {
    /// Wakes it. Implementations mark this `#[inline]`.
    fn wake(&self);
}
