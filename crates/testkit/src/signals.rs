//! Signals for one thread.

#![allow(unsafe_code, reason = "no safe crate has tgkill(2)")]

/// Sends a signal to a thread of a process, by the kernel's numbers of both. `pthread_t` does not
/// serve: that of musl is a pointer, which is not `Send`.
///
/// # Panics
/// If there is no such thread.
pub fn signal_thread(process: u32, thread: i32, signal: i32) {
    // SAFETY: the call takes numbers only.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
    assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
}
