//! A hand-written program with eventfd(2) alone: a counter, and an epoll loop that it wakes.

#![deny(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use windlass_bench_driver::flow::{CounterSetup, CounterSubject};
use windlass_bench_driver::wakeup::{LoopSubject, Waker};
use windlass_bench_driver::{Error, Program, Suite, Unsupported};

fn main() -> ExitCode {
    let suites = vec![Suite::flow::<Counter>(), Suite::wake::<Loop>()];
    Program { version: env!("CARGO_PKG_VERSION").to_owned(), suites }.serve()
}

struct Counter(OwnedFd);

impl CounterSubject for Counter {
    fn new(setup: &CounterSetup) -> Result<Self, Error> {
        if setup.maximum.is_some() {
            return Err(Unsupported("an eventfd has no maximum but the kernel's, 2^64 - 1").into());
        }
        let mut flags = EventfdFlags::CLOEXEC;
        flags.set(EventfdFlags::SEMAPHORE, setup.semaphore);
        flags.set(EventfdFlags::NONBLOCK, setup.nonblocking);
        Ok(Self(eventfd(0, flags)?))
    }

    #[inline]
    fn write(&self) -> io::Result<()> {
        rustix::io::write(&self.0, &1_u64.to_ne_bytes())?;
        Ok(())
    }

    #[inline]
    fn read(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        rustix::io::read(&self.0, &mut count)?;
        Ok(u64::from_ne_bytes(count))
    }

    fn count(&self) -> Option<u64> {
        None
    }

    fn reader(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn writer(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An epoll set with one eventfd, which is watched edge-triggered and never read. A wake cannot do
/// less work.
struct Loop {
    epoll: OwnedFd,
    eventfd: Arc<OwnedFd>,
    spin: Duration,
}

impl Loop {
    fn wait(&self, timeout: Option<&Timespec>) -> io::Result<bool> {
        let mut events = [const { MaybeUninit::uninit() }; 8];
        match epoll::wait(&self.epoll, &mut events, timeout) {
            Ok((events, _)) => Ok(!events.is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Spins instead of sleeping.
    fn spins(&self) -> io::Result<bool> {
        let started = Instant::now();
        while started.elapsed() < self.spin {
            if self.wait(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl LoopSubject for Loop {
    type Waker = EventfdWaker;

    fn new(_backend: &str, spin: Duration) -> Result<Self, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(
            &epoll,
            &eventfd,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        Ok(Self { epoll, eventfd: Arc::new(eventfd), spin })
    }

    fn waker(&self) -> EventfdWaker {
        EventfdWaker(Arc::clone(&self.eventfd))
    }

    fn run(&mut self, handler: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        loop {
            let woken = (!self.spin.is_zero() && self.spins()?) || self.wait(None)?;
            if woken && !handler() {
                return Ok(());
            }
        }
    }
}

struct EventfdWaker(Arc<OwnedFd>);

impl Waker for EventfdWaker {
    #[inline]
    fn wake(&self) {
        rustix::io::write(&self.0, &1_u64.to_ne_bytes()).expect("2^64 wakes never come together");
    }
}
