//! Life inside another loop: one descriptor that is readable whenever the reactor has something to
//! do.
//!
//! The descriptor is an outer epoll set over three things: the reactor's own set, an eventfd for
//! work that no descriptor tells of (events kept after a panic, deferred closures and the like),
//! and a timerfd for the next timer. Nobody trusts what the outer set's events carry, so it may be
//! shown; the inner one may not (rule 11).

use core::fmt;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

use rustix::{
    event::{
        EventfdFlags,
        epoll::{self, CreateFlags, EventData, EventFlags},
        eventfd,
    },
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};

use crate::{
    Backend, Errno, Reactor, backend,
    builder::Registrar,
    clock::timespec,
    pending_work,
    turn::{Token, sealed::Sealed},
};

/// A reactor that lives inside another loop.
///
/// Watch it for reading, level-triggered, and call [`run_once`](Self::run_once) with a timeout of
/// zero when it is readable: then something is due, an event, a timer, or work left over. It is a
/// subscriber's descriptor like any other, in another reactor too.
///
/// A loop that registers edge-triggered, as tokio's `AsyncFd` does, takes it for ready until it is
/// not readable any more: a turn may leave something over. The example `in_tokio` shows that.
///
/// Chains of epoll sets end at five (epoll_ctl(2), `ELOOP`), and an embedded reactor takes two of
/// them: one embedded reactor inside another one inside a host is as deep as it goes.
///
/// ```no_run
/// use std::time::Duration;
/// use windlass::{Embedded, Reactor, Turn, interest};
///
/// # fn main() -> std::io::Result<()> {
/// let mut host = Reactor::new()?;
/// let guest = Reactor::new()?.embed()?;
/// interest()
///     .read()
///     .with_fd(guest)
///     .with_handler(|guest: &mut Embedded| drop(guest.run_once(Duration::ZERO)))
///     .register_into(&mut host)?;
/// # Ok(())
/// # }
/// ```
pub struct Embedded {
    reactor: Reactor,
    outer: OwnedFd,
    work: OwnedFd,
    timer: OwnedFd,
    /// The inner set that the outer one watches: its serial, and its number.
    watched: Option<(u64, RawFd)>,
    /// Whether `work` is readable.
    raised: bool,
    /// When `timer` expires, in the reactor's count.
    armed: Option<u64>,
    /// The kernel has refused to keep the descriptors up to date; the next `run_once` says so.
    trouble: Option<Errno>,
}

/// A reactor that could not be embedded, and why.
pub struct EmbedError {
    /// What the kernel said: `EMFILE` when the process has no descriptor left, say. `EOPNOTSUPP`
    /// where the [`Backend`] has no descriptor that another loop could wait for.
    pub errno: Errno,
    /// The reactor, unharmed.
    pub reactor: Box<Reactor>,
}

impl fmt::Debug for EmbedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbedError").field("errno", &self.errno).finish_non_exhaustive()
    }
}

impl fmt::Display for EmbedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno {
            Errno::OPNOTSUPP => f.write_str("the reactor's backend cannot be embedded"),
            errno => write!(f, "the kernel refused a descriptor of the embedded reactor: {errno}"),
        }
    }
}

impl std::error::Error for EmbedError {}

impl From<EmbedError> for io::Error {
    fn from(e: EmbedError) -> Self {
        e.errno.into()
    }
}

impl Reactor {
    /// Makes the reactor live inside another loop.
    ///
    /// # Errors
    /// [`EmbedError`], with the reactor in it.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn embed(self) -> Result<Embedded, EmbedError> {
        if self.backend() == Backend::Poll {
            return Err(EmbedError { errno: Errno::OPNOTSUPP, reactor: Box::new(self) });
        }
        let parts = (|| {
            let outer = epoll::create(CreateFlags::CLOEXEC)?;
            let work = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let timer = timerfd_create(
                TimerfdClockId::Monotonic,
                TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
            )?;
            for fd in [&work, &timer] {
                epoll::add(&outer, fd, EventData::new_u64(0), EventFlags::IN)?;
            }
            Ok((outer, work, timer))
        })();
        let (outer, work, timer) = match parts {
            Ok(parts) => parts,
            Err(errno) => {
                return Err(EmbedError { errno, reactor: Box::new(self) });
            }
        };
        let mut embedded = Embedded {
            reactor: self,
            outer,
            work,
            timer,
            watched: None,
            raised: false,
            armed: None,
            trouble: None,
        };
        embedded.settle();
        match embedded.trouble.take() {
            None => Ok(embedded),
            Some(errno) => Err(EmbedError { errno, reactor: Box::new(embedded.into_reactor()) }),
        }
    }

    /// Whether the next turn has something to do that no descriptor and no timer tells of.
    fn has_work(&self) -> bool {
        self.pending_work & pending_work::WORK != 0
    }
}

impl Embedded {
    /// Runs one turn; see [`Reactor::run_once`]. The host gives a timeout of zero.
    ///
    /// # Errors
    /// What [`Reactor::run_once`] says, and what the kernel said when the descriptors could not be
    /// kept up to date.
    ///
    /// # Panics
    /// With the panic of a handler or destructor; what is left over makes the descriptor readable.
    pub fn run_once(&mut self, timeout: impl Into<Option<Duration>>) -> io::Result<usize> {
        let timeout = timeout.into();
        let count = self.with(|reactor| reactor.run_once(timeout))?;
        match self.trouble.take() {
            None => Ok(count),
            Some(errno) => Err(errno.into()),
        }
    }

