//! The kernel's two ways to wait, as this crate uses them: eventfd(2) and futex(2), and their doubles under loom.

#[cfg(not(loom))]
pub(crate) use kernel::EventFd;
#[cfg(loom)]
pub(crate) use model::EventFd;

#[cfg(not(loom))]
mod kernel {
    use std::{
        os::fd::{AsFd, BorrowedFd, OwnedFd},
        time::Duration,
    };

    use rustix::{
        event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
        io::Errno,
    };

    /// An eventfd(2), non-blocking and closed on exec.
    #[derive(Debug)]
    pub(crate) struct EventFd(OwnedFd);

    impl EventFd {
        pub(crate) fn new() -> Result<Self, Errno> {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
        }

        /// Adds to it. False when it would pass the kernel's maximum, 2^64 - 2; then it is readable anyhow.
        pub(crate) fn write(&self, n: u64) -> bool {
            rustix::io::write(&self.0, &n.to_ne_bytes()).is_ok()
        }

        /// Takes all of it; false when it was zero.
        pub(crate) fn read(&self) -> bool {
            rustix::io::read(&self.0, &mut [0; 8]).is_ok()
        }

        /// Waits until it is not zero, or the time is over (`None`: for ever). May return early.
        pub(crate) fn wait(&self, timeout: Option<Duration>) {
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            let mut set = [PollFd::new(&self.0, PollFlags::IN)];
            // `EINTR` is an early return; no other error can come of one open descriptor.
            let _ = poll(&mut set, timeout.as_ref());
        }
    }

    impl AsFd for EventFd {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}

#[cfg(loom)]
mod model {
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        time::Duration,
    };

    use rustix::io::Errno;

    use crate::sync::{Condvar, Mutex};

    /// The double of an eventfd: a count under a lock.
    #[derive(Debug)]
    pub(crate) struct EventFd {
        count: Mutex<u64>,
        changed: Condvar,
        /// How often it was written: its edges. Touched under the lock alone, so loom need not know of it.
        writes: AtomicU64,
    }

    impl EventFd {
        pub(crate) fn new() -> Result<Self, Errno> {
            Ok(Self { count: Mutex::new(0), changed: Condvar::new(), writes: AtomicU64::new(0) })
        }

        pub(crate) fn write(&self, n: u64) -> bool {
            let mut count = self.count.lock().unwrap();
            match count.checked_add(n).filter(|sum| *sum < u64::MAX) {
                Some(sum) => *count = sum,
                None => return false,
            }
            self.writes.fetch_add(1, Ordering::Relaxed);
            self.changed.notify_all();
            true
        }

        pub(crate) fn read(&self) -> bool {
            let mut count = self.count.lock().unwrap();
            self.changed.notify_all();
            std::mem::take(&mut *count) != 0
        }

        /// Waits until it is not zero. Time does not pass in a model, so a lost wake is a deadlock that loom reports.
        pub(crate) fn wait(&self, _: Option<Duration>) {
            let mut count = self.count.lock().unwrap();
            while *count == 0 {
                count = self.changed.wait(count).unwrap();
            }
        }

        /// How often it was written.
        pub(crate) fn writes(&self) -> u64 {
            let _count = self.count.lock().unwrap();
            self.writes.load(Ordering::Relaxed)
        }

        /// Waits as an edge-triggered watch does: until it was written more than `seen` times. Says how often.
        pub(crate) fn wait_edge(&self, seen: u64) -> u64 {
            let mut count = self.count.lock().unwrap();
            loop {
                let writes = self.writes.load(Ordering::Relaxed);
                if writes != seen {
                    return writes;
                }
                count = self.changed.wait(count).unwrap();
            }
        }
    }
}
