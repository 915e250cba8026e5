//! The wait of the hand-written loop, with a time limit.
#![allow(unsafe_code, reason = "epoll_wait(2) has no safe form in libc")]

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use windlass_bench_driver::Error;

/// epoll_pwait2(2), or epoll_wait(2) where valgrind does not know that.
pub(crate) fn wait(
    epoll: &OwnedFd,
    events: &mut Vec<epoll::Event>,
    limit: Option<Duration>,
) -> Result<(), Error> {
    static HAS_PWAIT2: OnceLock<bool> = OnceLock::new();
    events.clear();
    if *HAS_PWAIT2.get_or_init(super::has_epoll_pwait2) {
        let limit = limit.map(Timespec::try_from).transpose()?;
        let room = rustix::buffer::spare_capacity(events);
        return match epoll::wait(epoll, room, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        };
    }
    let ms = limit.map_or(-1, |limit| limit.as_nanos().div_ceil(1_000_000) as i32);
    let room = events.spare_capacity_mut();
    let length = i32::try_from(room.len())?;
    // SAFETY: there is room for as many events, and rustix has laid its type out as the kernel has.
    let count =
        unsafe { libc::epoll_wait(epoll.as_raw_fd(), room.as_mut_ptr().cast(), length, ms) };
    if count < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: the kernel has written so many events.
    unsafe { events.set_len(count as usize) };
    Ok(())
}
