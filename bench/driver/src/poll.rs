//! poll(2) of one descriptor.
#![allow(unsafe_code, reason = "poll")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// The readiness to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Readable,
    Writable,
}

/// Waits until a descriptor is ready or the time has passed. Returns whether it is ready. A signal
/// ends the wait early.
pub(crate) fn poll(fd: BorrowedFd<'_>, side: Side, timeout: Duration) -> io::Result<bool> {
    let events = match side {
        Side::Readable => libc::POLLIN,
        Side::Writable => libc::POLLOUT,
    };
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let timeout_ms = timeout.as_millis() as libc::c_int;
    // SAFETY: one entry, readable and writable for the length of the call (poll(2)).
    if unsafe { libc::poll(&raw mut entry, 1, timeout_ms) } < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) };
    }
    Ok(entry.revents & events != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn a_pipe_is_readable_once_it_is_written() {
        let (reader, mut writer) = io::pipe().unwrap();
        assert!(!poll(reader.as_fd(), Side::Readable, Duration::ZERO).unwrap());
        assert!(poll(writer.as_fd(), Side::Writable, Duration::ZERO).unwrap());
        writer.write_all(b"x").unwrap();
        assert!(poll(reader.as_fd(), Side::Readable, Duration::from_secs(10)).unwrap());
    }
}
