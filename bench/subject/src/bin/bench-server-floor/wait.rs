//! epoll_wait(2).
#![allow(unsafe_code, reason = "it has no safe form in libc")]

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::epoll;
use windlass_bench_driver::Error;

/// epoll_wait(2) as libc has it: rustix makes epoll_pwait2(2) of it, which valgrind 3.19 does not
/// know.
pub(crate) fn wait(epoll: &OwnedFd, events: &mut Vec<epoll::Event>) -> Result<(), Error> {
    events.clear();
    let room = events.spare_capacity_mut();
    let length = i32::try_from(room.len())?;
    // SAFETY: there is room for as many events, and rustix has laid its type out as the kernel has.
    let count =
        unsafe { libc::epoll_wait(epoll.as_raw_fd(), room.as_mut_ptr().cast(), length, -1) };
    if count < 0 {
        let error = std::io::Error::last_os_error();
        return if error.kind() == std::io::ErrorKind::Interrupted {
            Ok(())
        } else {
            Err(error.into())
        };
    }
    // SAFETY: the kernel has written so many events.
    unsafe { events.set_len(count as usize) };
    Ok(())
}
