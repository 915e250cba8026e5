//! The timer of the timeouts.

use std::{io, os::fd::OwnedFd, rc::Rc};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use windlass::{Turn, interest};

use super::host::ServiceHost;
use crate::state::ServiceState;

/// Starts the timer.
///
/// The kernel measures the time, by a descriptor. A timer of the reactor would make every turn read
/// the clock. With a custom clock the scan uses a reactor timer, because it must follow that
/// clock.
pub(crate) fn start_timer(
    state: &Rc<ServiceState>,
    reactor: &mut impl ServiceHost,
) -> io::Result<()> {
    let tick_len = state.timeouts.tick_len();
    let state = Rc::clone(state);
    if reactor.has_own_clock() {
        return reactor.repeat(tick_len, move |mut turn: Turn<'_>| state.on_timer(&mut turn));
    }
    let timer =
        timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    let every = Timespec::try_from(tick_len).map_err(io::Error::other)?;
    timerfd_settime(
        &timer,
        TimerfdTimerFlags::empty(),
        &Itimerspec { it_interval: every, it_value: every },
    )?;
    let on_timer = move |timer: &mut OwnedFd, mut turn: Turn<'_>| {
        // The number of expirations does not matter, and a failed read is a spurious event.
        if rustix::io::read(&*timer, &mut [0; 8]).is_ok() {
            state.on_timer(&mut turn);
        }
    };
    interest().read().with_fd(timer).with_handler(on_timer).register_into(reactor)?;
    Ok(())
}
