//! The two kernel interfaces for waiting that this crate uses, eventfd(2) and futex(2), and their
//! loom models.

#[cfg(not(loom))]
pub(crate) use kernel::{EventFd, Futex};
#[cfg(loom)]
pub(crate) use model::{EventFd, Futex};

/// Which threads may wait for a futex. The kernel handles those of one process faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The threads of this process.
    Process,
    /// Threads of every process that maps the page.
    System,
}

/// Records the system calls that this thread makes through this module. Tests use it for paths that
/// make none, for the order of calls, and for events between two calls.
#[cfg(all(test, not(loom)))]
pub(crate) mod calls {
    use std::{
        cell::{Cell, RefCell},
        panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    };

    type Then = Box<dyn FnOnce()>;

    thread_local! {
        static CALLS: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
        static THEN: Cell<Option<(usize, Then)>> = const { Cell::new(None) };
    }

    pub(crate) fn note(fd: i32) {
        match THEN.take() {
            Some((0, then)) => then(),
            Some((calls, then)) => THEN.set(Some((calls - 1, then))),
            None => {}
        }
        CALLS.with_borrow_mut(|calls| calls.push(fd));
    }

    /// The descriptors of the calls that `f` makes; -1 for a futex.
    pub(crate) fn of<T>(f: impl FnOnce() -> T) -> Vec<i32> {
        CALLS.take();
        f();
        CALLS.take()
    }

    /// Runs `then` once, right before a call of this thread, after `calls` other calls.
    pub(crate) fn after(calls: usize, then: impl FnOnce() + 'static) {
        THEN.set(Some((calls, Box::new(then))));
    }

    struct Death;

    /// Simulates the death of the process here.
    pub(crate) fn die() {
        // Without a message, because this panic is part of the test.
        resume_unwind(Box::new(Death));
    }

    /// Runs `f` until its simulated death. False if `f` survives.
    pub(crate) fn until_death<T>(f: impl FnOnce() -> T) -> bool {
        let ended = catch_unwind(AssertUnwindSafe(f));
        THEN.take();
        match ended {
            Ok(_) => false,
            Err(payload) if payload.is::<Death>() => true,
            Err(payload) => resume_unwind(payload),
        }
    }
}

#[cfg(not(loom))]
mod kernel {
    use std::{
        os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        sync::atomic::{AtomicU32, Ordering},
        time::Duration,
    };

    use rustix::{
        event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
        io::Errno,
        thread::futex,
    };

    use super::Scope;

    #[cfg(not(test))]
    const fn note(_: i32) {}
    #[cfg(test)]
    use super::calls::note;

    /// An eventfd(2), non-blocking and closed on exec.
    #[derive(Debug)]
    pub(crate) struct EventFd(OwnedFd);

    impl EventFd {
        pub(crate) fn new() -> Result<Self, Errno> {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
        }

        /// Adds `n`. False if the sum would exceed the kernel's maximum, 2^64 - 2. The eventfd is
        /// readable then anyway.
        pub(crate) fn write(&self, n: u64) -> bool {
            note(self.0.as_raw_fd());
            rustix::io::write(&self.0, &n.to_ne_bytes()).is_ok()
        }

        /// Resets it to zero. False if it was zero already.
        pub(crate) fn read(&self) -> bool {
            note(self.0.as_raw_fd());
            rustix::io::read(&self.0, &mut [0; 8]).is_ok()
        }

        /// Whether poll(2) reports it as writable, that is, below the kernel's maximum.
        pub(crate) fn is_writable(&self) -> bool {
            note(self.0.as_raw_fd());
            poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], Some(&Timespec::default())) == Ok(1)
        }

        /// Waits until it is not zero, or until the timeout (`None`: no timeout). May return early.
        pub(crate) fn wait(&self, timeout: Option<Duration>) {
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            let mut set = [PollFd::new(&self.0, PollFlags::IN)];
            // `EINTR` is an early return. No other error is possible for one open descriptor.
            let _ = poll(&mut set, timeout.as_ref());
        }
    }

    impl AsFd for EventFd {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    /// A futex(2) word that counts wakes. A thread that has seen a number sleeps only while the
    /// number is unchanged. The word may lie in a page that processes share.
    #[derive(Debug)]
    #[repr(transparent)]
    pub(crate) struct Futex(AtomicU32);

    impl Futex {
        pub(crate) fn new() -> Self {
            Self(AtomicU32::new(0))
        }

        pub(crate) fn seen(&self) -> u32 {
            self.0.load(Ordering::Acquire)
        }

        /// Sleeps until the next [`wake_all`](Self::wake_all), if there was none since `seen`, or
        /// until the timeout (`None`: no timeout). May return early. False if the whole time has
        /// passed.
        pub(crate) fn wait(&self, seen: u32, scope: Scope, timeout: Option<Duration>) -> bool {
            note(-1);
            // A timeout beyond the kernel's range counts as none.
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            futex::wait(&self.0, flags(scope), seen, timeout.as_ref()) != Err(Errno::TIMEDOUT)
        }

        pub(crate) fn wake_all(&self, scope: Scope) {
            self.0.fetch_add(1, Ordering::AcqRel);
            note(-1);
            // The kernel's number is signed. The call can fail only for an address that is not
            // mapped.
            let _ = futex::wake(&self.0, flags(scope), i32::MAX.unsigned_abs());
        }
    }

    const fn flags(scope: Scope) -> futex::Flags {
        match scope {
            Scope::Process => futex::Flags::PRIVATE,
            Scope::System => futex::Flags::empty(),
        }
    }
}

