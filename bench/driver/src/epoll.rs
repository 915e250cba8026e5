//! An epoll set of the client of the suite `http`.
#![allow(unsafe_code, reason = "epoll has no safe form in libc")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Maximum number of events of one call.
const EVENTS_MAX: usize = 64;

/// A level-triggered set. The descriptors must stay open while they are watched.
pub(crate) struct Epoll {
    set: OwnedFd,
    events: [libc::epoll_event; EVENTS_MAX],
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: it takes a number.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let set = unsafe { OwnedFd::from_raw_fd(set) };
        Ok(Self { set, events: [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX] })
    }

    /// Watches a descriptor for input. Its events have this number.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
        let (set, fd) = (self.set.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: the event is readable for the length of the call (epoll_ctl(2)).
        match unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the numbers of the descriptors that are ready, without waiting.
    pub(crate) fn ready(&mut self) -> io::Result<impl Iterator<Item = u64>> {
        let (set, room) = (self.set.as_raw_fd(), self.events.as_mut_ptr());
        // SAFETY: there is room for so many events (epoll_wait(2)).
        let count = unsafe { libc::epoll_wait(set, room, EVENTS_MAX as libc::c_int, 0) };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            let interrupted = error.kind() == io::ErrorKind::Interrupted;
            return if interrupted { Ok(self.first(0)) } else { Err(error) };
        };
        Ok(self.first(count))
    }

    fn first(&self, count: usize) -> impl Iterator<Item = u64> {
        self.events[..count].iter().map(|event| event.u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_written_is_ready_by_its_number() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut epoll = Epoll::new().unwrap();
        epoll.watch(reader.as_fd(), 7).unwrap();
        assert_eq!(epoll.ready().unwrap().count(), 0);
        writer.write_all(b"x").unwrap();
        assert_eq!(epoll.ready().unwrap().collect::<Vec<_>>(), [7]);
    }
}
