//! Embedding in another event loop, through one descriptor that is readable when the reactor has
//! work.
//!
//! The descriptor is an outer epoll set over three descriptors: the reactor's own set, an eventfd,
//! and a timerfd for the next timer. The eventfd signals work without a descriptor, such as events
//! kept after a panic and deferred closures. The data in the outer set's events is never used, so
//! the outer set may be exposed. The inner set must not be exposed (rule 11).

use core::fmt;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

use rustix::{
    event::{
        EventfdFlags, PollFd, PollFlags,
        epoll::{self, CreateFlags, EventData, EventFlags},
        eventfd, poll,
    },
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};

use crate::{
    Errno, NextTurn, Reactor, TurnDriver,
    api::{
        ops::{Token, sealed::Sealed},
        registrar::Registrar,
    },
    backend,
    error::plain_error,
    kernel::pending_work,
    time::clock::timespec,
};

/// A reactor embedded in another event loop.
///
/// Watch it for reading, level-triggered. When it is readable, call [`run_once`](Self::run_once)
/// with a timeout of zero: an event, a timer or left-over work is due. It can be registered like
/// any other descriptor, also with another reactor.
///
/// A turn may leave work over. Therefore a loop that registers the descriptor edge-triggered, as
/// mio and tokio do, runs turns until [`is_due`](Self::is_due) is false, and sleeps only then. The
/// example `in_mio` shows this. For tokio there is `drive`, with the feature `tokio`.
///
/// The kernel limits chains of epoll sets to five (epoll_ctl(2), `ELOOP`), and an embedded reactor
/// uses two of them. The deepest nesting is therefore one embedded reactor inside another inside a
/// host.
///
/// ```
/// use std::time::Duration;
/// use windlass::{Embedded, Reactor, interest};
///
/// # fn main() -> std::io::Result<()> {
/// let mut host = Reactor::new()?;
/// let mut guest = Reactor::new()?;
/// # let stop = host.stop_handle();
/// guest.after(Duration::from_millis(1), move || {
///     println!("one millisecond has passed");
///     # stop.stop();
/// })?;
/// let guest = guest.embed()?;
/// interest()
///     .read()
///     .with_fd(guest)
///     .with_handler(|guest: &mut Embedded| drop(guest.run_once(Duration::ZERO)))
///     .register_into(&mut host)?;
/// host.run()?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "epoll")]
pub struct Embedded {
    reactor: Reactor,
    outer: OwnedFd,
    work: OwnedFd,
    timer: OwnedFd,
    /// The inner set that the outer one watches: its serial, and its descriptor number.
    watched: Option<(u64, RawFd)>,
    /// Whether `work` is readable.
    raised: bool,
    /// When `timer` expires, in nanoseconds since the reactor's epoch.
    armed: Option<u64>,
    /// An error from updating the descriptors. The next `run_once` returns it.
    trouble: Option<Errno>,
    /// The last answer of the driver, if there is one.
    next: NextTurn,
}

/// Why a reactor was not embedded.
///
/// ```
/// use windlass::{Backend, EmbedReason, Reactor};
///
/// # fn main() -> std::io::Result<()> {
/// let reactor = Reactor::builder().backend(Backend::Poll).build()?;
/// assert_eq!(reactor.embed().unwrap_err(), EmbedReason::Unsupported);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EmbedReason {
    /// The [`Backend`](crate::Backend) has no descriptor that another loop could wait for.
    Unsupported,
    /// An error of the kernel, for example `EMFILE` if the process has no descriptor left.
    Os(Errno),
}

plain_error!(
    EmbedReason,
    |e| match e {
        Self::Unsupported => "the reactor's backend cannot be embedded",
        Self::Os(_) => "the kernel refused a descriptor of the embedded reactor",
    },
    match e {
        EmbedReason::Unsupported => Ok(Errno::OPNOTSUPP),
        EmbedReason::Os(errno) => Ok(*errno),
    },
    match e {
        EmbedReason::Os(errno) => Some(errno),
        EmbedReason::Unsupported => None,
    }
);

/// A reactor that could not be embedded, and the reason.
///
/// ```
/// use windlass::{Backend, EmbedReason, Reactor};
///
/// # fn main() -> std::io::Result<()> {
/// let reactor = Reactor::builder().backend(Backend::Poll).build()?;
/// let error = reactor.try_embed().unwrap_err();
/// assert_eq!(error.reason, EmbedReason::Unsupported);
/// let _reactor: Reactor = *error.reactor;
/// # Ok(())
/// # }
/// ```
pub struct EmbedError {
    /// The reason.
    pub reason: EmbedReason,
    /// The reactor, unchanged.
    pub reactor: Box<Reactor>,
}

impl fmt::Debug for EmbedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbedError").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl fmt::Display for EmbedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for EmbedError {}

impl From<EmbedError> for io::Error {
    fn from(e: EmbedError) -> Self {
        e.reason.into()
    }
}