#[cfg(loom)]
mod model {
    use std::time::Duration;

    use rustix::io::Errno;

    use super::Scope;
    use crate::sync::{AtomicU32, Condvar, Mutex, Ordering};

    /// The loom model of an eventfd: a count under a lock.
    #[derive(Debug)]
    pub(crate) struct EventFd {
        count: Mutex<Count>,
        changed: Condvar,
    }

    /// The count, and how many edges pollers for reading and for writing have had, as epoll(7)
    /// defines an edge.
    #[derive(Debug, Default)]
    struct Count {
        value: u64,
        readable_edges: u32,
        writable_edges: u32,
    }

    impl EventFd {
        pub(crate) fn new() -> Result<Self, Errno> {
            Ok(Self { count: Mutex::new(Count::default()), changed: Condvar::new() })
        }

        pub(crate) fn write(&self, n: u64) -> bool {
            let mut count = self.count.lock().unwrap();
            match count.value.checked_add(n).filter(|sum| *sum < u64::MAX) {
                Some(sum) => count.value = sum,
                None => return false,
            }
            count.readable_edges += 1;
            self.changed.notify_all();
            true
        }

        pub(crate) fn read(&self) -> bool {
            let mut count = self.count.lock().unwrap();
            if std::mem::take(&mut count.value) == 0 {
                return false;
            }
            count.writable_edges += 1;
            self.changed.notify_all();
            true
        }

        pub(crate) fn is_writable(&self) -> bool {
            self.levels().1
        }

        /// Waits until it is not zero. Time does not pass in a model, so loom reports a lost wake
        /// as a deadlock.
        pub(crate) fn wait(&self, _: Option<Duration>) {
            let mut count = self.count.lock().unwrap();
            while count.value == 0 {
                count = self.changed.wait(count).unwrap();
            }
        }
    }

    impl EventFd {
        /// The result of poll(2): (readable, writable).
        pub(crate) fn levels(&self) -> (bool, bool) {
            let count = self.count.lock().unwrap();
            (count.value > 0, count.value < u64::MAX - 1)
        }

        /// Waits until it is writable, like [`wait`](Self::wait) for readable.
        pub(crate) fn wait_writable(&self) {
            let mut count = self.count.lock().unwrap();
            while count.value == u64::MAX - 1 {
                count = self.changed.wait(count).unwrap();
            }
        }

        /// The number of edges so far: (for reading, for writing).
        pub(crate) fn edges(&self) -> (u32, u32) {
            let count = self.count.lock().unwrap();
            (count.readable_edges, count.writable_edges)
        }

        /// Waits for more edges for reading than `seen`.
        pub(crate) fn wait_readable_edge(&self, seen: u32) {
            let mut count = self.count.lock().unwrap();
            while count.readable_edges == seen {
                count = self.changed.wait(count).unwrap();
            }
        }

        /// The same for writing.
        pub(crate) fn wait_writable_edge(&self, seen: u32) {
            let mut count = self.count.lock().unwrap();
            while count.writable_edges == seen {
                count = self.changed.wait(count).unwrap();
            }
        }
    }

    /// The loom model of a futex(2). The kernel compares, queues and wakes under one lock.
    #[derive(Debug)]
    pub(crate) struct Futex {
        wakes: AtomicU32,
        bucket: Mutex<()>,
        woken: Condvar,
    }

    impl Futex {
        pub(crate) fn new() -> Self {
            Self { wakes: AtomicU32::new(0), bucket: Mutex::new(()), woken: Condvar::new() }
        }

        pub(crate) fn seen(&self) -> u32 {
            self.wakes.load(Ordering::Acquire)
        }

        pub(crate) fn wait(&self, seen: u32, _: Scope, _: Option<Duration>) -> bool {
            let bucket = self.bucket.lock().unwrap();
            if self.wakes.load(Ordering::Acquire) == seen {
                drop(self.woken.wait(bucket).unwrap());
            }
            true
        }

        pub(crate) fn wake_all(&self, _: Scope) {
            self.wakes.fetch_add(1, Ordering::AcqRel);
            let _bucket = self.bucket.lock().unwrap();
            self.woken.notify_all();
        }
    }
}
