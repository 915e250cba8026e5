//! The waits of the hand-written loop.
#![allow(unsafe_code, reason = "epoll_wait(2) has no safe form: rustix makes another call of it")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use windlass_bench_driver::Error;

/// epoll_wait(2): replaces the events by those that it finds. A limit of −1 is none.
#[inline(always)]
pub(crate) fn epoll_wait(
    epoll: &OwnedFd,
    events: &mut Vec<epoll::Event>,
    limit_ms: i32,
) -> io::Result<()> {
    events.clear();
    // SAFETY: the buffer has room for as many events as are said, and rustix has laid its type out
    // as the kernel has.
    let count = unsafe {
        epoll_wait_call(epoll.as_raw_fd(), events.as_mut_ptr(), events.capacity(), limit_ms)
    }?;
    // SAFETY: the kernel has written that many, which is no more than there is room for.
    unsafe { events.set_len(count) };
    Ok(())
}

/// # Safety
///
/// The buffer has room for so many events.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn epoll_wait_call(
    epoll: i32,
    buffer: *mut epoll::Event,
    room: usize,
    limit_ms: i32,
) -> io::Result<usize> {
    let result: isize;
    // SAFETY: the kernel writes at most `room` events to the buffer, as the caller promises, and
    // the instruction changes no registers but these (syscall(2)).
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_epoll_wait as isize => result,
            in("rdi") epoll as isize,
            in("rsi") buffer,
            in("rdx") room,
            in("r10") limit_ms as isize,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result as i32))
}

/// # Safety
///
/// The buffer has room for so many events.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn epoll_wait_call(
    epoll: i32,
    buffer: *mut epoll::Event,
    room: usize,
    limit_ms: i32,
) -> io::Result<usize> {
    // SAFETY: as the caller promises (epoll_wait(2)).
    let count = unsafe { libc::epoll_wait(epoll, buffer.cast(), room as i32, limit_ms) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// A limit from which a millisecond does not matter.
const LONG: Duration = Duration::from_millis(100);

/// Waits by epoll_wait(2), and by epoll_pwait2(2) only for a short limit, which has to be exact.
pub(crate) fn wait(
    epoll: &OwnedFd,
    events: &mut Vec<epoll::Event>,
    limit: Option<Duration>,
) -> Result<(), Error> {
    let waited = match limit {
        Some(limit) if !limit.is_zero() && limit < LONG && has_epoll_pwait2() => {
            events.clear();
            let limit = Timespec::try_from(limit)?;
            epoll::wait(epoll, rustix::buffer::spare_capacity(events), Some(&limit))
                .map(|_| ())
                .map_err(io::Error::from)
        }
        Some(limit) => {
            let ms = limit.as_nanos().div_ceil(1_000_000);
            epoll_wait(epoll, events, i32::try_from(ms).unwrap_or(i32::MAX))
        }
        None => epoll_wait(epoll, events, -1),
    };
    match waited {
        Err(error) if error.raw_os_error() != Some(Errno::INTR.raw_os_error()) => Err(error.into()),
        _ => Ok(()),
    }
}

/// valgrind 3.19 does not know that call.
fn has_epoll_pwait2() -> bool {
    static HAS_PWAIT2: OnceLock<bool> = OnceLock::new();
    *HAS_PWAIT2.get_or_init(|| {
        let Ok(epoll) = epoll::create(epoll::CreateFlags::CLOEXEC) else {
            return false;
        };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = [std::mem::MaybeUninit::uninit()];
        epoll::wait(&epoll, &mut events, Some(&zero)).is_ok()
    })
}