impl Reactor {
    /// Embeds the reactor in another event loop.
    ///
    /// # Errors
    /// The reactor is dropped: [`try_embed`](Self::try_embed) returns it.
    ///
    /// - [`Unsupported`](EmbedReason::Unsupported): the backend is [`Poll`](crate::Backend::Poll),
    ///   which has no descriptor that another loop could wait for.
    /// - [`Os`](EmbedReason::Os): `EMFILE`, `ENFILE` or `ENOMEM`, if the process or the system has
    ///   no descriptor or memory left.
    ///
    /// # Panics
    /// If it fails, with the panic of a destructor of the reactor's subscribers.
    pub fn embed(self) -> Result<Embedded, EmbedReason> {
        self.try_embed().map_err(|e| e.reason)
    }

    /// [`embed`](Self::embed) with an error that returns the reactor.
    ///
    /// # Errors
    /// The reasons of [`embed`](Self::embed). The error returns the reactor.
    pub fn try_embed(self) -> Result<Embedded, EmbedError> {
        let refused = |reason, reactor| EmbedError { reason, reactor: Box::new(reactor) };
        if !self.kernel.backend().is_watchable() {
            return Err(refused(EmbedReason::Unsupported, self));
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
            Err(errno) => return Err(refused(EmbedReason::Os(errno), self)),
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
            next: NextTurn::Wait,
        };
        embedded.settle();
        match embedded.trouble.take() {
            None => Ok(embedded),
            Some(errno) => Err(refused(EmbedReason::Os(errno), embedded.into_reactor())),
        }
    }

    /// Whether the next turn has work that no descriptor and no timer signals.
    fn has_work(&self) -> bool {
        self.kernel.has(pending_work::WORK)
    }
}

/// Updates the descriptors when it is dropped, also by a panic, because kept events must wake the
/// host.
struct Settle<'e>(&'e mut Embedded);

impl Drop for Settle<'_> {
    fn drop(&mut self) {
        self.0.settle();
    }
}

impl Embedded {
    /// Runs one turn. See [`Reactor::run_once`]. The host passes a timeout of zero.
    ///
    /// With a driver, call [`run_once_with`](Self::run_once_with) instead.
    ///
    /// # Errors
    /// The errors of [`Reactor::run_once`], and an error of the kernel from updating the
    /// descriptors.
    ///
    /// # Panics
    /// Resumes the panic of a handler or destructor. Left-over work makes the descriptor readable.
    pub fn run_once(&mut self, timeout: impl Into<Option<Duration>>) -> io::Result<usize> {
        let timeout = timeout.into();
        let count = self.with(|reactor| reactor.run_once(timeout))?;
        self.note_if_idle();
        match self.trouble.take() {
            None => Ok(count),
            Some(errno) => Err(errno.into()),
        }
    }

    /// Runs one turn, then calls `driver`, whose answer tells when the descriptor becomes readable
    /// again: for [`Until`](NextTurn::Until) at its deadline, for [`Again`](NextTurn::Again) at
    /// once. The answer holds until the next call of this method. The host passes a timeout of
    /// zero; otherwise the driver is also called before the wait.
    ///
    /// Call it once before the host waits for the first time, and whenever the host itself has
    /// handed something to the driver. If the driver answers [`Stop`](NextTurn::Stop) or requests a
    /// stop, [`Reactor::stop_requested`] is true afterwards.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use windlass::{Embedded, NextTurn, Reactor, Turn, interest};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let mut host = Reactor::new()?;
    /// let stop = host.stop_handle();
    /// let start = Instant::now();
    /// let mut driver = move |_: Turn<'_>| {
    ///     let deadline = start + Duration::from_millis(1);
    ///     if Instant::now() >= deadline {
    ///         stop.stop();
    ///     }
    ///     NextTurn::Until(deadline)
    /// };
    /// let mut guest = Reactor::new()?.embed()?;
    /// guest.run_once_with(Duration::ZERO, &mut driver)?;
    /// interest()
    ///     .read()
    ///     .with_fd(guest)
    ///     .with_handler(move |guest: &mut Embedded| {
    ///         drop(guest.run_once_with(Duration::ZERO, &mut driver));
    ///     })
    ///     .register_into(&mut host)?;
    /// host.run()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`run_once`](Self::run_once).
    ///
    /// # Panics
    /// With the panic of a handler, destructor or the driver. The descriptor is readable
    /// afterwards, so that the host calls again.
    pub fn run_once_with(
        &mut self,
        timeout: impl Into<Option<Duration>>,
        driver: &mut (impl TurnDriver + ?Sized),
    ) -> io::Result<usize> {
        // If anything goes wrong before the driver has answered, it is called again.
        self.next = NextTurn::Again;
        let settle = Settle(self);
        let Self { reactor, next, .. } = &mut *settle.0;
        let count = match timeout.into() {
            Some(Duration::ZERO) => reactor.run_once(Duration::ZERO)?,
            timeout => reactor.run_once_with(timeout, driver)?,
        };
        *next = reactor.ask_after_turn(driver);
        drop(settle);
        self.note_if_idle();
        match self.trouble.take() {
            None => Ok(count),
            Some(errno) => Err(errno.into()),
        }
    }