    /// Lends the reactor, and brings the descriptor up to date afterwards.
    pub fn with<T>(&mut self, run: impl FnOnce(&mut Reactor) -> T) -> T {
        /// Settles also when `run` panics: what was kept must wake the host.
        struct Settle<'e>(&'e mut Embedded);
        impl Drop for Settle<'_> {
            fn drop(&mut self) {
                self.0.settle();
            }
        }
        let settle = Settle(self);
        run(&mut settle.0.reactor)
    }

    /// Gives the reactor back; the descriptor is closed.
    #[must_use]
    pub fn into_reactor(mut self) -> Reactor {
        self.reactor.driver.leave_host();
        self.reactor
    }

    fn settle(&mut self) {
        if let Err(errno) = self.try_settle() {
            self.trouble = Some(errno);
        }
    }

    /// Does all of it although a part fails: what is not watched must not keep the rest from waking
    /// the host.
    fn try_settle(&mut self) -> Result<(), Errno> {
        // A child of fork(2) shares the descriptors with the parent, whose host would sleep through
        // his timer.
        self.reactor.driver.check_owner()?;
        self.reactor.flush();
        // The descriptor first: it tells of what comes after it is there.
        let watched = self.watch_inner();
        let settled = self.reactor.driver.settle();
        // Asleep before the host sleeps; what was queued before that is work. Before the timer,
        // which asks the user's clock, and that may panic.
        let is_woken = self.reactor.pending_work & pending_work::REMOTE != 0
            && !self.reactor.stop.latch().sleep();
        self.raise_work(watched.is_err() || is_woken || settled != Ok(false))?;
        self.arm_timer().or_else(|errno| self.raise_work(true).and(Err(errno)))?;
        watched.and(settled.map(drop))
    }

    fn raise_work(&mut self, more: bool) -> Result<(), Errno> {
        let has_work = self.reactor.has_work() || more;
        if has_work != self.raised {
            if has_work {
                rustix::io::write(&self.work, &1u64.to_ne_bytes())?;
            } else {
                rustix::io::read(&self.work, &mut [0; 8])?;
            }
            self.raised = has_work;
        }
        Ok(())
    }

    /// The inner set is another one after a rebuild (rule 7), when it has left the outer set by
    /// being closed; and when the owner has put another reactor in this one's place, where it must
    /// be made to leave.
    fn watch_inner(&mut self) -> Result<(), Errno> {
        let (inner, serial) = match self.reactor.driver.watchable() {
            Ok(watchable) => watchable,
            Err(errno) => {
                // What was in its place before has nothing to do here any more.
                if let Some((_, number)) = self.watched.take() {
                    backend::forget(self.outer.as_fd(), number);
                }
                return Err(errno);
            }
        };
        let now = (serial, inner.as_raw_fd());
        if self.watched == Some(now) {
            return Ok(());
        }
        if let Some((_, number)) = self.watched.take() {
            backend::forget(self.outer.as_fd(), number);
            // Another reactor counts from another epoch.
            self.armed = None;
        }
        epoll::add(&self.outer, inner, EventData::new_u64(0), EventFlags::IN)?;
        self.watched = Some(now);
        for cell in self.reactor.registry.iter() {
            self.reactor.driver.tell_host_of(cell.fd())?;
        }
        Ok(())
    }

    fn arm_timer(&mut self) -> Result<(), Errno> {
        let next = self.reactor.timers.next_deadline();
        let is_custom = self.reactor.time.is_custom();
        // A clock of the owner's may run as it likes, so the span to the same deadline is another
        // one each time.
        if next == self.armed && (next.is_none() || !is_custom) {
            return Ok(());
        }
        // All zeros disarm a timerfd, so what is due already is due in a nanosecond; where the
        // clock may stand still, in a millisecond, or the host would spin.
        let least = if is_custom { 1_000_000 } else { 1 };
        let span =
            next.map(|next| next.saturating_sub(self.reactor.time.read_calm_ns()).max(least));
        let it_value = timespec(Duration::from_nanos(span.unwrap_or(0)));
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        self.armed = next;
        Ok(())
    }
}

impl AsFd for Embedded {
    /// The outer set, readable when [`run_once`](Self::run_once) has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.outer.as_fd()
    }
}

impl AsRawFd for Embedded {
    /// The number of the same, for loops that ask for it: tokio's `AsyncFd`, say. It stays the
    /// same, and open, until the `Embedded` is dropped or [taken apart](Self::into_reactor).
    fn as_raw_fd(&self) -> RawFd {
        self.outer.as_raw_fd()
    }
}

impl Sealed for Embedded {}
impl Registrar for Embedded {
    type Ops = Reactor;

    fn with_ops<T>(&mut self, _: Token, run: impl FnOnce(&mut Reactor) -> T) -> T {
        self.with(run)
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").field("reactor", &self.reactor).finish_non_exhaustive()
    }
}
