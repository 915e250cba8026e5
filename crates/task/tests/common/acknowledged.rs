//! What the kernel of a connection's other end has received.

#![allow(unsafe_code, reason = "ioctl(2) comes from libc")]

use std::{os::fd::AsRawFd, thread};

/// Waits until the other end has received all that was written to the socket, read or not. Then the
/// connection is established there too: a `connect` returns before that.
pub(crate) fn until_acknowledged(socket: &impl AsRawFd) {
    let mut waiting: libc::c_int = -1;
    while waiting != 0 {
        // SAFETY: the kernel writes one integer, and there is room for it.
        let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut waiting) };
        assert_eq!(done, 0, "a TCP socket tells what waits: {}", std::io::Error::last_os_error());
        thread::yield_now();
    }
}