    /// Whether [`run_once`](Self::run_once) has something to do: whether the descriptor is
    /// readable. Left-over work is known without a system call; otherwise it makes one call of
    /// poll(2), which does not wait.
    ///
    /// If it is false, whatever becomes due later is a new edge of the descriptor. So a loop that
    /// registers edge-triggered misses nothing if it asks after each turn, and after it has
    /// consumed the last edge:
    ///
    /// ```
    /// use std::{os::fd::AsFd, time::Duration};
    /// use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
    /// use windlass::Reactor;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let mut guest = Reactor::new()?.embed()?;
    /// let host = epoll::create(CreateFlags::CLOEXEC)?;
    /// epoll::add(&host, guest.as_fd(), EventData::new_u64(0), EventFlags::IN | EventFlags::ET)?;
    /// # let remote = guest.with(|reactor| reactor.remote());
    /// # remote.try_post(|mut turn| turn.stop())?;
    /// let mut edges = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
    /// while !guest.with(|reactor| reactor.stop_requested()) {
    ///     while guest.is_due() {
    ///         guest.run_once(Duration::ZERO)?;
    ///     }
    /// #   if guest.with(|reactor| reactor.stop_requested()) { break; }
    ///     epoll::wait(&host, &mut edges[..], None)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// True as well if poll(2) fails: a turn more does no harm.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.raised
            || self.trouble.is_some()
            || poll(&mut [PollFd::new(&self.outer, PollFlags::IN)], Some(&at_once)) != Ok(0)
    }

    /// Lends the reactor, then updates the descriptor.
    ///
    /// # Panics
    /// With the panic of `run`. The descriptor is updated first.
    pub fn with<T>(&mut self, run: impl FnOnce(&mut Reactor) -> T) -> T {
        let settle = Settle(self);
        run(&mut settle.0.reactor)
    }

    /// Returns the reactor and closes the descriptor.
    #[must_use]
    pub fn into_reactor(mut self) -> Reactor {
        self.reactor.kernel.leave_host();
        self.reactor
    }

    /// The reactor's stop, for loops in this crate.
    #[cfg(feature = "tokio")]
    pub(super) fn stop(&self) -> &crate::Stop {
        &self.reactor.stop
    }

    /// The host can sleep before the next turn, for the progress watch.
    fn note_if_idle(&mut self) {
        if self.reactor.kernel.has(pending_work::PROGRESS) && !self.is_due() {
            let next = self.reactor.kernel.stats().turns + 1;
            self.reactor.kernel.note_idle(next);
        }
    }

    fn settle(&mut self) {
        if let Err(errno) = self.try_settle() {
            self.trouble = Some(errno);
        }
    }

    /// Completes all steps even if one fails, so that one failure does not keep the others from
    /// waking the host.
    fn try_settle(&mut self) -> Result<(), Errno> {
        // A child of fork(2) shares the descriptors with the parent. Changing the timerfd here
        // would make the parent's host miss its timer.
        self.reactor.kernel.check_owner()?;
        // The descriptor first: it reports only events that arrive after it is added.
        let watched = self.watch_inner();
        let settled = self.reactor.kernel.settle_for_host();
        // The latch must sleep before the host sleeps; calls queued earlier count as work. This
        // comes before the timer, because reading a custom clock may panic.
        let is_woken =
            self.reactor.kernel.has(pending_work::REMOTE) && !self.reactor.stop.latch().sleep();
        self.raise_work(watched.is_err() || is_woken || settled != Ok(false))?;
        self.arm_timer().or_else(|errno| self.raise_work(true).and(Err(errno)))?;
        watched.and(settled.map(drop))
    }

    fn raise_work(&mut self, more: bool) -> Result<(), Errno> {
        let has_work = self.reactor.has_work() || self.next == NextTurn::Again || more;
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

    /// Watches the current inner set. It differs from the watched one in two cases. After a rebuild
    /// (rule 7), the old set was closed and thereby left the outer set. If the owner replaced the
    /// reactor by another one, the old set must be removed here.
    fn watch_inner(&mut self) -> Result<(), Errno> {
        let (inner, serial) = match self.reactor.kernel.watchable() {
            Ok(watchable) => watchable,
            Err(errno) => {
                // The previous inner set must no longer be watched.
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
        self.reactor.kernel.tell_host()
    }

    fn arm_timer(&mut self) -> Result<(), Errno> {
        let timing = &mut self.reactor.timing;
        let until = match self.next {
            NextTurn::Until(deadline) => Some(deadline),
            _ => None,
        };
        let next = timing.next_deadline_or(until);
        let is_custom = timing.has_own_clock();
        // A custom clock may run at any speed, so the time to the same deadline must be computed
        // again.
        if next == self.armed && (next.is_none() || !is_custom) {
            return Ok(());
        }
        // All zeros disarm a timerfd, so a timer that is due gets one nanosecond. With a custom
        // clock, which may stand still, it gets one millisecond; otherwise the host would spin.
        let least = if is_custom { 1_000_000 } else { 1 };
        let span = next.map(|next| timing.until_deadline(next).max(least));
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
    /// The descriptor number, for loops that need it, such as mio with its `SourceFd`. It stays the
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
