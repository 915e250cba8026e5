//! Checks whether a descriptor can be polled, with the errors of epoll_ctl(2).
//!
//! epoll rejects a closed number (`EBADF`) and a file without a poll method (`EPERM`: regular files
//! of most file systems, directories, `/dev/null`). poll(2) and a ring's poll accept such a file
//! and always report it as ready. The other backends use this check first, so that a mistake gives
//! the same error on every backend.

#![allow(
    unsafe_code,
    reason = "poll(2), fstat(2) and epoll_ctl(2) by numbers, which may be closed"
)]

use core::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::{
    event::epoll::{self, CreateFlags},
    io::Errno,
};

use super::last_errno;

/// The conditions that the kernel reports for a file without a poll method (`DEFAULT_POLLMASK`,
/// linux/poll.h).
const DEFAULT_MASK: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM;

/// Checks that a number names an open descriptor that can be polled. It takes one call for most
/// descriptors, and a few more for those that are ready in every way at the moment.
///
/// # Errors
/// `EBADF` if it is not open, or is open with `O_PATH`. `EPERM` if it cannot be polled.
pub(crate) fn check(fd: i32) -> Result<(), Errno> {
    if fd < 0 {
        // poll(2) skips negative numbers.
        return Err(Errno::BADF);
    }
    let mut asked = libc::pollfd { fd, events: DEFAULT_MASK, revents: 0 };
    // SAFETY: There is one entry, which lives through the call. The number may be closed; the
    // kernel then reports that.
    let count = unsafe { libc::poll(&raw mut asked, 1, 0) };
    match count {
        // No memory, for example. The other calls report the error.
        ..0 => check_slowly(fd),
        _ if asked.revents & libc::POLLNVAL != 0 => Err(Errno::BADF),
        // A file without a poll method reports exactly this mask.
        _ if asked.revents == DEFAULT_MASK => check_slowly(fd),
        _ => Ok(()),
    }
}

/// Whether poll(2) reports priority data for a number.
pub(crate) fn has_priority(fd: i32) -> bool {
    let mut asked = libc::pollfd { fd, events: libc::POLLPRI, revents: 0 };
    // SAFETY: There is one entry, which lives through the call. The number may be closed; the
    // kernel then reports that.
    unsafe { libc::poll(&raw mut asked, 1, 0) };
    asked.revents & libc::POLLPRI != 0
}

fn check_slowly(fd: i32) -> Result<(), Errno> {
    match kind(fd)? {
        // Connections are of these types. They can be polled, and are often ready in every way.
        libc::S_IFSOCK | libc::S_IFIFO => Ok(()),
        kind => match epoll::create(CreateFlags::CLOEXEC) {
            // epoll decides. Some regular files can be polled: /proc/pressure, and pidfds from
            // Linux 6.9 on.
            Ok(set) => ask_epoll(&set, fd),
            // A sandbox without epoll, or no descriptor left.
            Err(_) if matches!(kind, libc::S_IFREG | libc::S_IFDIR | libc::S_IFBLK) => {
                Err(Errno::PERM)
            }
            Err(_) => Ok(()),
        },
    }
}

/// The type of a file, from fstat(2).
fn kind(fd: i32) -> Result<libc::mode_t, Errno> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: The kernel writes one `struct stat`, and the memory has that size.
    let outcome = unsafe { libc::fstat(fd, status.as_mut_ptr()) };
    if outcome != 0 {
        return Err(last_errno());
    }
    // SAFETY: The call was successful, so the kernel has written the status.
    let status = unsafe { status.assume_init() };
    Ok(status.st_mode & libc::S_IFMT)
}

/// Adds a number to a set that is then dropped.
fn ask_epoll(set: &OwnedFd, fd: i32) -> Result<(), Errno> {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: The set is open. The event lives through the call, which writes no memory of ours.
    let outcome =
        unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    match if outcome == 0 { Ok(()) } else { Err(last_errno()) } {
        Err(errno @ (Errno::PERM | Errno::BADF)) => Err(errno),
        // Other errors are specific to epoll: sets nested too deep, or too many watches.
        _ => Ok(()),
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::{
        fs::File,
        io::Write,
        net::{TcpListener, TcpStream, UdpSocket},
        os::{
            fd::{AsFd, BorrowedFd},
            unix::net::UnixStream,
        },
    };

    use rustix::{
        event::{EventfdFlags, eventfd},
        fs::{Mode, OFlags},
    };

    use super::*;

    /// epoll's result for a number.
    fn epoll_says(fd: i32) -> Result<(), Errno> {
        let set = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: As in `ask_epoll`.
        match unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }

    #[track_caller]
    fn agrees(what: BorrowedFd<'_>, expected: Result<(), Errno>) {
        let fd = what.as_raw_fd();
        assert_eq!((check(fd), epoll_says(fd)), (expected, expected));
    }

    #[test]
    fn what_epoll_takes_is_taken_and_what_it_rejects_is_rejected() {
        agrees(eventfd(1, EventfdFlags::CLOEXEC).unwrap().as_fd(), Ok(()));
        agrees(TcpListener::bind("127.0.0.1:0").unwrap().as_fd(), Ok(()));
        agrees(UdpSocket::bind("127.0.0.1:0").unwrap().as_fd(), Ok(()));
        agrees(epoll::create(CreateFlags::CLOEXEC).unwrap().as_fd(), Ok(()));
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        agrees(reader.as_fd(), Ok(()));
        agrees(writer.as_fd(), Ok(()));
        agrees(File::open("/proc/self/mounts").unwrap().as_fd(), Ok(()));
        agrees(File::open(std::env::current_exe().unwrap()).unwrap().as_fd(), Err(Errno::PERM));
        agrees(File::open("/").unwrap().as_fd(), Err(Errno::PERM));
        agrees(File::open("/dev/null").unwrap().as_fd(), Err(Errno::PERM));
        agrees(File::open("/dev/zero").unwrap().as_fd(), Err(Errno::PERM));
        let memory = rustix::fs::memfd_create("a file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        agrees(memory.as_fd(), Err(Errno::PERM));
        // By rustix: std takes `O_PATH` for a mode of access with musl, and removes it.
        let by_path = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        agrees(by_path.as_fd(), Err(Errno::BADF));
    }

    #[test]
    fn what_is_ready_in_every_way_is_no_file_without_a_poll_method() {
        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(b"data").unwrap();
        agrees(b.as_fd(), Ok(()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (b, _) = listener.accept().unwrap();
        a.write_all(b"data").unwrap();
        assert_eq!(b.peek(&mut [0; 4]).unwrap(), 4);
        agrees(b.as_fd(), Ok(()));
        drop(a);
        agrees(b.as_fd(), Ok(()));
    }

    #[test]
    fn a_number_that_is_not_open_is_rejected() {
        for fd in [-1, i32::MIN, i32::MAX, 1_000_000_000] {
            assert_eq!((check(fd), epoll_says(fd)), (Err(Errno::BADF), Err(Errno::BADF)), "{fd}");
        }
    }
}
