//! The hand-written epoll loop, the reference of all instruction counts.
//!
//! Its turns wait by epoll_wait(2), made without libc: a limit of zero is 0, and none is −1. That
//! is the cheapest wait of the kernel. `bench-raw-pwait2` is the same loop on epoll_pwait2(2).

#![deny(unsafe_code)]

#[path = "bench-raw/eventfd_loop.rs"]
mod eventfd_loop;
#[path = "bench-raw/events.rs"]
mod events;
#[path = "bench-raw/http.rs"]
mod http;
#[path = "bench-raw/tasks.rs"]
mod tasks;
#[path = "bench-raw/wait.rs"]
mod wait;

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use rustix::event::epoll;
use windlass_bench_driver::sleep::SleepSubject;
use windlass_bench_driver::{Error, Program, Suite};

use events::{Raw, Wait, Waits};

fn main() -> ExitCode {
    let suites = vec![
        Suite::dispatch::<Raw<EpollWait>>(),
        Suite::kick::<Raw<EpollWait>>(),
        Suite::poll0::<Raw<EpollWait>>(),
        Suite::first_event::<Raw<EpollWait>>(),
        Suite::sleep::<Sleeping>(),
        Suite::latency::<tasks::RawTasks>(),
        Suite::tasks::<tasks::RawTasks>(),
        Suite::http::<http::RawHttp>(),
    ];
    Program { version: env!("CARGO_PKG_VERSION").to_owned(), suites }.serve()
}

struct EpollWait;

impl Wait for EpollWait {
    #[inline(always)]
    fn wait(epoll: &OwnedFd, events: &mut Vec<epoll::Event>, waits: Waits) -> std::io::Result<()> {
        let limit_ms = match waits {
            Waits::Not => 0,
            Waits::UntilAnEvent => -1,
        };
        wait::epoll_wait(epoll, events, limit_ms)
    }
}

/// An empty epoll set.
struct Sleeping(OwnedFd);

impl SleepSubject for Sleeping {
    fn new(_backend: &str) -> Result<Self, Error> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    fn sleep(&mut self, span: std::time::Duration) -> Result<(), Error> {
        let span = rustix::event::Timespec::try_from(span)?;
        epoll::wait(&self.0, &mut [MaybeUninit::<epoll::Event>::uninit()], Some(&span))?;
        Ok(())
    }
}
