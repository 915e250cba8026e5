//! SIGINT: the first one ends the run after what is being measured, the second one at once.

#![allow(unsafe_code, reason = "sigaction(2) has no safe form")]

use std::sync::atomic::{AtomicBool, Ordering};

static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The exit status of an interrupted run, as that of a shell.
pub(crate) const STATUS: u8 = 130;

/// Returns whether the run is to end.
pub(crate) fn is_set() -> bool {
    IS_INTERRUPTED.load(Ordering::Relaxed)
}

extern "C" fn note(_signal: libc::c_int) {
    IS_INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on SIGINT only ends the run, so that it keeps what it has. The second one kills.
pub(crate) fn watch() {
    // SAFETY: zeroed bytes are a valid `sigaction`, which is plain data with an optional pointer.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int) = note;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_RESETHAND;
    // SAFETY: the action is initialised, and its handler only stores to an atomic. The old action
    // may be null (sigaction(2)).
    let done = unsafe { libc::sigaction(libc::SIGINT, &raw const action, std::ptr::null_mut()) };
    debug_assert_eq!(done, 0, "SIGINT can be caught");
}
