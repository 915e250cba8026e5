//! epoll_wait(2).
//!
//! rustix has epoll_pwait2(2) in its place. The wrapper of glibc 2.36 takes more instructions, by
//! its disassembly, and in a process with several threads it also calls two functions, which switch
//! the cancellation of threads on and off. A turn has few instructions in all, so the call is made
//! here where its number is known.

#![allow(unsafe_code, reason = "a system call by its number, which writes events")]

use core::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::backend::batch::RawEvent;

/// Waits for at most so many milliseconds: -1 is no limit, 0 does not block. Writes events to the
/// front of `room`, and returns their number.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn epoll_wait(
    set: BorrowedFd<'_>,
    room: &mut [MaybeUninit<RawEvent>],
    milliseconds: i32,
) -> Result<usize, Errno> {
    let outcome: isize;
    // SAFETY: The set is open. The kernel takes the low 32 bits of the length, which are not more
    // than it is, and writes no more events to `room`. rustix's `Event` has the layout of `struct
    // epoll_event`. The registers are those of the kernel's convention (syscall(2)); the
    // instruction itself overwrites rcx and r11, and uses no stack.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_epoll_wait as isize => outcome,
            in("rdi") set.as_raw_fd(),
            in("rsi") room.as_mut_ptr(),
            in("rdx") room.len(),
            in("r10") milliseconds,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    #[expect(clippy::cast_possible_truncation, reason = "error numbers are below 4096")]
    usize::try_from(outcome).map_err(|_| Errno::from_raw_os_error(-outcome as i32))
}

/// The same by libc, for processors whose call has another name.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(super) fn epoll_wait(
    set: BorrowedFd<'_>,
    room: &mut [MaybeUninit<RawEvent>],
    milliseconds: i32,
) -> Result<usize, Errno> {
    let length = i32::try_from(room.len()).unwrap_or(i32::MAX);
    // SAFETY: The set is open. The kernel writes at most `length` events to `room`, which has that
    // size. rustix's `Event` has the layout of `struct epoll_event`.
    let count = unsafe {
        libc::epoll_wait(set.as_raw_fd(), room.as_mut_ptr().cast(), length, milliseconds)
    };
    usize::try_from(count).map_err(|_| super::last_errno())
}

const _: () = {
    assert!(size_of::<RawEvent>() == size_of::<libc::epoll_event>());
    assert!(
        core::mem::offset_of!(RawEvent, flags) == core::mem::offset_of!(libc::epoll_event, events)
    );
    assert!(core::mem::offset_of!(RawEvent, data) == core::mem::offset_of!(libc::epoll_event, u64));
};
