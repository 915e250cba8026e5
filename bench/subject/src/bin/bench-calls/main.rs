//! The calls of the suite `calls`.
//!
//! All are made by syscall(2) with six arguments, so the cost of the wrapper is the same for all.

#![deny(unsafe_code)]

mod accepted;
mod raw;
mod ring;
mod sockets;

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::ExitCode;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use windlass_bench_driver::calls::{Price, Prices, repeated};
use windlass_bench_driver::{Error, Program, Suite, Unsupported};

use raw::{FAILS, Step, leaked, steps};

fn main() -> ExitCode {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Program { version: kernel.trim().to_owned(), suites: vec![Suite::calls::<Kernel>()] }.serve()
}

/// The call that epoll_wait(3) makes.
#[cfg(target_arch = "x86_64")]
const EPOLL_WAIT: libc::c_long = libc::SYS_epoll_wait;
#[cfg(not(target_arch = "x86_64"))]
const EPOLL_WAIT: libc::c_long = libc::SYS_epoll_pwait;

struct Kernel;

impl Prices for Kernel {
    fn price(call: &str) -> Result<Price, Error> {
        if call.starts_with("io_uring") {
            return ring::price(call);
        }
        if call.ends_with("_unix") || call.ends_with("_tcp") {
            return sockets::price(call);
        }
        if call.contains("accept4") {
            return accepted::price(call);
        }
        if let Some((wait, rest)) = call.rsplit_once('_').filter(|(_, found)| is_found(found)) {
            return wait_price(wait, rest == "ready");
        }
        other(call)
    }
}

fn is_found(word: &str) -> bool {
    matches!(word, "ready" | "none")
}

fn number(fd: &OwnedFd) -> usize {
    fd.as_raw_fd() as usize
}

/// Makes an eventfd, and an epoll set that watches it level-triggered.
fn watched(is_ready: bool) -> Result<(OwnedFd, OwnedFd), Error> {
    let counter = eventfd(u32::from(is_ready), EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&set, &counter, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
    Ok((set, counter))
}

/// Returns the address of a time, or zero for none.
fn time(limit: &str) -> Result<usize, Error> {
    let (sec, nsec) = match limit {
        "unlimited" => return Ok(0),
        "zero" => (0, 0),
        "200us" => (0, 200_000),
        "1ms" => (0, 1_000_000),
        "60s" => (60, 0),
        _ => return Err("no such limit".into()),
    };
    Ok(leaked([sec, nsec]))
}

fn milliseconds(limit: &str) -> Result<usize, Error> {
    Ok(match limit {
        "unlimited" => -1_isize as usize,
        "zero" => 0,
        "1ms" => 1,
        "60s" => 60_000,
        _ => return Err("no whole milliseconds".into()),
    })
}

/// The waits, with one ready eventfd or none.
fn wait_price(wait: &str, is_ready: bool) -> Result<Price, Error> {
    let (call, limit) = wait.rsplit_once('_').ok_or("no limit")?;
    if call == "eventfd" {
        let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let read = Step::new(libc::SYS_read, &[number(&counter), leaked(0_u64), 8], FAILS);
        return Ok(steps([read], counter));
    }
    let (set, counter) = watched(is_ready)?;
    let found = isize::from(is_ready);
    let events = leaked([0_u8; 16 * 8]);
    let step = match call {
        "epoll_wait" => {
            Step::new(EPOLL_WAIT, &[number(&set), events, 8, milliseconds(limit)?, 0, 8], found)
        }
        "epoll_pwait2" => {
            Step::new(libc::SYS_epoll_pwait2, &[number(&set), events, 8, time(limit)?, 0, 8], found)
        }
        "ppoll" => {
            let polled = libc::pollfd { fd: counter.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            let arguments = [leaked(polled), 1, time(limit)?, 0, 8];
            Step::new(libc::SYS_ppoll, &arguments, found)
        }
        _ => return Err(Unsupported("no such wait").into()),
    };
    Ok(steps([step], (set, counter)))
}

fn other(call: &str) -> Result<Price, Error> {
    let (set, counter) = watched(false)?;
    let one = leaked(1_u64);
    let write = Step::new(libc::SYS_write, &[number(&counter), one, 8], 8);
    let read = Step::new(libc::SYS_read, &[number(&counter), leaked(0_u64), 8], 8);
    let flags = libc::EPOLLIN as u32;
    let event = leaked(libc::epoll_event { events: flags, u64: 1 });
    let control = |operation: i32| {
        let arguments = [number(&set), operation as usize, number(&counter), event];
        Step::new(libc::SYS_epoll_ctl, &arguments, 0)
    };
    let clock = |clock: libc::clockid_t| {
        let time = leaked([0_i64; 2]);
        Step::new(libc::SYS_clock_gettime, &[clock as usize, time], 0)
    };
    let keep = |timer: Option<OwnedFd>| (timer, ());
    Ok(match call {
        "getppid" => {
            let parent = std::os::unix::process::parent_id();
            steps([Step::new(libc::SYS_getppid, &[], parent as isize)], keep(None))
        }
        "eventfd_write" => steps([write], (set, counter)),
        "eventfd_write_read" => steps([write, read], (set, counter)),
        "epoll_ctl_mod" => steps([control(libc::EPOLL_CTL_MOD)], (set, counter)),
        "epoll_ctl_add_del" => {
            let both = [control(libc::EPOLL_CTL_DEL), control(libc::EPOLL_CTL_ADD)];
            steps(both, (set, counter))
        }
        "fcntl_getfl" => {
            let flags = libc::O_RDWR | libc::O_NONBLOCK;
            let arguments = [number(&counter), libc::F_GETFL as usize];
            steps([Step::new(libc::SYS_fcntl, &arguments, flags as isize)], (set, counter))
        }
        "ioctl_fionread" => {
            let (one, other) = std::os::unix::net::UnixStream::pair()?;
            let arguments = [one.as_raw_fd() as usize, libc::FIONREAD as usize, leaked(0_u64)];
            steps([Step::new(libc::SYS_ioctl, &arguments, 0)], (one, other))
        }
        "timerfd_settime" => {
            let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
            let an_hour = leaked([0_i64, 0, 3_600, 0]);
            let arguments = [number(&timer), 0, an_hour, 0];
            steps([Step::new(libc::SYS_timerfd_settime, &arguments, 0)], keep(Some(timer)))
        }
        "clock_gettime_call" => steps([clock(libc::CLOCK_MONOTONIC)], keep(None)),
        "clock_gettime_coarse_call" => steps([clock(libc::CLOCK_MONOTONIC_COARSE)], keep(None)),
        "clock_gettime_vdso" => repeated(|| raw::clock(libc::CLOCK_MONOTONIC)),
        "clock_gettime_coarse_vdso" => repeated(|| raw::clock(libc::CLOCK_MONOTONIC_COARSE)),
        _ => return Err(Unsupported("no such call").into()),
    })
}
