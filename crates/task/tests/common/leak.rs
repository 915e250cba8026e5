//! Values that are leaked on purpose.

use std::sync::{Mutex, PoisonError, atomic::AtomicPtr};

/// Leaks a value as `mem::forget` does. It stays reachable, so LeakSanitizer does not report it.
pub(crate) fn leak<T>(value: T) {
    static LEAKED: Mutex<Vec<AtomicPtr<()>>> = Mutex::new(Vec::new());
    let place = Box::into_raw(Box::new(value)).cast();
    LEAKED.lock().unwrap_or_else(PoisonError::into_inner).push(AtomicPtr::new(place));
}
