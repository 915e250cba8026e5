//! The hand-written loop of `bench-raw` on epoll_pwait2(2), for the suites `dispatch` and `poll0`.
//! The difference from `bench-raw` is the price of the call.

#![deny(unsafe_code)]

#[path = "bench-raw/events.rs"]
mod events;

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use rustix::event::{Timespec, epoll};
use windlass_bench_driver::{Program, Suite};

use events::{Raw, Wait, Waits};

fn main() -> ExitCode {
    let suites = vec![Suite::dispatch::<Raw<EpollPwait2>>(), Suite::poll0::<Raw<EpollPwait2>>()];
    Program { version: env!("CARGO_PKG_VERSION").to_owned(), suites }.serve()
}

struct EpollPwait2;

impl Wait for EpollPwait2 {
    #[inline(always)]
    fn wait(epoll: &OwnedFd, events: &mut Vec<epoll::Event>, waits: Waits) -> std::io::Result<()> {
        const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        events.clear();
        let limit = match waits {
            Waits::Not => Some(&ZERO),
            Waits::UntilAnEvent => None,
        };
        epoll::wait(epoll, rustix::buffer::spare_capacity(events), limit)?;
        Ok(())
    }
}
