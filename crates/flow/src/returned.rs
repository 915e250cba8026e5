//! Values inside of errors.

use core::fmt;
use std::sync::{Mutex, PoisonError};

/// A rejected value, or the payload of a panic, inside of an error.
///
/// The value need not be `Sync`, and only the owner of the error reaches it. So the error is `Sync`
/// whatever the value is, as `anyhow::Error` and `Box<dyn Error + Send + Sync>` require.
///
/// ```
/// use std::cell::Cell;
/// use windlass_flow::Returned;
///
/// fn is_sync<T: Sync>(value: T) -> T {
///     value
/// }
/// let returned = is_sync(Returned::new(Cell::new(7)));
/// assert_eq!(returned.into_inner(), Cell::new(7));
/// ```
#[doc(alias = "Exclusive")]
pub struct Returned<T>(
    /// Never locked, so it is not poisoned.
    Mutex<T>,
);

impl<T> Returned<T> {
    /// Wraps a value.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// The value.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Converts the value.
    #[must_use]
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Returned<U> {
        Returned::new(convert(self.into_inner()))
    }
}

impl<T> From<T> for Returned<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T> fmt::Debug for Returned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Returned").finish_non_exhaustive()
    }
}
