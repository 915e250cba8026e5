//! The suite `calls`: the prices of system calls in one interleaved run.

use std::io;
use std::time::{Duration, Instant};

use crate::measured::{Error, Measured};
use crate::protocol::{Case, Outcome};

/// The measured calls, in the order of the report. With `ready` the call finds one ready eventfd or
/// completion, with `none` nothing, and returns at once all the same.
pub const CALLS: &[&str] = &[
    "getppid",
    "epoll_wait_zero_ready",
    "epoll_pwait2_zero_ready",
    "ppoll_zero_ready",
    "epoll_wait_zero_none",
    "epoll_pwait2_zero_none",
    "ppoll_zero_none",
    "epoll_wait_unlimited_ready",
    "epoll_pwait2_unlimited_ready",
    "ppoll_unlimited_ready",
    "epoll_wait_1ms_ready",
    "epoll_wait_60s_ready",
    "epoll_pwait2_200us_ready",
    "epoll_pwait2_60s_ready",
    "ppoll_60s_ready",
    "io_uring_enter_ready",
    "io_uring_enter_registered_ready",
    "io_uring_enter_unlimited_ready",
    "io_uring_enter_200us_ready",
    "io_uring_enter_60s_ready",
    "io_uring_enter_zero_none",
    "io_uring_enter_nop",
    "io_uring_enter_nop_unlimited",
    "io_uring_enter_nop_60s",
    "write_read_unix",
    "send_recv_unix",
    "write_read_tcp",
    "send_recv_tcp",
    "write_recv_tcp",
    "send_read_tcp",
    "writev_read_tcp",
    "sendmsg_recv_tcp",
    "read_none_tcp",
    "recv_none_tcp",
    "accept4",
    "accept4_address",
    "fcntl_getfl_accept4_address",
    "accept4_plain_fcntl",
    "accept4_none",
    "eventfd_write",
    "eventfd_write_read",
    "eventfd_read_none",
    "epoll_ctl_mod",
    "epoll_ctl_add_del",
    "fcntl_getfl",
    "ioctl_fionread",
    "timerfd_settime",
    "clock_gettime_vdso",
    "clock_gettime_coarse_vdso",
    "clock_gettime_call",
    "clock_gettime_coarse_call",
];

/// Makes a call, or a sequence of calls, so many times. Returns the time that it took.
pub type Price = Box<dyn FnMut(u64) -> Result<Duration, Error>>;

/// The calls of [`CALLS`].
pub trait Prices: 'static {
    /// Prepares a call.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it, or there is no such call.
    fn price(call: &str) -> Result<Price, Error>;
}

/// Makes a price of a call that can be repeated without a preparation.
pub fn repeated(mut call: impl FnMut() -> io::Result<()> + 'static) -> Price {
    Box::new(move |rounds| {
        let started = Instant::now();
        for _ in 0..rounds {
            call()?;
        }
        Ok(started.elapsed())
    })
}

/// Sets up a case of this suite.
pub(crate) fn prepare<P: Prices>(
    case: &Case,
    _backend: &str,
    _idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    let Case::SystemCall { call } = case else {
        return Err("no case of the suite `calls`".into());
    };
    Ok(Box::new(Priced(P::price(call)?)))
}

struct Priced(Price);

impl Measured for Priced {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let ns = (self.0)(rounds)?.as_nanos() as u64;
        Ok(Outcome { ns, units: rounds, ..Outcome::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Failing;

    impl Prices for Failing {
        fn price(_: &str) -> Result<Price, Error> {
            let mut calls = 0;
            Ok(repeated(move || {
                calls += 1;
                if calls < 3 { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
            }))
        }
    }

    #[test]
    fn a_call_that_fails_fails_its_slice() {
        let case = Case::SystemCall { call: "x".into() };
        let mut measured = prepare::<Failing>(&case, "epoll", false).expect("it is prepared");
        assert_eq!(measured.slice(2).map(|outcome| outcome.units).ok(), Some(2));
        assert!(measured.slice(1).is_err());
    }
}
